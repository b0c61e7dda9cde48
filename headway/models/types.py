"""What a loaded model is made of: configuration and tensors, whatever file they came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt


class TensorType(Enum):
    """How a tensor's values are stored. Block formats are GGUF's, byte for byte.

    Matrices reach the CPU executor as one of Q4_0, Q4_1, Q8_0, Q4_K, Q6_K (other types are
    requantised to Q8_0 by the loader), others in a float type too if they ask for it; vectors as
    F32.
    """

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q8_0 = "Q8_0"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight. A matrix computes y[rows] = W[rows, cols] · x[cols]; rows are quantised apart.

    data: the rows one after the other, raw bytes of `type`, shape [bytes]; may be memory-mapped.
    rows: output features; 1 for a vector.
    cols: input features; a multiple of 32 for matrices (of 256 for K-quants).
    """

    type: TensorType
    rows: int
    cols: int
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding, always in the half-split form (GPT-NeoX); loaders permute Q and K rows of
    files that store the interleaved form.

    Frequency i of head_dim / 2 is theta ** (-2 i / head_dim) / factors[i].
    factors: one divisor a frequency, or empty where all are 1. Every kind of scaling that only
        stretches frequencies (linear, Llama 3.x) is reduced to this by the loader.
    """

    theta: float
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of one layer. `qk_norm`: RMS norm on each head of Q and K before RoPE (Qwen3).
    `qkv_bias`: biases on Q, K and V (Qwen2)."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only transformer of the Llama family (RMS norm, RoPE, GQA, SwiGLU).

    max_context: positions the model was trained for.
    norm_eps: added to the mean square in each RMS norm.
    """

    architecture: str
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    attention: AttentionShape
    rope: Rope
    norm_eps: float
    max_context: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A model an executor can run.

    tensors, by name (i = layer from 0):
        embed [vocab, hidden], head [vocab, hidden] (the same Tensor object as embed where tied),
        norm [hidden], layers.i.attn_norm, layers.i.ffn_norm [hidden],
        layers.i.{q,k,v,o,gate,up,down}, layers.i.{q,k,v}_bias, layers.i.{q,k}_norm [head_dim].
    fingerprint: hex digest that differs whenever the weights do; keys caches and prefix hashes.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    fingerprint: str
