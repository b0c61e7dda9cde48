"""A model's weights as torch tensors, dequantised into the executor's float type."""

from dataclasses import dataclass

import torch

from headway.models.quant import Encoding, dequantize, row_bytes
from headway.models.types import ModelConfig, Tensor, TensorType, Weights

_ROWS_AT_ONCE = 4096
_FLOATS = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Projections:
    """The matrices of a layer, [out, in] each; Q, K and V in one, gate and up in one."""

    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. qkv_bias, q_norm, k_norm: None where the model has none."""

    attn_norm: torch.Tensor
    ffn_norm: torch.Tensor
    projections: Projections
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TorchWeights:
    """embed, head [vocab, hidden] (the same tensor where tied), norm [hidden]."""

    embed: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor
    layers: tuple[Layer, ...]


def to_torch(weights: Weights, dtype: torch.dtype, device: torch.device) -> TorchWeights:
    """All weights on the device; a matrix at a time, so that host memory holds one twice."""
    made = _Maker(weights, dtype, device)
    embed = made.matrix("embed")
    tied = weights.tensors["head"] is weights.tensors["embed"]
    return TorchWeights(
        embed,
        embed if tied else made.matrix("head"),
        made.vector("norm"),
        tuple(made.layer(i, weights.config) for i in range(weights.config.layers)),
    )


class _Maker:
    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self._tensors = weights.tensors
        self._dtype = dtype
        self._device = device

    def layer(self, index: int, config: ModelConfig) -> Layer:
        name = f"layers.{index}"
        attention = config.attention
        biases = [f"{name}.{part}_bias" for part in "qkv"]
        return Layer(
            self.vector(f"{name}.attn_norm"),
            self.vector(f"{name}.ffn_norm"),
            Projections(
                self.matrix(*(f"{name}.{part}" for part in "qkv")),
                self.matrix(f"{name}.o"),
                self.matrix(f"{name}.gate", f"{name}.up"),
                self.matrix(f"{name}.down"),
            ),
            torch.cat([self.vector(b) for b in biases]) if attention.qkv_bias else None,
            self.vector(f"{name}.q_norm") if attention.qk_norm else None,
            self.vector(f"{name}.k_norm") if attention.qk_norm else None,
        )

    def matrix(self, *names: str) -> torch.Tensor:
        """One matrix of the rows of several."""
        tensors = [self._tensors[name] for name in names]
        rows = sum(tensor.rows for tensor in tensors)
        whole = torch.empty((rows, tensors[0].cols), dtype=self._dtype, device=self._device)
        at = 0
        for tensor in tensors:
            _fill(whole[at : at + tensor.rows], tensor)
            at += tensor.rows
        return whole

    def vector(self, name: str) -> torch.Tensor:
        """A vector in float32: norms and biases are applied at that precision."""
        whole = torch.empty((1, self._tensors[name].cols), dtype=torch.float32)
        _fill(whole, self._tensors[name])
        return whole[0].to(self._device)


def _fill(target: torch.Tensor, tensor: Tensor) -> None:
    """Into `target` [rows, cols], some rows at a time. Floats are converted where they go, which is
    sooner done on a GPU; the others are dequantised on the host."""
    encoding = Encoding[tensor.type.value]
    size = row_bytes(encoding, tensor.cols)
    floats = _FLOATS.get(tensor.type)
    for start in range(0, tensor.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, tensor.rows)
        stored = tensor.data[start * size : stop * size]
        if floats is None:
            values = torch.from_numpy(dequantize(encoding, stored).reshape(-1, tensor.cols).copy())
        else:
            values = torch.from_numpy(stored.copy()).view(floats).view(-1, tensor.cols)
        target[start:stop] = values.to(target.device)


def parameter_bytes(weights: Weights, dtype: torch.dtype) -> int:
    """Bytes that the weights take on the device."""
    unique = {id(tensor): tensor for tensor in weights.tensors.values()}.values()
    item = torch.empty((), dtype=dtype).element_size()
    return sum(
        tensor.rows * tensor.cols * (4 if tensor.type is TensorType.F32 else item)
        for tensor in unique
    )
