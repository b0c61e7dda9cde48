"""Which architectures are supported, and what their files call things.

One table serves GGUF and Hugging Face: a `Slot` is a tensor an executor wants, with its name in
either kind of file. Everything that would change the arithmetic and isn't in the table (sliding
windows, experts, unknown rope scaling, extra biases) is refused by name, never ignored.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.errors import ModelError
from headway.models.gguf import Metadata
from headway.models.types import AttentionShape, ModelConfig, Rope

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Names in either kind of file; Mistral's GGUF files call themselves llama."""

_MAX_HEAD_SIZE = 1 << 14
_LIMIT = 1 << 20
"""No width, layer or head count of a real model comes near; keeps products small."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a model.

    name: as in `Weights.tensors`.
    gguf, hf: names in the two kinds of file.
    shape: (rows, cols) of a matrix, (cols,) of a vector.
    rotated_heads: heads whose rows GGUF stores interleaved for RoPE; 0 where it does not.
    """

    name: str
    gguf: str
    hf: str
    shape: tuple[int, ...]
    rotated_heads: int = 0


def slots(config: ModelConfig, tied: bool) -> Iterator[Slot]:
    """Every tensor of a model, embedding first. `head` is left out where it is tied to `embed`."""
    vocabulary = (config.vocab, config.hidden)
    yield Slot("embed", "token_embd.weight", "model.embed_tokens.weight", vocabulary)
    if not tied:
        yield Slot("head", "output.weight", "lm_head.weight", vocabulary)
    yield Slot("norm", "output_norm.weight", "model.norm.weight", (config.hidden,))
    for layer in range(config.layers):
        yield from _layer_slots(config, layer)


def _layer_slots(config: ModelConfig, layer: int) -> Iterator[Slot]:
    attention, hidden = config.attention, config.hidden
    ours, gguf, hf = f"layers.{layer}.", f"blk.{layer}.", f"model.layers.{layer}."
    heads = {"q": attention.heads, "k": attention.kv_heads, "v": attention.kv_heads}
    interleaved = config.architecture == "llama"
    yield Slot(
        f"{ours}attn_norm", f"{gguf}attn_norm.weight", f"{hf}input_layernorm.weight", (hidden,)
    )
    for part, count in heads.items():
        rows = count * attention.head_dim
        rotated = count if interleaved and part != "v" else 0
        theirs, stem = f"{gguf}attn_{part}", f"{hf}self_attn.{part}"
        matrix = Slot(
            f"{ours}{part}", f"{theirs}.weight", f"{stem}_proj.weight", (rows, hidden), rotated
        )
        yield matrix
        if attention.qkv_bias:
            yield Slot(
                f"{ours}{part}_bias", f"{theirs}.bias", f"{stem}_proj.bias", (rows,), rotated
            )
        if attention.qk_norm and part != "v":
            head = (attention.head_dim,)
            yield Slot(f"{ours}{part}_norm", f"{theirs}_norm.weight", f"{stem}_norm.weight", head)
    width = attention.heads * attention.head_dim
    yield Slot(
        f"{ours}o", f"{gguf}attn_output.weight", f"{hf}self_attn.o_proj.weight", (hidden, width)
    )
    yield Slot(
        f"{ours}ffn_norm",
        f"{gguf}ffn_norm.weight",
        f"{hf}post_attention_layernorm.weight",
        (hidden,),
    )
    for part in ("gate", "up", "down"):
        wide, narrow = config.intermediate, hidden
        shape = (narrow, wide) if part == "down" else (wide, narrow)
        yield Slot(
            f"{ours}{part}", f"{gguf}ffn_{part}.weight", f"{hf}mlp.{part}_proj.weight", shape
        )


def config_from_gguf(
    metadata: Metadata, shapes: Mapping[str, tuple[int, ...]], rope_factors: tuple[float, ...]
) -> ModelConfig:
    """Shape of a GGUF model.

    shapes: of the file's tensors by name; decide the vocabulary and whether there are biases.
    rope_factors: of the tensor `rope_freqs.weight`, or empty.
    Raises ModelError, naming what isn't supported.
    """
    architecture = metadata.string("general.architecture")
    if architecture not in ("llama", "qwen2", "qwen3"):
        raise _unsupported_architecture(architecture)
    key = f"{architecture}.".__add__
    _refuse_gguf_features(metadata, architecture)
    hidden, heads = (
        metadata.integer(key("embedding_length")),
        metadata.integer(key("attention.head_count")),
    )
    head_dim = _head_size(metadata.integer(key("attention.key_length"), hidden // max(heads, 1)))
    for other in ("attention.value_length", "rope.dimension_count"):
        if metadata.integer(key(other), head_dim) != head_dim:
            raise ModelError(f"{architecture}: {other} differs from the head size {head_dim}")
    attention = AttentionShape(
        heads=heads,
        kv_heads=metadata.integer(key("attention.head_count_kv"), heads),
        head_dim=head_dim,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        qk_norm=architecture == "qwen3",
    )
    return _checked(
        ModelConfig(
            architecture=architecture,
            layers=metadata.integer(key("block_count")),
            hidden=hidden,
            intermediate=metadata.integer(key("feed_forward_length")),
            vocab=shapes.get("token_embd.weight", (0,))[0],
            attention=attention,
            rope=Rope(
                metadata.number(key("rope.freq_base"), 10_000.0),
                _gguf_rope_factors(metadata, architecture, head_dim, rope_factors),
            ),
            norm_eps=metadata.number(key("attention.layer_norm_rms_epsilon")),
            max_context=metadata.integer(key("context_length")),
        )
    )


def _refuse_gguf_features(metadata: Metadata, architecture: str) -> None:
    if metadata.integer(f"{architecture}.expert_count", 0) > 0:
        raise ModelError(f"{architecture}: mixture-of-experts models are not supported")
    window = metadata.integer(f"{architecture}.attention.sliding_window", 0)
    if 0 < window < metadata.integer(f"{architecture}.context_length"):
        raise ModelError(f"{architecture}: sliding-window attention is not supported")


def _gguf_rope_factors(
    metadata: Metadata, architecture: str, head_dim: int, factors: tuple[float, ...]
) -> tuple[float, ...]:
    linear = metadata.number(f"{architecture}.rope.scale_linear", 1.0)
    kind = metadata.string(f"{architecture}.rope.scaling.type", "none")
    if kind == "linear":
        linear = metadata.number(f"{architecture}.rope.scaling.factor", linear)
    elif kind != "none":
        raise ModelError(f"{architecture}: rope scaling {kind!r} is not supported")
    if linear == 1.0:
        return factors
    return tuple(linear * factor for factor in factors or (1.0,) * (head_dim // 2))


def config_from_hf(config: Mapping[str, object], biases: bool, vocab: int) -> ModelConfig:
    """Shape of a Hugging Face model from its config.json.

    biases: whether layer 0 has a bias on Q. vocab: rows of the embedding.
    Raises ModelError, naming what isn't supported.
    """
    fields = _Fields(config)
    architecture = fields.text("model_type")
    if architecture not in ARCHITECTURES:
        raise _unsupported_architecture(architecture)
    _refuse_hf_features(fields, architecture)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    attention = AttentionShape(
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=_head_size(fields.integer("head_dim", hidden // max(heads, 1))),
        qkv_bias=biases,
        qk_norm=architecture == "qwen3",
    )
    return _checked(
        ModelConfig(
            architecture=architecture,
            layers=fields.integer("num_hidden_layers"),
            hidden=hidden,
            intermediate=fields.integer("intermediate_size"),
            vocab=vocab,
            attention=attention,
            rope=_hf_rope(fields, attention.head_dim),
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_context=fields.integer("max_position_embeddings"),
        )
    )


def _refuse_hf_features(fields: "_Fields", architecture: str) -> None:
    if fields.get("quantization_config") is not None:
        raise ModelError("config.json: checkpoints that are already quantised are not supported")
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"{architecture}: activation {activation!r} is not supported")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{architecture}: partial rotary embeddings are not supported")
    kinds = fields.get("layer_types")
    kinds = kinds if isinstance(kinds, list) else []
    # Qwen has a window in every config and a switch beside it; Mistral has the window alone.
    switched_on = fields.get("use_sliding_window", architecture == "mistral") is True
    window = fields.get("sliding_window")
    windowed = isinstance(window, int) and window < fields.integer("max_position_embeddings")
    if (switched_on and windowed) or any(kind != "full_attention" for kind in kinds):
        raise ModelError(f"{architecture}: sliding-window attention is not supported")


def _hf_rope(fields: "_Fields", head_dim: int) -> Rope:
    """`rope_parameters` (with theta inside) or the older `rope_theta` and `rope_scaling`."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10_000.0))
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, (scaling.number("factor"),) * (head_dim // 2))
    if kind == "llama3":
        return Rope(theta, _llama3_factors(theta, head_dim, scaling))
    raise ModelError(f"config.json: rope scaling {kind!r} is not supported")


def _llama3_factors(theta: float, head_dim: int, scaling: "_Fields") -> tuple[float, ...]:
    """Divisors of Llama 3.1's scaling: short waves kept, long ones stretched by `factor`, and a
    linear blend of the two frequencies between (Llama 3.1 model card)."""
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    context = scaling.integer("original_max_position_embeddings")
    if not (0 < factor < 1e6 and 0 < low < high and 0 < context < 1 << 31 and theta >= 1):
        raise ModelError("config.json: rope_scaling holds impossible values")
    factors = []
    for i in range(head_dim // 2):
        turns = context * theta ** (-2 * i / head_dim) / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - kept) / factor + kept))
    return tuple(factors)


def _head_size(value: int) -> int:
    """A head size that makes whole pairs; checked before anything is sized by it."""
    if not 2 <= value <= _MAX_HEAD_SIZE or value % 2:
        raise ModelError(f"a head size of {value} is impossible: RoPE turns pairs")
    return value


def _checked(config: ModelConfig) -> ModelConfig:
    """The config, if its numbers can belong together; raises ModelError otherwise."""
    attention, rope = config.attention, config.rope
    counts = {
        "layers": config.layers,
        "hidden size": config.hidden,
        "intermediate size": config.intermediate,
        "vocabulary": config.vocab,
        "heads": attention.heads,
        "KV heads": attention.kv_heads,
    }
    for what, count in counts.items():
        if not 1 <= count <= _LIMIT:
            raise ModelError(f"the model has an impossible number of {what}: {count}")
    if attention.heads % attention.kv_heads:
        raise ModelError(f"{attention.heads} heads can't share {attention.kv_heads} KV heads")
    if not 1 <= config.max_context <= 1 << 31:
        raise ModelError(f"the model has an impossible context length: {config.max_context}")
    factors = rope.factors or (1.0,)
    if not (1 <= rope.theta <= 1e15 and 1e-6 <= min(factors) <= max(factors) <= 1e6):
        raise ModelError("the model's rope parameters are impossible")
    if not 0 < config.norm_eps < 1:
        raise ModelError(f"the model's norm epsilon is impossible: {config.norm_eps}")
    if rope.factors and len(rope.factors) != attention.head_dim // 2:
        raise ModelError(f"{len(rope.factors)} rope factors for head size {attention.head_dim}")
    return config


def _unsupported_architecture(name: str) -> ModelError:
    return ModelError(
        f"architecture {name[:64]!r} is not supported ({', '.join(ARCHITECTURES)} are)"
    )


class _Fields:
    """config.json read with the type the caller expects; a JSON null counts as missing."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self, key: str, default: object = None) -> object:
        value = self._values.get(key)
        return default if value is None else value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key, default)
        if isinstance(value, str):
            return value
        raise ModelError(f"config.json: {key!r} is missing or not a string")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise ModelError(f"config.json: {key!r} is missing or not an integer")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
            return float(value)
        raise ModelError(f"config.json: {key!r} is missing or not a number")

    def section(self, key: str) -> "_Fields":
        value = self.get(key, {})
        if isinstance(value, dict):
            return _Fields(value)
        raise ModelError(f"config.json: {key!r} is not an object")
