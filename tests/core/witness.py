"""A scheduler that keeps what each of its plans did, for properties over whole runs."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from headway.core.config import SchedulerConfig
from headway.core.lanes import LaneChooser
from headway.core.plan import Capacity, StepFailure, StepPlan, StepResult
from headway.core.request import Committed, Verdict
from headway.core.residency import Residency
from headway.core.scheduler import Scheduler
from headway.core.sequence import Sequence
from headway.core.types import Lane, RequestId, ServiceClass, State


@dataclass(slots=True, eq=False)
class Step:
    """One plan.

    admitted: requests it brought in for the first time. in_flight: steps under way right after it
    was made, itself included. ended_s: when it was committed.
    lower_tokens, tokens: computed for the classes below realtime, and in all.
    lower_left_out: whether a resident of those classes computed less than it could have: it had a
        seat, and blocks for a chunk.
    idle_heads: heads of the line it left waiting though there was room for them.
    """

    lane: Lane
    planned_s: float
    admitted: frozenset[RequestId]
    lower_tokens: int
    tokens: int
    lower_left_out: bool
    idle_heads: tuple[str, ...] = ()
    in_flight: tuple["Step", ...] = ()
    ended_s: float = float("inf")


class Witness(Scheduler):
    """Keeps a `Step` for each plan, empty ones too."""

    def __init__(
        self, capacity: Capacity, config: SchedulerConfig, lanes: LaneChooser | None = None
    ) -> None:
        super().__init__(capacity, config, lanes)
        self.steps: list[Step] = []
        self._open: dict[Lane, Step] = {}

    def plan(self, lane: Lane, now: float, unready: Set[RequestId] = frozenset()) -> StepPlan:
        before, residents = {s.id for s in self._heads()}, set(self._world.residents)
        plan = super().plan(lane, now, unready)
        step = self._open[lane] = self._step(plan, now, residents)
        if lane is Lane.UNIFIED:
            left = (head for head in self._heads() if head.id in before)
            step.idle_heads = tuple(self._with_room(left, now))
        step.in_flight = tuple(self._open.values())
        self.steps.append(step)
        return plan

    def commit(
        self,
        plan: StepPlan,
        outcome: StepResult | StepFailure,
        verdicts: Mapping[RequestId, Verdict],
        now: float,
    ) -> Committed:
        self._open.pop(plan.lane).ended_s = now
        return super().commit(plan, outcome, verdicts, now)

    def _step(self, plan: StepPlan, now: float, before: Set[RequestId]) -> Step:
        world = self._world
        entered = (s.id for s in world.live.values() if s.admission_step == plan.step)
        tokens = {c.request: len(c.tokens) for c in plan.chunks}
        lower = [r for r in tokens if world.live[r].rank is not ServiceClass.REALTIME]
        return Step(
            lane=plan.lane,
            planned_s=now,
            admitted=frozenset(entered),
            lower_tokens=sum(tokens[r] for r in lower),
            tokens=sum(tokens.values()),
            lower_left_out=any(
                self._could_compute_more(world.residents[r], tokens.get(r, 0))
                for r in before & world.residents.keys()
            ),
        )

    def _could_compute_more(self, sequence: Sequence, tokens: int) -> bool:
        """Whether one of the lower classes has a seat, and blocks for more than these tokens."""
        chunk = min(sequence.pending, sequence.block_size)
        room = sequence.computed + chunk <= len(sequence.blocks) * sequence.block_size
        lower = sequence.rank is not ServiceClass.REALTIME
        return lower and sequence.seated and room and tokens < chunk

    def _heads(self) -> list[Sequence]:
        """Who is next in each class: preempted work, else the head of the line."""
        heads = ((*queue.resumed(), queue.head()) for queue in self._world.queues.values())
        return [first[0] for first in heads if first[0] is not None]

    def _with_room(self, heads: Iterable[Sequence], now: float) -> Iterable[str]:
        """Heads that need no more than free + evictable - headroom - reserved, with a seat left."""
        world = self._world
        residency = Residency(world, Lane.UNIFIED, now)
        for head in heads:
            # For its own class and those above; a lower class's resident that ends soon makes room,
            # so that of all classes may be less.
            headroom = residency.headroom_blocks(head.rank)
            promoted = [s for s in world.promoted if s is not head]
            held_back = [s for s in promoted if s.state is not State.RUNNING]
            reserved = sum(world.demand(s, Lane.UNIFIED) for s in held_back)
            seats = world.seats_free - sum(1 for s in promoted if not s.seated)
            room = world.device.available(Lane.UNIFIED) - headroom - reserved
            if seats > 0 and world.demand(head, Lane.UNIFIED) <= room:
                yield f"step {world.step}: request {head.id} left waiting with room for {room}"
