"""Which lanes are to be planned now, and with how many units: changes of arrangement in order."""

from collections.abc import Collection
from typing import Protocol

from headway.core.lane_models import StepModels
from headway.core.outlook import ClassDemand, Demand
from headway.core.sequence import Sequence
from headway.core.types import Arrangement, Lane, ServiceClass
from headway.core.world import World


class LaneChooser(Protocol):
    """Chooses how lanes share the compute units; `core.controller.Controller` is the one used."""

    @property
    def first(self) -> Arrangement:
        """What to begin with."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether it stays at that for ever; then it is not asked again."""
        ...

    def decide(
        self, present: Arrangement, demand: Demand, models: StepModels, now: float
    ) -> Arrangement:
        """The arrangement to use from now on, given the one in use."""
        ...


class Lanes:
    """Keeps the world's arrangement as the chooser wants it.

    Lanes of the old arrangement and of the new one are never in flight together. A step of prefill
    may be long, so that lane is stopped first, and decode goes on until it has ended; then a change
    costs a decode step's time at most.
    """

    def __init__(self, world: World, chooser: LaneChooser | None) -> None:
        """Without a chooser there is the unified lane alone."""
        self._world = world
        self._chooser = None if chooser is None or chooser.fixed else chooser
        self._prefill_idle = False
        self._wanted: Arrangement | None = None
        world.arrangement = Arrangement() if chooser is None else chooser.first

    def due(self, busy: Collection[Lane], now: float) -> tuple[Lane, ...]:
        """Lanes to plan now, of those that are not busy."""
        world = self._world
        if self._chooser is not None and self._wanted is None:
            present, models = world.arrangement, world.measured.steps
            wanted = self._chooser.decide(present, self._demand(), models, now)
            self._wanted = wanted if wanted != present else None
        if self._wanted is not None:
            if busy:
                return (Lane.DECODE,) if set(busy) == {Lane.PREFILL} else ()
            world.arrangement, self._wanted = self._wanted, None
            self._prefill_idle = False
        return tuple(lane for lane in world.arrangement.lanes if lane not in busy)

    def note(self, lane: Lane, chunks: int) -> None:
        """Hear of a plan that was made."""
        if lane is Lane.PREFILL:
            self._prefill_idle = not chunks

    def _demand(self) -> Demand:
        world, realtime = self._world, ServiceClass.REALTIME
        chooser = self._chooser
        short = chooser is not None and not chooser.first.split
        if short and not any(s.rank is realtime and s.decoding for s in world.residents.values()):
            return _NO_REALTIME_ROWS
        members: dict[ServiceClass, list[Sequence]] = {rank: [] for rank in ServiceClass}
        for sequence in world.residents.values():
            if sequence.seated:
                members[sequence.rank].append(sequence)
        classes = {rank: _class_demand(residents) for rank, residents in members.items()}
        due = any(wanted.prompt_tokens for wanted in classes.values())
        if world.arrangement.split and not self._prefill_idle:
            due = due or any(len(queue) for queue in world.queues.values())
        return Demand(classes, due)


_NO_REALTIME_ROWS = Demand({rank: ClassDemand() for rank in ServiceClass}, prompts_due=False)
"""Looked at no further, since nothing is gained then by short steps."""


def _class_demand(residents: list[Sequence]) -> ClassDemand:
    rows = [s.computed for s in residents if s.decoding]
    prompts = [s for s in residents if not s.decoding and s.pending]
    return ClassDemand(
        rows=len(rows),
        row_context=sum(rows) // max(len(rows), 1),
        prompt_tokens=sum(s.pending for s in prompts),
        prompt_context=min(prompts, key=lambda s: s.seniority).computed if prompts else 0,
    )
