"""How long a step takes: a roofline over four kinds of kernel that run one after the other.

    linear layers       max(2 · weights · tokens / flops,        weight bytes / bandwidth)
    output head         max(2 · head weights · sampled / flops,  head bytes / bandwidth)
    prefill attention   max(flops per pair · pairs / flops,      KV bytes / bandwidth)
    decode attention    max(flops per pair · pairs / flops,      KV bytes / bandwidth)

plus a constant a step, and the copies between device and host. On a share of the units arithmetic
is in proportion, bandwidth as the device's curve says. Activations are not counted, nor is a KV
block read once for several rows that share it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.plan import Chunk, StepPlan
from headway.executors.simulated import StepCost
from headway.simulate.devices import Device
from headway.simulate.shapes import ModelShape


@dataclass(slots=True)
class Work:
    """What a step computes, summed over its chunks.

    tokens: all tokens. sampled: rows the head is computed for.
    prefill_pairs, decode_pairs: query tokens times the context each sees, itself included.
    prefill_kv_tokens: tokens of KV that prefill chunks read, each chunk its own.
    """

    tokens: int = 0
    sampled: int = 0
    prefill_pairs: int = 0
    prefill_kv_tokens: int = 0
    decode_pairs: int = 0

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> "Work":
        """The work of a plan's chunks; one of a single token is a decode row."""
        tokens = sampled = pairs = kv_tokens = decode_pairs = 0
        for chunk in chunks:
            size = len(chunk.tokens)
            tokens += size
            sampled += chunk.sample
            if size == 1:
                decode_pairs += chunk.start + 1
            else:
                pairs += size * chunk.start + size * (size + 1) // 2
                kv_tokens += chunk.start + size
        return cls(tokens, sampled, pairs, kv_tokens, decode_pairs)


@dataclass(slots=True)
class Seconds:
    """Time of a step's kernels. `memory`: the part bound by memory; `moved`: bytes."""

    total: float = 0.0
    memory: float = 0.0
    moved: float = 0.0

    def add(self, compute_s: float, memory_s: float, moved: float) -> None:
        """One more kernel: the longer of the two times counts."""
        self.total += max(compute_s, memory_s)
        self.moved += moved
        if memory_s > compute_s:
            self.memory += memory_s


class Roofline:
    """Times the work of a step on one device for one model."""

    def __init__(self, device: Device, model: ModelShape) -> None:
        self.device = device
        self.model = model
        self._layer_bytes = model.layer_weights * device.weight_bytes
        self._head_bytes = model.head_weights * device.weight_bytes

    def seconds(self, work: Work, share: float = 1.0) -> Seconds:
        """Time of a step's kernels on a share of the units, with the memory to itself."""
        device, model = self.device, self.model
        flops = device.peaks.flops * share
        bandwidth = device.peaks.bytes_per_s * device.bandwidth_share(share)
        matmul, attention = device.efficiency.matmul * flops, device.efficiency.attention * flops
        stream, gather = device.efficiency.weights * bandwidth, device.efficiency.kv * bandwidth
        time = Seconds(device.overhead_s)
        if work.tokens:
            operations = 2 * model.layer_weights * work.tokens
            time.add(operations / matmul, self._layer_bytes / stream, self._layer_bytes)
        if work.sampled:
            operations = 2 * model.head_weights * work.sampled
            time.add(operations / matmul, self._head_bytes / stream, self._head_bytes)
        for pairs, kv_tokens in (
            (work.prefill_pairs, work.prefill_kv_tokens),
            (work.decode_pairs, work.decode_pairs),
        ):
            moved = kv_tokens * model.kv_bytes
            time.add(model.attention_flops * pairs / attention, moved / gather, moved)
        return time


class RooflineTimer:
    """Costs of plans on the units they ask for; see `executors.simulated.StepTimer`."""

    def __init__(self, roofline: Roofline, block_bytes: int) -> None:
        self._roofline = roofline
        self._block_bytes = block_bytes
        device = roofline.device
        group = device.layer_group
        self._parts = -(-roofline.model.config.layers // group) if group else 0

    @property
    def bytes_per_s(self) -> float:
        """What kernels reach of the device's bandwidth."""
        device = self._roofline.device
        return device.peaks.bytes_per_s * device.efficiency.weights

    def cost(self, plan: StepPlan) -> StepCost:
        """Copies at the link's rate, then the kernels. A plan without chunks still costs its launch
        and its copies."""
        device = self._roofline.device
        share = plan.units / device.peaks.units if plan.units else 1.0
        seconds = self._roofline.seconds(Work.of(plan.chunks), share)
        return StepCost(
            copy_out_s=len(plan.swap_out) * self._block_bytes / device.link.out_bytes_per_s,
            copy_in_s=len(plan.swap_in) * self._block_bytes / device.link.in_bytes_per_s,
            compute_s=seconds.total,
            memory_s=seconds.memory,
            bytes_moved=seconds.moved,
            parts=self._parts,
        )
