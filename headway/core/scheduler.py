"""The scheduler: every iteration, which sequences hold blocks, and which of them compute."""

from collections.abc import Mapping, Set
from math import ceil

from headway.core.admission import admission_for, rank_of
from headway.core.budget import FloorCredit
from headway.core.config import SchedulerConfig
from headway.core.headroom import Forecast
from headway.core.lanes import LaneChooser, Lanes
from headway.core.outcome import apply_failure, apply_result
from headway.core.picture import Picture, take_picture
from headway.core.plan import Capacity, Open, StepFailure, StepPlan, StepResult
from headway.core.prefix import PrefixChain, root_digest
from headway.core.record import Records
from headway.core.request import (
    Committed,
    Request,
    Snapshot,
    Verdict,
)
from headway.core.residency import Residency
from headway.core.sequence import Sequence, blocks_for
from headway.core.stepping import Stepping
from headway.core.tally import count_classes
from headway.core.types import Lane, RequestId, ServiceClass
from headway.core.under_way import UnderWay
from headway.core.world import Log, World
from headway.errors import ConfigError, NeverFitsError

_HEADROOM_STEPS = 16


class Scheduler:
    """Owns every request and every KV block. Not thread-safe: one thread calls it.

    records: what the last plans decided and why; may be read from any thread.
    """

    def __init__(
        self, capacity: Capacity, config: SchedulerConfig, lanes: LaneChooser | None = None
    ) -> None:
        """`lanes`: who divides the compute units; without it there is the unified lane alone.
        Raises ConfigError if the executor's capacity can't work."""
        if capacity.kv_blocks < 1 or capacity.block_size < 1 or capacity.max_seqs < 1:
            raise ConfigError("at least one KV block, one token a block and one seat are needed")
        if capacity.max_step_tokens < capacity.max_seqs + capacity.block_size:
            raise ConfigError(
                f"max step tokens {capacity.max_step_tokens} must be at least the seats plus a "
                f"block: {capacity.max_seqs + capacity.block_size}"
            )
        self._world = World(capacity, config)
        self._lanes = Lanes(self._world, lanes)
        self._credit = FloorCredit(config.floor_share, 2 * capacity.block_size)
        self.records = Records(config.records)
        self._under_way: dict[Lane, UnderWay] = {}
        self._arrivals = 0
        self._headroom_blocks = self._headroom_due = 0
        self._gap = 0.0

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises NeverFitsError if its prompt can never be admitted, ValueError if the id is taken.
        """
        world, size = self._world, self._world.capacity.block_size
        if request.id in world.live:
            raise ValueError(f"request {request.id} is already known")
        need = blocks_for(len(request.prompt) + 1, size)
        if need > world.capacity.kv_blocks or len(request.prompt) >= world.capacity.max_model_len:
            raise NeverFitsError(
                f"a prompt of {len(request.prompt)} tokens can't be served: the longest is "
                f"{self.max_prompt_tokens}",
                "prompt",
            )
        self._arrivals += 1
        sequence = Sequence(
            request=request,
            number=self._arrivals,
            tokens=list(request.prompt),
            prefix=PrefixChain(root_digest(world.config.model_key, request.tenant), size),
            block_size=size,
            rank=rank_of(world.config, request.service_class),
            progress_s=request.arrival_s,
        )
        world.live[request.id] = sequence
        if request.limits.deadline_s != float("inf"):
            world.note_deadline(sequence)
        leader = world.live.get(request.group) if request.group is not None else None
        if leader is None or leader is sequence or leader.computed_high >= len(request.prompt):
            world.queue(sequence)
        else:
            world.hold(sequence, leader.id)

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that is accepted."""
        return self._world.longest - 1

    def abort(self, request: RequestId) -> None:
        """End a request at the next plan or commit; unknown or finished ids are ignored."""
        sequence = self._world.live.get(request)
        if sequence is not None and not sequence.aborted:
            sequence.aborted = True
            self._world.aborted.append(sequence)

    def due(self, now: float) -> tuple[Lane, ...]:
        """Lanes whose next step may be planned now: UNIFIED alone, or PREFILL and DECODE, each as
        soon as its last step is committed. Where the arrangement changes, lanes wait for each
        other."""
        return self._lanes.due(self._under_way, now)

    def overdue(self, now: float) -> bool:
        """Whether a deadline has passed that no plan or commit has looked at yet."""
        deadlines = self._world.deadlines
        return bool(deadlines) and deadlines[0][0] <= now

    def plan(self, lane: Lane, now: float, unready: Set[RequestId] = frozenset()) -> StepPlan:
        """Decide the lane's next step; may be empty. Every plan is committed, empty ones too.

        unready: requests that can't compute in this step, such as rows whose mask is not made yet:
            they are paused.
        Raises RuntimeError if the lane's previous plan was not committed, or if a plan of the other
        arrangement (UNIFIED alone, or PREFILL and DECODE) is under way.
        """
        if lane in self._under_way or any(
            (other is Lane.UNIFIED) is not (lane is Lane.UNIFIED) for other in self._under_way
        ):
            raise RuntimeError(f"a plan that excludes one on lane {lane.name} is not committed yet")
        world = self._world
        world.step += 1
        world.end_due(now)
        if world.realtime_about:
            world.realtime_seen_s = now
        residency = Residency(world, lane, now)
        admission = admission_for(world, residency, now)
        admission.prepare()
        stepping = Stepping(world, residency, self._credit, now, unready)
        for rank in ServiceClass:
            stepping.decode_rows(rank)
            admission.admit(rank)
            stepping.decode_rows(rank)  # of those that have just come back
            if rank is ServiceClass.REALTIME:
                stepping.note_realtime()
            stepping.prefill(rank)
        stepping.floor()
        stepping.unstick()
        self._gap = admission.gap
        if world.config.records:
            self.records.add(stepping.record())
        self._under_way[lane] = UnderWay.of(world, residency, stepping, now)
        plan = self._as_plan(lane, residency, stepping)
        self._lanes.note(lane, len(plan.chunks))
        return plan

    def commit(
        self,
        plan: StepPlan,
        outcome: StepResult | StepFailure,
        verdicts: Mapping[RequestId, Verdict],
        now: float,
    ) -> Committed:
        """Apply a plan's outcome and report all that changed since the last commit."""
        world, under_way = self._world, self._under_way.pop(plan.lane, None)
        if under_way is None or plan.step != under_way.step:
            raise RuntimeError(f"plan {plan.step} is not under way")
        world.device.settle(plan.lane)
        for sequence in (*under_way.touched, *under_way.computing):
            sequence.in_flight = False
        if isinstance(outcome, StepFailure):
            apply_failure(world, plan, under_way, outcome)
        else:
            apply_result(world, plan, under_way, outcome, verdicts, now)
            if under_way.lower_wanted:
                self._credit.settle(*under_way.computed_tokens(outcome.interrupted))
        world.end_due(now)
        log, world.log = world.log, Log()
        return Committed(
            tuple(log.emitted), tuple(log.finished), tuple(log.admitted), tuple(log.preempted)
        )

    def snapshot(self) -> Snapshot:
        """An immutable picture of the state now."""
        world = self._world
        return Snapshot(
            step=world.step,
            device=world.device.counts(),
            host=world.host.counts(),
            classes=count_classes(world),
            headroom_blocks=self._headroom(),
            selection_gap=self._gap,
            promoted=len(world.promoted),
            throughput=world.meter.read(),
            step_error=world.measured.steps.median_error,
            arrangement=world.arrangement,
        )

    def picture(self) -> Picture:
        """Every block and sequence as it is now: a snapshot in detail, and slower to take."""
        return take_picture(self._world, self.records.latest())

    def _headroom(self) -> int:
        """Looked at anew every so many steps: it changes slowly, and takes as long as a plan."""
        world = self._world
        if world.step >= self._headroom_due or not world.residents:
            self._headroom_due = world.step + _HEADROOM_STEPS
            everyone = Forecast(
                world.residents.values(), world.measured.lengths, world.capacity.block_size
            )
            share = world.measured.caution.share
            self._headroom_blocks = ceil(everyone.headroom_blocks() * share)
        return self._headroom_blocks

    def _as_plan(self, lane: Lane, residency: Residency, stepping: Stepping) -> StepPlan:
        world = self._world
        chunks = stepping.chunks()
        opens = []
        for sequence in stepping.computing:
            if not sequence.opened:
                sequence.opened = True
                request = sequence.request
                opens.append(Open(request.id, request.prompt, request.sampling))
        closes, world.closes = tuple(world.closes), []
        return StepPlan(
            step=world.step,
            lane=lane,
            opens=tuple(opens),
            closes=closes,
            swap_out=tuple(residency.swap_out),
            swap_in=tuple(residency.swap_in),
            chunks=chunks,
            units=world.arrangement.units(lane),
            kept=stepping.kept,
        )
