"""The live page: what the engine is doing, as it does it."""
