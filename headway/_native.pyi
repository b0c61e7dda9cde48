"""Types of the compiled module, by hand; tests/native/test_stub.py holds them to the module."""

import enum
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headway.core.plan import Masks, StepPlan

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

class WeightType(enum.Enum):
    Q4_0 = 0
    Q4_1 = 1
    Q8_0 = 2
    Q4_K = 3
    Q6_K = 4

class Isa(enum.Enum):
    portable = 0
    avx2 = 1
    avx512vnni = 2
    amx = 3

def supports(isa: Isa, /) -> bool: ...
def best_isa() -> Isa: ...

class PackedMatrix:
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def panels(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def dequantize(self) -> _Floats: ...

class Activations:
    @property
    def q(self) -> npt.NDArray[np.int8]: ...
    @property
    def scale(self) -> _Floats: ...
    @property
    def sum(self) -> _Floats: ...
    @property
    def halves(self) -> npt.NDArray[np.int16]: ...

def pack(type: WeightType, cols: int, sources: Sequence[_Bytes]) -> PackedMatrix: ...
def pack_interleaved(type: WeightType, cols: int, gate: _Bytes, up: _Bytes) -> PackedMatrix: ...
def dequantize(type: WeightType, cols: int, rows: _Bytes) -> _Floats: ...
def quantize(isa: Isa, x: _Floats) -> Activations: ...
def rmsnorm(isa: Isa, x: _Floats, weight: _Floats, eps: float) -> Activations: ...
def silu_mul(isa: Isa, gate: _Floats, up: _Floats) -> Activations: ...
def gemm(
    isa: Isa,
    weights: PackedMatrix,
    acts: Activations,
    out: _Floats,
    tokens: tuple[int, int],
    panels: tuple[int, int],
    add: bool = False,
) -> None: ...
def swiglu(isa: Isa, gate_up: PackedMatrix, acts: Activations) -> Activations: ...

class ModelShape:
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool
    qk_norm: bool
    tied: bool
    rope_theta: float
    rope_factors: Sequence[float]
    norm_eps: float
    def __init__(self) -> None: ...

class Capacity:
    kv_blocks: int
    host_blocks: int
    max_seqs: int
    max_step_tokens: int
    max_model_len: int
    vocab: int
    units: int
    def __init__(self) -> None: ...

class RunnerOptions:
    capacity: Capacity
    spin: bool
    isa: Isa
    def __init__(self) -> None: ...

_Logprobs = tuple[float, tuple[tuple[int, float], ...]]

class Step:
    def wait(self, timeout_s: float, patience_s: float = -1) -> bool: ...
    def done(self) -> bool: ...
    def interrupt(self) -> None: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def error(self) -> str: ...
    @property
    def timing(self) -> tuple[float, float, float]: ...
    def samples(self) -> list[tuple[int, int, _Logprobs | None, str]]: ...
    def parts(self) -> dict[str, float]: ...
    def trace(self) -> tuple[_Floats, _Floats]: ...

class Executor:
    traced: bool
    def __init__(
        self,
        shape: ModelShape,
        matrices: Mapping[str, tuple[WeightType, int, int, _Bytes]],
        vectors: Mapping[str, _Floats],
        options: RunnerOptions,
        cache_path: str = "",
        cache_key: str = "",
    ) -> None: ...
    def submit(self, plan: StepPlan, masks: Masks) -> Step: ...
    def stop(self) -> None: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def mapped(self) -> bool: ...
    @property
    def cache_problem(self) -> str: ...
    def fill_block(self, host: bool, block: int, half: int) -> None: ...
    def read_block(self, host: bool, block: int) -> bytes: ...

def uniform(seed: int, choice: int, position: int) -> float: ...
