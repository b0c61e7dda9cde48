"""Modelled devices: what the data sheet says, and how much of it real kernels reach.

Every constant names where it comes from; *assumed* ones have no source and are round on purpose.
"""

from dataclasses import dataclass

from headway.errors import ConfigError

GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Peaks:
    """A data sheet.

    flops: floating point operations per second, 16 bit, dense.
    bytes_per_s: device memory bandwidth.
    memory_bytes: device memory.
    units: SMs of a GPU, cores of a CPU.
    """

    flops: float
    bytes_per_s: float
    memory_bytes: float
    units: int


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of the peaks that kernels reach, in (0, 1].

    matmul, attention: of `flops`, by linear layers and by prefill attention.
    weights, kv: of `bytes_per_s`, streaming weights and reading a paged KV cache.
    """

    matmul: float
    attention: float
    weights: float
    kv: float

    def __post_init__(self) -> None:
        """Raise ConfigError for a share outside (0, 1]."""
        for share in (self.matmul, self.attention, self.weights, self.kv):
            if not 0 < share <= 1:
                raise ConfigError(f"efficiency {share:g} is not in (0, 1]")


@dataclass(frozen=True, slots=True)
class Link:
    """Copies between device and host memory. `host_bytes`: pinned memory for swapped KV."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    host_bytes: float


@dataclass(frozen=True, slots=True)
class Host:
    """What the engine around a device adds, beyond its turn between two steps.

    door_s: from a request's arrival to its scheduler and from a commit to the answer's reader,
        together.
    interrupt_gain_s: as the engine's own option; a step must end so much sooner for a realtime
        arrival to take the lower classes out of it.
    """

    door_s: float = 0.0
    interrupt_gain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """A device that steps are timed on.

    overhead_s: launch, sampling and the host's turn, a step.
    bandwidth_by_share: (share of the units, share of the bandwidth they can draw), rising.
    weight_bytes: bytes of one weight as served.
    layer_group: a step can stop for a realtime arrival after every so many layers; 0: nowhere.
    """

    name: str
    peaks: Peaks
    efficiency: Efficiency
    link: Link
    overhead_s: float
    bandwidth_by_share: tuple[tuple[float, float], ...]
    weight_bytes: float = 2.0
    layer_group: int = 0
    host: Host = Host()

    def bandwidth_share(self, share: float) -> float:
        """Share of the bandwidth that a share of the units can draw when nobody else does."""
        low = (0.0, 0.0)
        for high in self.bandwidth_by_share:
            if share <= high[0]:
                span = (share - low[0]) / (high[0] - low[0])
                return low[1] + span * (high[1] - low[1])
            low = high
        return low[1]


# A decode-like step at batch 16 on an H200 was reported at 1.33, 1.21, 1.09, 1.08 and 1.06 of its
# whole-device time on 32, 48, 64, 80 and 96 of 132 SMs: it is bound by memory, so the inverse is
# the share of the bandwidth those SMs draw. Below 32 SMs: in proportion.
_HOPPER_CURVE = (
    (32 / 132, 1 / 1.33),
    (48 / 132, 1 / 1.21),
    (64 / 132, 1 / 1.09),
    (80 / 132, 1 / 1.08),
    (96 / 132, 1 / 1.06),
    (1.0, 1.0),
)

# matmul: 0.6 puts 2,048 tokens of Llama 3.1 8B on an H100 at 57 ms, the lower end of the published
#   estimates (57 to 86 ms); a bare bf16 product was measured at 0.80 on an H200 (790 TFLOP/s), the
#   rest goes to norms, activations and small tiles.
# attention: FlashAttention-3 reports up to 0.75 on an H100 (740 TFLOP/s) for long sequences without
#   a mask; 0.5 assumed for causal chunks.
# weights: 0.9 is a device copy measured on an H200 (4.3 of 4.8 TB/s).
# kv: 0.8 assumed for gathers of 16-token blocks.
_HOPPER = Efficiency(matmul=0.6, attention=0.5, weights=0.9, kv=0.8)

# vLLM's measurements of 2026-01-08 on an H100: 50 GB/s one way with blocks contiguous over layers.
# 64 GiB of pinned host memory assumed.
_PCIE5 = Link(50e9, 50e9, 64 * GIB)
# PCIe 4 x16 has half the rate.
_PCIE4 = Link(25e9, 25e9, 64 * GIB)

# 1 ms a step assumed: launches replayed from a graph, sampling, copies of tables, the host's turn.
_GPU_OVERHEAD_S = 0.001

# Headway's executor for GPUs launches a step in groups of four layers and can stop between two of
# them. Of 32 layers that is an eighth of a step.
_GPU_LAYER_GROUP = 4

DEVICES = {
    device.name: device
    for device in (
        Device(
            "h100",  # SXM5 data sheet: 989.4 TFLOP/s bf16 dense, 3.35 TB/s, 80 GB, 132 SMs
            Peaks(989.4e12, 3.35e12, 80e9, 132),
            _HOPPER,
            _PCIE5,
            _GPU_OVERHEAD_S,
            _HOPPER_CURVE,
            layer_group=_GPU_LAYER_GROUP,
        ),
        Device(
            "h200",  # SXM data sheet: as the H100 but 4.8 TB/s and 141 GB
            Peaks(989.4e12, 4.8e12, 141e9, 132),
            _HOPPER,
            _PCIE5,
            _GPU_OVERHEAD_S,
            _HOPPER_CURVE,
            layer_group=_GPU_LAYER_GROUP,
        ),
        Device(
            "a100",  # SXM4 80 GB data sheet: 312 TFLOP/s bf16 dense, 2.039 TB/s, 108 SMs
            Peaks(312e12, 2.039e12, 80e9, 108),
            # FlashAttention-2 reports 0.50 to 0.73 on an A100; the others assumed as on Hopper.
            _HOPPER,
            _PCIE4,
            _GPU_OVERHEAD_S,
            _HOPPER_CURVE,
            layer_group=_GPU_LAYER_GROUP,
        ),
        Device(
            # Two cores of a Zen 3 server with AVX2, SmolLM2-135M in four bits, measured with
            # Headway's own kernels: 337 GOP/s in linear layers (64 rows in 51 ms), 31 GB/s of
            # weights, 19 GB/s in attention (32 rows at context 1,000 in 39 ms). Peaks here are
            # those figures, so the efficiencies are 1 or their ratio; `--calibrate` replaces them.
            "cpu",
            Peaks(337e9, 31e9, 16 * GIB, 2),
            Efficiency(matmul=1.0, attention=0.25, weights=1.0, kv=0.61),
            Link(5e9, 5e9, 1 * GIB),
            0.0005,
            ((0.5, 0.6), (1.0, 1.0)),
            weight_bytes=0.717,
            layer_group=1,
            host=Host(interrupt_gain_s=0.02),
        ),
    )
}
"""Devices by name."""


def find_device(name: str) -> Device:
    """A device by name. Raises ConfigError for an unknown one."""
    if name not in DEVICES:
        raise ConfigError(f"device {name!r} is not one of: {', '.join(DEVICES)}")
    return DEVICES[name]
