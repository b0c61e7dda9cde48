"""What must be true of a scheduler between any two calls. For tests and debug runs."""

from headway.core.scheduler import Scheduler
from headway.core.sequence import Sequence
from headway.core.types import State
from headway.core.world import World


def check(scheduler: Scheduler) -> None:
    """Raise RuntimeError, naming the first invariant that does not hold."""
    world = scheduler._world
    live = list(world.live.values())
    world.device.check([b for s in live for b in s.blocks])
    world.host.check([b for s in live for b in s.host_blocks])
    if world.seats_free < 0:
        raise RuntimeError(f"{-world.seats_free} seats too many are taken")
    world.roster.check()
    if set(world.residents.values()) != {s for s in live if s.state is State.RUNNING}:
        raise RuntimeError("the residents are not exactly the running requests")
    for sequence in live:
        _check_sequence(world, sequence)
    _check_queues(world, live)


def _check_sequence(world: World, sequence: Sequence) -> None:
    capacity, name = world.capacity, f"request {sequence.id} ({sequence.state.value})"
    if sequence.state is State.RUNNING:
        if sequence.computed > len(sequence.blocks) * capacity.block_size:
            raise RuntimeError(f"{name} has computed more than its blocks hold")
        if len(sequence.blocks) > capacity.kv_blocks:
            raise RuntimeError(f"{name} holds more than the pool")
    elif sequence.blocks or sequence.seated:
        raise RuntimeError(f"{name} holds device blocks or a seat")
    if sequence.state is State.SWAPPED:
        if len(sequence.host_blocks) * capacity.block_size < sequence.computed:
            raise RuntimeError(f"{name} has lost part of its KV")
    elif sequence.state is State.WAITING and (sequence.computed or sequence.host_blocks):
        raise RuntimeError(f"{name} has KV though it waits")
    if not sequence.computed < len(sequence.tokens):
        raise RuntimeError(f"{name} has nothing left to compute")
    last = sequence.computed == len(sequence.tokens) - 1
    if sequence.decoding is not (last and sequence.computed >= sequence.prompt_tokens):
        raise RuntimeError(f"{name} decodes, or not, and its tokens say otherwise")


def _check_queues(world: World, live: list[Sequence]) -> None:
    """Whoever does not run is queued or held, so that it is looked at again."""
    queued = sum(len(queue) for queue in world.queues.values())
    held = sum(len(children) for children in world.held.values())
    idle = sum(1 for s in live if s.state in (State.WAITING, State.SWAPPED))
    if queued + held != idle:
        raise RuntimeError(f"{idle} requests wait, {queued} are queued and {held} held")
    for leader in world.held:
        if leader not in world.live:
            raise RuntimeError(f"choices are held for request {leader}, which has ended")
