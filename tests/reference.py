"""The forward pass in plain numpy, float64 on dequantised weights: what an executor should do.

With `quantised`, activations are rounded as the executor rounds them (int8 for each token and 32
inputs, K and V to float16), so that layers can be compared closely; without, they stay exact.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.models.quant import Encoding, dequantize
from headway.models.types import Tensor, TensorType, Weights

Floats = npt.NDArray[np.float64]

_GROUP = 32


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of one layer as they are cached, [kv_heads, tokens, head_dim] each."""

    k: Floats
    v: Floats


@dataclass(frozen=True, slots=True)
class Layered:
    """A layer's output [tokens, hidden], and how near each token came to another rounding.

    edge: least distance of a token's activations from the middle between two values of their int8
    grid, as a fraction of the largest in their group; a token near 0 may be rounded either way.
    """

    out: Floats
    edge: Floats
    cache: Cache


class Reference:
    """A model in numpy. `quantised`: round activations as the executor does; `dtype`: float32 for
    long texts."""

    def __init__(
        self, weights: Weights, quantised: bool, dtype: type[np.floating[Any]] = np.float64
    ) -> None:
        self.config = weights.config
        self.quantised = quantised
        self._tensors: dict[str, Floats] = {
            name: _values(tensor, dtype) for name, tensor in weights.tensors.items()
        }
        self._edge: Floats = np.empty(0)

    def rounding(self) -> "Reference":
        """The same model, its weights shared, with activations rounded as the executor does."""
        other = copy(self)
        other.quantised = True
        return other

    def embed(self, tokens: list[int]) -> Floats:
        """Rows of the embedding, [tokens, hidden]."""
        rows: Floats = self._tensors["embed"][tokens]
        return rows

    def layer(self, index: int, x: Floats, cache: Cache | None = None) -> Layered:
        """One layer over a whole sequence from position 0; x [tokens, hidden]. With `cache`, its
        tokens attend to that, instead of the keys and values computed here."""
        self._edge = np.full(len(x), np.inf)
        name = f"layers.{index}."
        normed = self._norm(x, name + "attn_norm")
        own = self._cache(name, normed)
        x = x + self._product(name + "o", self._attention(name, normed, cache or own))
        normed = self._norm(x, name + "ffn_norm")
        gate, up = self._product(name + "gate", normed), self._product(name + "up", normed)
        inner = gate / (1 + np.exp(-gate)) * up
        return Layered(x + self._product(name + "down", inner), self._edge, own)

    def logits(self, x: Floats) -> Floats:
        """Logits [tokens, vocab] of the last layer's output."""
        self._edge = np.full(len(x), np.inf)
        return self._product("head", self._norm(x, "norm"))

    def forward(self, tokens: list[int]) -> Floats:
        """Logits of every position of a sequence."""
        x = self.embed(tokens)
        for index in range(self.config.layers):
            x = self.layer(index, x).out
        return self.logits(x)

    def _cache(self, name: str, x: Floats) -> Cache:
        heads = self.config.attention.kv_heads
        k, v = self._heads(name, "k", x, heads), self._heads(name, "v", x, heads)
        if self.quantised:
            k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
        return Cache(k, v)

    def _attention(self, name: str, x: Floats, cache: Cache) -> Floats:
        shape = self.config.attention
        q = self._heads(name, "q", x, shape.heads)
        group = shape.heads // shape.kv_heads
        k, v = np.repeat(cache.k, group, axis=0), np.repeat(cache.v, group, axis=0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(shape.head_dim)
        scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights @ v / weights.sum(axis=-1, keepdims=True)
        joined: Floats = mixed.transpose(1, 0, 2).reshape(len(x), -1)
        return joined

    def _heads(self, name: str, kind: str, x: Floats, heads: int) -> Floats:
        """Q, K or V as [heads, tokens, head_dim]: bias, norm, rotary embedding."""
        shape = self.config.attention
        y = self._product(name + kind, x)
        if shape.qkv_bias:
            y = y + self._tensors[f"{name}{kind}_bias"]
        y = y.reshape(len(x), heads, shape.head_dim).transpose(1, 0, 2)
        if kind == "v":
            return y
        if shape.qk_norm:
            y = self._rms(y) * self._tensors[f"{name}{kind}_norm"]
        return self._rope(y)

    def _rope(self, y: Floats) -> Floats:
        half = y.shape[-1] // 2
        frequencies = self.config.rope.theta ** (-np.arange(half) / half)
        if self.config.rope.factors:
            frequencies = frequencies / np.array(self.config.rope.factors)
        angles = np.arange(y.shape[1])[:, None] * frequencies
        a, b, cos, sin = (
            y[..., :half],
            y[..., half:],
            np.cos(angles).astype(y.dtype),
            np.sin(angles).astype(y.dtype),
        )
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _norm(self, x: Floats, name: str) -> Floats:
        return self._rms(x) * self._tensors[name]

    def _rms(self, x: Floats) -> Floats:
        normed: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config.norm_eps)
        return normed

    def _product(self, name: str, x: Floats) -> Floats:
        return (self._rounded(x) if self.quantised else x) @ self._tensors[name].T

    def _rounded(self, x: Floats) -> Floats:
        groups = x.reshape(len(x), -1, _GROUP)
        scale = np.abs(groups).max(axis=-1, keepdims=True) / 127
        steps = np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0)
        edge = np.abs(steps - np.floor(steps) - 0.5).min(axis=(1, 2)) / 127
        self._edge = np.minimum(self._edge, edge)
        rounded: Floats = (np.rint(steps) * scale).reshape(x.shape)
        return rounded


def _values(tensor: Tensor, dtype: type[np.floating[Any]]) -> Floats:
    if tensor.type is TensorType.F32:
        return tensor.data.view(np.float32).astype(dtype)
    flat = dequantize(Encoding[tensor.type.value], tensor.data)
    return flat.reshape(tensor.rows, tensor.cols).astype(dtype, copy=False)
