"""What has to be remembered of a plan until its commit."""

from dataclasses import dataclass

from headway.core.bound import StepRoom, step_room
from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.step_model import StepLoad
from headway.core.stepping import Stepping
from headway.core.types import Lane, ServiceClass
from headway.core.world import World


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A plan between `plan` and `commit`.

    computing: requests of its chunks, in their order. copied: requests whose KV it copies.
    touched: these, and those it admitted.
    lower_wanted: whether a resident of the lower classes had tokens to compute (the floor property
    counts such steps). held_to_s: what an ITL target left the step; inf for none.
    """

    step: int
    load: StepLoad
    tokens: int
    lower_tokens: int
    lower_wanted: bool
    computing: tuple[Sequence, ...]
    copied: tuple[Sequence, ...]
    touched: tuple[Sequence, ...]
    room: StepRoom
    planned_s: float
    held_to_s: float

    def computed_tokens(self, interrupted: bool) -> tuple[int, int]:
        """All that the step has computed, and the lower classes' part of it."""
        if interrupted:
            return self.tokens - self.lower_tokens, 0
        return self.tokens, self.lower_tokens

    @classmethod
    def of(cls, world: World, residency: Residency, stepping: Stepping, now: float) -> "UnderWay":
        """From the short-lived objects that made the plan."""
        load, tokens = stepping.load, stepping.tokens
        return cls(
            step=world.step,
            load=load,
            tokens=tokens,
            lower_tokens=stepping.lower_tokens,
            lower_wanted=world.roster.below(ServiceClass.REALTIME),
            computing=tuple(stepping.computing),
            copied=tuple(residency.moved),
            touched=(*residency.moved, *residency.entered),
            room=_room(world, residency.lane, load.decode_rows),
            planned_s=now,
            held_to_s=stepping.held_to_s,
        )


def _room(world: World, lane: Lane, rows: int) -> StepRoom:
    """The prefill lane decodes nothing; its steps say nothing of decode throughput."""
    if lane is Lane.PREFILL:
        return StepRoom(0, 0.0)
    return step_room(world.capacity, world.residents.values(), rows, world.device)
