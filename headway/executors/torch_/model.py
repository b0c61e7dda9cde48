"""A decoder of the Llama and Qwen families: RMS norm, RoPE, grouped-query attention, SwiGLU.

The model is its weights and its shape. What a step is about arrives as arguments.
"""

import torch
from torch.nn import functional

from headway.executors.torch_.attention import Attention
from headway.executors.torch_.rows import Rows
from headway.executors.torch_.weights import Layer, TorchWeights
from headway.models.types import ModelConfig, Rope


class Transformer:
    """Shapes: x [rows, hidden], cache of a layer [blocks, 2, block_size, kv_heads, head_dim]."""

    def __init__(
        self, config: ModelConfig, weights: TorchWeights, attention: Attention, max_len: int
    ) -> None:
        self.config = config
        self._weights = weights
        self._attention = attention
        device = weights.embed.device
        self._cos, self._sin = _angles(config.rope, config.attention.head_dim, max_len, device)

    def embed(self, rows: Rows) -> torch.Tensor:
        """The tokens' embeddings."""
        return self._weights.embed[rows.tokens]

    def layer(self, index: int, x: torch.Tensor, kv: torch.Tensor, rows: Rows) -> torch.Tensor:
        """One layer; writes the rows' keys and values to its part of the cache, `kv`."""
        layer = self._weights.layers[index]
        x = x + self._attend(layer, self._norm(x, layer.attn_norm), kv, rows)
        gate, up = functional.linear(
            self._norm(x, layer.ffn_norm), layer.projections.gate_up
        ).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, layer.projections.down)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, vocab] in float32."""
        return functional.linear(self._norm(x, self._weights.norm), self._weights.head).float()

    def _attend(self, layer: Layer, x: torch.Tensor, kv: torch.Tensor, rows: Rows) -> torch.Tensor:
        shape = self.config.attention
        qkv = functional.linear(x, layer.projections.qkv)
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias.to(qkv.dtype)
        qkv = qkv.view(x.shape[0], -1, shape.head_dim)
        q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        q, k = self._rotate(q, rows.positions), self._rotate(k, rows.positions)
        block, place = rows.cells
        kv[block, 0, place], kv[block, 1, place] = k, v
        attended = self._attention(q, kv, rows)
        return functional.linear(attended.flatten(1), layer.projections.o)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return (wide * scale * weight).to(x.dtype)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [rows, heads, head_dim]: pairs (i, i + half) turned by position times frequency i."""
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        low, high = x.float().chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _angles(
    rope: Rope, head_dim: int, max_len: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [max_len, head_dim / 2] in float32, of angles taken in float64."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = torch.tensor(rope.theta, dtype=torch.float64) ** -exponents
    if rope.factors:
        frequencies = frequencies / torch.tensor(rope.factors, dtype=torch.float64)
    # A last tile may reach past the longest sequence.
    positions = torch.arange(max_len + 64, dtype=torch.float64)
    angles = positions[:, None] * frequencies
    return angles.cos().float().to(device), angles.sin().float().to(device)
