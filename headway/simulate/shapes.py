"""Model shapes for the roofline: sizes of the matrices and of the KV cache, no weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError, ModelError
from headway.models.arch import config_from_hf
from headway.models.types import ModelConfig

_KV_ELEMENT_BYTES = 2
"""The KV cache is kept in 16 bit on every device."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's sizes. `tied`: whether the head is the embedding."""

    name: str
    config: ModelConfig
    tied: bool

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrices: what every token of a step is multiplied with."""
        config, attention = self.config, self.config.attention
        queries = attention.heads * attention.head_dim
        keys = attention.kv_heads * attention.head_dim
        projections = config.hidden * (2 * queries + 2 * keys)
        return config.layers * (projections + 3 * config.hidden * config.intermediate)

    @property
    def head_weights(self) -> int:
        """Weights of the output head: what every sampled token is multiplied with."""
        return self.config.hidden * self.config.vocab

    @property
    def weights(self) -> int:
        """All weights in memory."""
        return self.layer_weights + self.head_weights * (1 if self.tied else 2)

    @property
    def attention_flops(self) -> int:
        """Operations for one query token and one token of context: scores and sum, all layers."""
        attention = self.config.attention
        return 4 * self.config.layers * attention.heads * attention.head_dim

    @property
    def kv_bytes(self) -> int:
        """KV cache of one token, in bytes."""
        attention = self.config.attention
        return 2 * _KV_ELEMENT_BYTES * self.config.layers * attention.kv_heads * attention.head_dim


def find_model(name: str) -> ModelShape:
    """A shape by name, or from a Hugging Face config.json (or the folder it is in).

    Raises ConfigError for an unknown name, ModelError for a file that can't be used.
    """
    if name in _KNOWN:
        return _from_hf(name, {**_COMMON, **_KNOWN[name]})
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if not path.exists():
        raise ConfigError(f"model {name!r} is no config.json and not one of: {', '.join(_KNOWN)}")
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: is no JSON object")
    return _from_hf(path.parent.name or path.name, values)


def _from_hf(name: str, values: Mapping[str, object]) -> ModelShape:
    vocab = values.get("vocab_size")
    if not isinstance(vocab, int):
        raise ModelError("config.json: 'vocab_size' is missing or not a number")
    config = config_from_hf(values, biases=values.get("model_type") == "qwen2", vocab=vocab)
    return ModelShape(name, config, values.get("tie_word_embeddings") is True)


_COMMON: dict[str, object] = {"rms_norm_eps": 1e-5, "hidden_act": "silu"}


def _known(
    model_type: str,
    layers: int,
    hidden: int,
    intermediate: int,
    vocab: int,
    heads: int,
    kv_heads: int,
    context: int,
    tied: bool = False,
) -> dict[str, object]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
    }


# The sizes in each model's published config.json.
_KNOWN: dict[str, dict[str, object]] = {
    "llama-3.1-8b": _known("llama", 32, 4096, 14336, 128256, 32, 8, 131072),
    "mistral-7b": _known("mistral", 32, 4096, 14336, 32768, 32, 8, 32768),
    "qwen2.5-7b": _known("qwen2", 28, 3584, 18944, 152064, 28, 4, 32768),
    "qwen3-8b": _known("qwen3", 36, 4096, 12288, 151936, 32, 8, 40960),
    "codellama-34b": _known("llama", 48, 8192, 22016, 32000, 64, 8, 16384),
    "smollm2-135m": _known("llama", 30, 576, 1536, 49152, 9, 3, 8192, tied=True),
}
