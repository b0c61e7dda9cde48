"""Tiny random models, made on the spot: every architecture the executor knows, in milliseconds."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models, pre_tokenizers

from headway.models.loader import LoadedModel
from headway.models.quant import quantize
from headway.models.tokenizer import SpecialIds, Spelling, Tokenizer
from headway.models.types import AttentionShape, ModelConfig, Rope, Tensor, TensorType, Weights


@dataclass(frozen=True, slots=True)
class Tiny:
    """Shape of a tiny model. Rows are quantised to `matrices`, embedding and head to `embedding`.

    The vocabulary is no multiple of any vector width, on purpose.
    """

    hidden: int = 64
    layers: int = 2
    intermediate: int = 96
    vocab: int = 203
    attention: AttentionShape = AttentionShape(heads=3, kv_heads=1, head_dim=32)
    tied: bool = True
    types: tuple[TensorType, TensorType] = field(default=(TensorType.Q4_1, TensorType.Q8_0))


LLAMA = Tiny()
LLAMA_64 = Tiny(hidden=96, attention=AttentionShape(heads=6, kv_heads=2, head_dim=64))
QWEN2 = Tiny(attention=AttentionShape(heads=4, kv_heads=2, head_dim=32, qkv_bias=True), tied=False)
QWEN3 = Tiny(attention=AttentionShape(heads=7, kv_heads=1, head_dim=32, qk_norm=True))
ALL = {"llama": LLAMA, "llama_64": LLAMA_64, "qwen2": QWEN2, "qwen3": QWEN3}


def tiny_weights(tiny: Tiny = LLAMA, seed: int = 0, scale: float = 1.0) -> Weights:
    """A random model. `scale` multiplies embedding and head: larger means surer of its tokens."""
    rng = np.random.default_rng(seed)
    matrix, embedding = tiny.types
    a = tiny.attention

    def dense(rows: int, cols: int, kind: TensorType = matrix, gain: float = 1.0) -> Tensor:
        values = rng.normal(size=(rows, cols)) * gain / np.sqrt(cols)
        return Tensor(kind, rows, cols, quantize(kind, values.astype(np.float32)))

    def vector(size: int, mean: float) -> Tensor:
        values = (mean + 0.1 * rng.normal(size=size)).astype(np.float32)
        return Tensor(TensorType.F32, 1, size, values.view(np.uint8))

    embed = dense(tiny.vocab, tiny.hidden, embedding, gain=scale)
    tensors = {
        "embed": embed,
        "head": embed if tiny.tied else dense(tiny.vocab, tiny.hidden, embedding, gain=scale),
        "norm": vector(tiny.hidden, 1.0),
    }
    q_rows, kv_rows = a.heads * a.head_dim, a.kv_heads * a.head_dim
    for i in range(tiny.layers):
        layer = {
            "attn_norm": vector(tiny.hidden, 1.0),
            "ffn_norm": vector(tiny.hidden, 1.0),
            "q": dense(q_rows, tiny.hidden, gain=2.0),
            "k": dense(kv_rows, tiny.hidden, gain=2.0),
            "v": dense(kv_rows, tiny.hidden),
            "o": dense(tiny.hidden, q_rows),
            "gate": dense(tiny.intermediate, tiny.hidden),
            "up": dense(tiny.intermediate, tiny.hidden),
            "down": dense(tiny.hidden, tiny.intermediate),
        }
        if a.qkv_bias:
            layer |= {"q_bias": vector(q_rows, 0.0), "k_bias": vector(kv_rows, 0.0)}
            layer |= {"v_bias": vector(kv_rows, 0.0)}
        if a.qk_norm:
            layer |= {"q_norm": vector(a.head_dim, 1.0), "k_norm": vector(a.head_dim, 1.0)}
        tensors |= {f"layers.{i}.{name}": tensor for name, tensor in layer.items()}
    return Weights(_config(tiny), tensors, fingerprint=f"tiny-{seed}")


def tokens(count: int, vocab: int = LLAMA.vocab, seed: int = 0) -> list[int]:
    """Random token ids."""
    ids: npt.NDArray[np.int64] = np.random.default_rng(seed).integers(0, vocab, count)
    return [int(i) for i in ids]


def _config(tiny: Tiny) -> ModelConfig:
    return ModelConfig(
        architecture="tiny",
        layers=tiny.layers,
        hidden=tiny.hidden,
        intermediate=tiny.intermediate,
        vocab=tiny.vocab,
        attention=tiny.attention,
        rope=Rope(theta=10_000.0),
        norm_eps=1e-5,
        max_context=4096,
    )


def tiny_loaded() -> LoadedModel:
    """A random model over bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(core, Spelling.BYTE_LEVEL, SpecialIds(), len(alphabet))
    weights = tiny_weights(Tiny(vocab=256))
    return LoadedModel(weights, tokenizer, None, frozenset({7}), "tiny", ())
