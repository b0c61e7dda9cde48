"""HTTP: OpenAI-compatible routes, server-sent events, metrics."""
