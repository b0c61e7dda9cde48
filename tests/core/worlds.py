"""Worlds without a scheduler: requests put where a test wants them."""

from headway.core.config import SchedulerConfig
from headway.core.prefix import PrefixChain, root_digest
from headway.core.request import Request
from headway.core.sequence import Sequence, blocks_for
from headway.core.types import Lane
from headway.core.world import World
from headway.testing import make_capacity


def world_of(
    kv_blocks: int = 16,
    host_blocks: int = 16,
    max_seqs: int = 8,
    config: SchedulerConfig | None = None,
    max_step_tokens: int = 256,
) -> World:
    """An empty world with blocks of 16 tokens."""
    capacity = make_capacity(
        kv_blocks, host_blocks, max_seqs=max_seqs, max_step_tokens=max_step_tokens
    )
    return World(capacity, config or SchedulerConfig())


def waiting(world: World, request: Request) -> Sequence:
    """A request in its class's queue; requests arrive in the order of their ids."""
    sequence = Sequence(
        request=request,
        number=request.id,
        tokens=list(request.prompt),
        prefix=PrefixChain(root_digest(b"", request.tenant), world.capacity.block_size),
        block_size=world.capacity.block_size,
        rank=request.service_class,
        progress_s=request.arrival_s,
    )
    world.live[sequence.id] = sequence
    world.queue(sequence)
    return sequence


def decoding(world: World, request: Request, generated: int = 1) -> Sequence:
    """A resident that has computed all but the last of its generated tokens."""
    sequence = waiting(world, request)
    world.enter(sequence, Lane.UNIFIED, request.arrival_s)
    sequence.tokens += range(generated)
    sequence.has_computed(len(sequence.tokens) - 1)
    sequence.computed_high = sequence.computed
    needed = blocks_for(sequence.computed, world.capacity.block_size) - len(sequence.blocks)
    sequence.blocks += world.device.allocate(max(needed, 0), Lane.UNIFIED)
    world.publish_full_blocks(sequence)
    return sequence
