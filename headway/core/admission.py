"""Who may enter, by policy: `tiered`, `weighted`, `fcfs`, `static` (see `docs/scheduling.md`)."""

from collections.abc import Iterable
from typing import Protocol

from headway.core.config import SchedulerConfig
from headway.core.headroom import Relief
from headway.core.queues import ClassQueue
from headway.core.reserve import promote
from headway.core.residency import Residency
from headway.core.selection import Item, select
from headway.core.sequence import Sequence, blocks_for
from headway.core.types import Lane, ServiceClass, State
from headway.core.world import World

_HYSTERESIS = 0.1
"""`weighted`: a resident counts this much more than a newcomer, or equals would trade places."""

_ONE_FOR_ALL = ServiceClass.STANDARD
"""Rank of every request where the policy ignores classes."""


class Admission(Protocol):
    """The part of a plan that differs between policies. Lives for one plan."""

    def prepare(self) -> None:
        """Before anything else in the plan."""
        ...

    def admit(self, rank: ServiceClass) -> None:
        """After the decode rows of a rank got their blocks."""
        ...

    @property
    def gap(self) -> float:
        """Fraction of Eq. 1's optimum that the selection may have missed."""
        ...


def rank_of(config: SchedulerConfig, service_class: ServiceClass) -> ServiceClass:
    """The class a request is scheduled as."""
    return _ONE_FOR_ALL if config.ignores_classes else service_class


def admission_for(world: World, residency: Residency, now: float) -> Admission:
    """The admission of the configured policy."""
    policy = world.config.policy
    if policy == "weighted":
        return WeightedAdmission(world, residency)
    if policy == "static":
        return StaticAdmission(world, residency)
    if policy == "fcfs":
        return FcfsAdmission(world, residency)
    return TieredAdmission(world, residency, now)


class TieredAdmission:
    """Eq. 1 class by class, realtime first, over fixed residents: within a class all weights are
    equal, so most requests fit when the smallest go first, around the head of the line."""

    gap = 0.0

    def __init__(self, world: World, residency: Residency, now: float) -> None:
        """For one plan."""
        self._world = world
        self._residency = residency
        self._now = now

    def prepare(self) -> None:
        """Promotions into the reserve."""
        promote(self._world, self._residency, self._now)

    def admit(self, rank: ServiceClass) -> None:
        """Seats for residents without one, then resumed work, then fresh work of the class."""
        if not self._world.roster.all_seated:
            for sequence in self._world.by_seniority(rank):
                if not sequence.seated and not self._residency.try_seat(sequence):
                    return
        blocked = _resume(self._world.queues[rank], self._residency)
        while self._residency.lane is not Lane.DECODE and self._admit_one_fresh(rank, blocked):
            pass

    def _admit_one_fresh(self, rank: ServiceClass, blocked: Sequence | None) -> bool:
        """Admit the head of the line, or what may pass it; False if nobody can be admitted."""
        queue = self._world.queues[rank]
        head = queue.head()
        if head is None or not self._residency.seat_obtainable(head):
            return False
        if blocked is not None:
            return self._admit_around(rank, queue.candidates(), blocked)
        if self._residency.try_enter(head):
            return True
        if self._now - head.request.arrival_s >= self._world.config.pass_s:
            blocked = head
        behind = (s for s in queue.candidates() if s is not head)
        return self._admit_around(rank, behind, blocked)

    def _admit_around(
        self, rank: ServiceClass, behind: Iterable[Sequence], blocked: Sequence | None
    ) -> bool:
        """Admit one of those behind somebody who has to wait."""
        world, residency = self._world, self._residency
        room = residency.room(rank)
        if room < 1 and not residency.waiting_promoted():
            return False  # whoever enters needs a block
        gate = self._relief(blocked) if blocked else None
        too_large = f"needs more than the {room} blocks left"
        for sequence in behind:
            if not sequence.promoted and not world.may_need_at_most(sequence, room):
                residency.notes.passed(sequence, too_large)
            elif gate is not None and not self._backfills(sequence, gate):
                residency.notes.passed(sequence, "would delay the head of the line")
            elif residency.try_enter(sequence):
                return True
        return False

    def _relief(self, blocked: Sequence) -> Relief:
        """When blocks for a request that has to wait will have come free."""
        world, rank = self._world, blocked.rank
        free = world.device.available(self._residency.lane) + self._residency.spare_blocks(rank)
        forecast = self._residency.forecast(rank)
        return forecast.relief(world.demand(blocked, self._residency.lane) - free)

    def _backfills(self, sequence: Sequence, gate: Relief) -> bool:
        """Whether admitting a request does not delay the one that blocks accumulate for."""
        world = self._world
        steps = world.measured.lengths.remaining(sequence)
        total = blocks_for(len(sequence.tokens) + steps, world.capacity.block_size)
        return steps <= gate.steps or total <= gate.spare_blocks


class FcfsAdmission:
    """In order of arrival, classes ignored: who does not fit is waited for."""

    gap = 0.0

    def __init__(self, world: World, residency: Residency) -> None:
        """For one plan."""
        self._world = world
        self._residency = residency

    def prepare(self) -> None:
        """Nothing."""

    def admit(self, rank: ServiceClass) -> None:
        """Resumed work, then the oldest fresh request, and so on until one does not fit."""
        queue = self._world.queues[rank]
        if _resume(queue, self._residency) is not None:
            return
        while (oldest := queue.oldest()) and self._residency.try_enter(oldest):
            pass


class StaticAdmission:
    """The baseline: a batch is fixed until its last member ends, its memory reserved to the end."""

    gap = 0.0

    def __init__(self, world: World, residency: Residency) -> None:
        """For one plan."""
        self._world = world
        self._residency = residency

    def prepare(self) -> None:
        """Nothing."""

    def admit(self, rank: ServiceClass) -> None:
        """A new batch in order of arrival, once nobody of the last one is left."""
        world, queue = self._world, self._world.queues[rank]
        if world.residents:
            return
        while (oldest := queue.oldest()) and self._residency.enter_if_free(oldest):
            pass


class WeightedAdmission:
    """Eq. 1 to the letter over all classes at once: residents may be displaced by newcomers of more
    weight per block."""

    def __init__(self, world: World, residency: Residency) -> None:
        """For one plan."""
        self._world = world
        self._residency = residency
        self.gap = 0.0

    def prepare(self) -> None:
        """Select over residents and the requests leading each queue; swap the difference."""
        world = self._world
        if not any(len(queue) for queue in world.queues.values()) and self._growth_fits():
            return
        waiting = [s for q in world.queues.values() for s in q.leading(world.capacity.max_seqs)]
        candidates = [*self._residents(), *waiting]
        items = [Item(self._value(s), self._blocks(s)) for s in candidates]
        selection = select(items, world.capacity.kv_blocks, world.capacity.max_seqs)
        self.gap = selection.gap
        chosen = {candidates[i] for i in selection.chosen}
        newcomers = [s for s in waiting if s in chosen]
        for sequence in self._residents():
            if sequence not in chosen and not sequence.in_flight:
                self._residency.preempt(sequence, newcomers[0] if newcomers else sequence)
        for sequence in newcomers:
            self._residency.enter_if_free(sequence)

    def admit(self, rank: ServiceClass) -> None:
        """All was done in `prepare`."""

    def _residents(self) -> list[Sequence]:
        return sorted(self._world.residents.values(), key=lambda s: s.seniority)

    def _growth_fits(self) -> bool:
        need = sum(self._next_blocks(s) - len(s.blocks) for s in self._world.residents.values())
        return need <= self._world.device.available(self._residency.lane)

    def _value(self, sequence: Sequence) -> float:
        bonus = 1 + _HYSTERESIS if sequence.state is State.RUNNING else 1.0
        return sequence.service_class.weight * bonus

    def _next_blocks(self, sequence: Sequence) -> int:
        size = self._world.capacity.block_size
        return max(blocks_for(sequence.computed + 1, size), len(sequence.blocks))

    def _blocks(self, sequence: Sequence) -> int:
        """k(r). A shared block counts in parts that add up to at least one over its holders."""
        world = self._world
        if sequence.state is not State.RUNNING:
            return world.total_blocks(sequence)
        parts = sum(1 / world.device.references(b) for b in sequence.blocks)
        grown = self._next_blocks(sequence) - len(sequence.blocks)
        return max(int(parts + 0.999) + grown, 1)


def _resume(queue: ClassQueue, residency: Residency) -> Sequence | None:
    """Bring preempted work back, most senior first; the first that can't come yet, if any: no room,
    or another lane's affair."""
    for sequence in queue.resumed():
        if not residency.try_enter(sequence):
            return sequence
    return None
