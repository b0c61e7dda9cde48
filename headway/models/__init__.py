"""Files to weights: GGUF, safetensors, tokenizers, chat templates."""
