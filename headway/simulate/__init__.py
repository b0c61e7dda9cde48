"""Hardware models, and replay of traces on the real scheduler in virtual time."""
