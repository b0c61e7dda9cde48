"""The rules of a plan that hold for every executor, checked from the plan alone."""

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.interrupts import num_tokens
from headway.core.plan import Capacity, Chunk, StepPlan
from headway.core.types import BlockId
from headway.errors import ExecutorError


class PlanFaultError(ExecutorError, AssertionError):
    """A plan broke the contract, or read a cell that doesn't hold what it must."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Device and host blocks a plan reads and writes."""

    reads: frozenset[BlockId]
    writes: frozenset[BlockId]
    host_reads: frozenset[BlockId]
    host_writes: frozenset[BlockId]

    def check_apart(self, other: "Touched") -> None:
        """Raise PlanFaultError if two plans in flight at once touch a block one of them writes."""
        both = (self.writes & (other.reads | other.writes)) | (self.reads & other.writes)
        host = self.host_writes & (other.host_reads | other.host_writes)
        host |= self.host_reads & other.host_writes
        if both or host:
            raise PlanFaultError(f"lanes share device blocks {sorted(both)}, host {sorted(host)}")


def written_blocks(chunk: Chunk, block_size: int) -> tuple[BlockId, ...]:
    """Blocks that hold the positions a chunk computes."""
    end = chunk.start + len(chunk.tokens)
    return tuple(chunk.blocks[chunk.start // block_size : -(-end // block_size)])


def check_plan(plan: StepPlan, capacity: Capacity) -> Touched:
    """Raise PlanFaultError where a plan breaks a rule that needs no memory of earlier plans."""
    for chunk in plan.chunks:
        _check_chunk(chunk, capacity)
    _check_limits(plan, capacity)
    _check_unique("chunks of a request", (c.request for c in plan.chunks))
    _check_unique("opens of a request", (o.request for o in plan.opens))
    _check_unique("closes of a request", plan.closes)
    _check_copies(plan, capacity)
    return _check_blocks(plan, capacity.block_size)


def _check_chunk(chunk: Chunk, capacity: Capacity) -> None:
    name = f"request {chunk.request}"
    end = chunk.start + len(chunk.tokens)
    if not chunk.tokens:
        raise PlanFaultError(f"{name}: a chunk without tokens")
    if chunk.start < 0 or end > capacity.max_model_len:
        raise PlanFaultError(f"{name}: positions {chunk.start}..{end} outside the model's length")
    if chunk.num_blocks > len(chunk.blocks) or end > chunk.num_blocks * capacity.block_size:
        raise PlanFaultError(f"{name}: {chunk.num_blocks} blocks don't cover {end} tokens")
    table = chunk.blocks[: chunk.num_blocks]
    if any(not 0 <= block < capacity.kv_blocks for block in table):
        raise PlanFaultError(f"{name}: a block id outside the pool")
    _check_unique(f"{name}: uses of a block in one table", table)
    if any(not 0 <= token < capacity.vocab_size for token in chunk.tokens):
        raise PlanFaultError(f"{name}: a token id outside the vocabulary")


def _check_limits(plan: StepPlan, capacity: Capacity) -> None:
    if len(plan.chunks) > capacity.max_seqs:
        raise PlanFaultError(f"{len(plan.chunks)} sequences, of {capacity.max_seqs} at most")
    if not 0 <= plan.kept <= len(plan.chunks):
        raise PlanFaultError(f"{plan.kept} chunks kept of {len(plan.chunks)}")
    if not 0 <= plan.units <= capacity.units:
        raise PlanFaultError(f"{plan.units} compute units, of {capacity.units} at most")
    tokens = num_tokens(plan.chunks)
    if tokens > capacity.max_step_tokens:
        raise PlanFaultError(f"{tokens} tokens in a step, of {capacity.max_step_tokens} at most")


def _check_copies(plan: StepPlan, capacity: Capacity) -> None:
    for copy in (*plan.swap_out, *plan.swap_in):
        if not (0 <= copy.device < capacity.kv_blocks and 0 <= copy.host < capacity.host_blocks):
            raise PlanFaultError(f"a copy outside the pools: {copy}")
    _check_unique("copies into a host block", (copy.host for copy in plan.swap_out))
    _check_unique("copies into a device block", (copy.device for copy in plan.swap_in))
    clash = {copy.host for copy in plan.swap_out} & {copy.host for copy in plan.swap_in}
    if clash:
        raise PlanFaultError(f"host blocks {sorted(clash)} are overwritten before they are read")


def _check_blocks(plan: StepPlan, block_size: int) -> Touched:
    writer: dict[BlockId, int] = {}
    for chunk in plan.chunks:
        for block in written_blocks(chunk, block_size):
            if block in writer:
                raise PlanFaultError(
                    f"requests {writer[block]} and {chunk.request} both write block {block}"
                )
            writer[block] = chunk.request
    for chunk in plan.chunks:
        for block in chunk.blocks[: chunk.num_blocks]:
            if writer.get(block, chunk.request) != chunk.request:
                raise PlanFaultError(
                    f"request {chunk.request} reads block {block}, which {writer[block]} writes"
                )
    tables = {block for c in plan.chunks for block in c.blocks[: c.num_blocks]}
    return Touched(
        reads=frozenset(tables | {copy.device for copy in plan.swap_out}),
        writes=frozenset(writer.keys() | {copy.device for copy in plan.swap_in}),
        host_reads=frozenset(copy.host for copy in plan.swap_in),
        host_writes=frozenset(copy.host for copy in plan.swap_out),
    )


def _check_unique(what: str, values: Iterable[int]) -> None:
    seen: set[int] = set()
    for value in values:
        if value in seen:
            raise PlanFaultError(f"two {what}: {value}")
        seen.add(value)
