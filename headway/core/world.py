"""Everything the scheduler knows, and the few operations that change who holds what.

`enter`, `preempt` and `leave` are the only ways blocks and states of a request change hands;
planning decides, these apply.
"""

from collections.abc import Mapping, Set
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from headway.core.blocks import BlockPool
from headway.core.bound import BoundMeter
from headway.core.config import SchedulerConfig
from headway.core.headroom import Caution, OutputLengths
from headway.core.lane_models import StepModels
from headway.core.plan import BlockCopy, Capacity
from headway.core.queues import ClassQueue
from headway.core.request import Admitted, Emitted, Finished, Preempted, Usage
from headway.core.roster import Roster
from headway.core.sequence import Sequence, blocks_for, protected_until
from headway.core.states import move
from headway.core.step_model import RunningMean, StepModel
from headway.core.types import (
    Arrangement,
    BlockId,
    FinishReason,
    Lane,
    PreemptKind,
    RequestId,
    ServiceClass,
    State,
)
from headway.core.victims import CopyRates, used_blocks

_PRIOR_COPY_S = 1e-4
_FEW_ENDED = 64
"""Ended requests whose deadline is to come that are kept at the least, beside as many as live."""


class Log:
    """What happened since the last commit, in order."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.emitted: list[Emitted] = []
        self.finished: list[Finished] = []
        self.admitted: list[Admitted] = []
        self.preempted: list[Preempted] = []


class Measured:
    """What the scheduler learns from results: step times, copy rates, answer lengths."""

    def __init__(self, units: int) -> None:
        """Priors only; `units`: compute units of the executor."""
        self.steps = StepModels(units)
        self.copy_out_s = RunningMean(_PRIOR_COPY_S)
        self.copy_in_s = RunningMean(_PRIOR_COPY_S)
        self.lengths = OutputLengths()
        self.caution = Caution()

    @property
    def copy_rates(self) -> CopyRates:
        """Seconds a block, each way."""
        return CopyRates(self.copy_out_s.value, self.copy_in_s.value)


class World:
    """Live requests, the two block pools, the queues, and what was measured.

    longest: tokens that a sequence may have, prompt and answer.
    planned: the last step planned on each lane.
    """

    def __init__(self, capacity: Capacity, config: SchedulerConfig) -> None:
        """Empty pools and queues."""
        self.capacity = capacity
        self.longest = min(capacity.max_model_len, capacity.kv_blocks * capacity.block_size)
        self.config = config
        self.device = BlockPool(capacity.kv_blocks)
        self.host = BlockPool(capacity.host_blocks)
        self.live: dict[RequestId, Sequence] = {}
        self.roster = Roster()
        self.queues = {c: ClassQueue() for c in ServiceClass}
        self.held: dict[RequestId, list[Sequence]] = {}
        self.promoted: list[Sequence] = []
        self.deadlines: list[tuple[float, int, Sequence]] = []
        self.aborted: list[Sequence] = []
        self.closes: list[RequestId] = []
        self.measured = Measured(capacity.units)
        self.arrangement = Arrangement()
        self.meter = BoundMeter(capacity)
        self.log = Log()
        self.step = 0
        self.planned: dict[Lane, int] = {}
        self.realtime_seen_s = float("-inf")

    @property
    def seats_free(self) -> int:
        """Seats nobody holds."""
        return self.capacity.max_seqs - self.roster.seats_taken

    @property
    def residents(self) -> Mapping[RequestId, Sequence]:
        """Running requests, in the order they entered."""
        return self.roster.members

    @property
    def latest_steps(self) -> Set[int]:
        """The last steps of the lanes there are: a resident runs if it is in one, else pauses."""
        return {self.planned.get(lane, -2) for lane in self.arrangement.lanes}

    def step_model(self, lane: Lane) -> StepModel:
        """The model of a lane's steps in the present arrangement."""
        return self.measured.steps.of(lane, self.arrangement.units(lane))

    def by_seniority(self, rank: ServiceClass) -> tuple[Sequence, ...]:
        """Residents of a rank, most senior first."""
        return self.roster.of(rank)

    @property
    def realtime_about(self) -> bool:
        """Whether a realtime request is alive."""
        realtime = ServiceClass.REALTIME
        return bool(self.roster.of(realtime)) or len(self.queues[realtime]) > 0

    def promote(self, sequence: Sequence) -> None:
        """Let a request into the reserve, until it ends."""
        self.roster.promote(sequence)
        self.promoted.append(sequence)

    def queue(self, sequence: Sequence) -> None:
        """Put a waiting or swapped request in its class's queue."""
        queue = self.queues[sequence.rank]
        if sequence.resuming:
            queue.add_resumed(sequence)
        else:
            queue.add_fresh(sequence, self.total_blocks(sequence))

    def total_blocks(self, sequence: Sequence) -> int:
        """Blocks a request takes when it enters: ceil((tokens + 1) / s) when it is fresh; its
        whole KV and one block, at most K_max, when it resumes. Policy `static` takes what prompt
        and max_tokens may need."""
        size, most = self.capacity.block_size, self.capacity.kv_blocks
        if self.config.policy == "static":
            return min(blocks_for(sequence.most_tokens, size), most)
        if sequence.resuming:
            return min(blocks_for(len(sequence.tokens), size) + 1, most)
        return blocks_for(len(sequence.tokens) + 1, size)

    def demand(
        self, sequence: Sequence, lane: Lane, dropped: Mapping[BlockId, int] = MappingProxyType({})
    ) -> int:
        """How many of the lane's available blocks entering would take, beyond prefix hits, once
        the references in `dropped` are gone."""
        hits = self._prefix_hits(sequence)
        evictable = self.device.evictable(hits, lane, dropped)
        return self.total_blocks(sequence) - len(hits) + evictable

    def may_need_at_most(self, sequence: Sequence, blocks: int) -> bool:
        """False only if `demand` of a waiting request is more than so many blocks: then the prefix
        cache would have to hold its first blocks up to some number, and lacks that one."""
        missing = self.total_blocks(sequence) - blocks
        if missing <= 0:
            return True
        if missing > (len(sequence.tokens) - 1) // self.capacity.block_size:
            return False
        return self.device.finds(sequence.prefix.digest(sequence.tokens, missing - 1))

    def enter(self, sequence: Sequence, lane: Lane, now: float) -> list[BlockCopy]:
        """Give a waiting or swapped request its blocks and a seat; the copies that bring it back.

        Raises RuntimeError, with nothing changed, if `demand` exceeds the available blocks.
        """
        total, hits = self.total_blocks(sequence), self._prefix_hits(sequence)
        if total - len(hits) + self.device.evictable(hits, lane) > self.device.available(lane):
            raise RuntimeError(f"request {sequence.id} does not fit")
        self.queues[sequence.rank].remove(sequence)
        resuming, swapped = sequence.resuming, sequence.state is State.SWAPPED
        self.device.acquire(hits)
        sequence.blocks = hits + self.device.allocate(total - len(hits), lane)
        copies = [
            BlockCopy(device, host)
            for device, host in zip(sequence.blocks, sequence.host_blocks, strict=False)
        ]
        if not swapped:
            sequence.has_computed(len(hits) * self.capacity.block_size)
            sequence.prefix.published = len(hits)
        if resuming:
            sequence.protected_until = protected_until(
                sequence.computed_high, self.capacity.block_size
            )
        else:
            sequence.admission_step = self.step
            sequence.cached = sequence.computed
            queued_s = now - sequence.request.arrival_s
            self.log.admitted.append(Admitted(sequence.id, queued_s, sequence.cached))
        move(sequence, State.RUNNING)
        self.roster.add(sequence)
        return copies

    def preempt(self, sequence: Sequence, kind: PreemptKind, lane: Lane) -> list[BlockCopy]:
        """Take a resident's blocks and seat; the copies that save its KV.

        Blocks that are copied may be used by the lane's plan alone: its copies run before anything
        is written.
        """
        copies: list[BlockCopy] = []
        self.log.preempted.append(Preempted(sequence.id, kind, len(sequence.blocks)))
        sequence.preemptions += 1
        if kind is PreemptKind.SWAP:
            used = used_blocks(sequence)
            sequence.host_blocks = self.host.allocate(len(used), lane)
            copies = [BlockCopy(d, h) for d, h in zip(used, sequence.host_blocks, strict=True)]
            move(sequence, State.SWAPPED)
        else:
            move(sequence, State.WAITING)
        self._release_device(sequence, lane if copies else None)
        if kind is PreemptKind.RECOMPUTE:
            sequence.has_computed(0)
            sequence.prefix.published = 0
        self.queue(sequence)
        return copies

    def drop_host(self, sequence: Sequence) -> None:
        """Release a request's host blocks: it is back, or it will never come back."""
        self.host.release(sequence.host_blocks)
        sequence.host_blocks = []

    def forget_kv(self, sequence: Sequence) -> None:
        """A copy of this request's KV, out or in, failed: whatever it has is dropped and computed
        again."""
        if sequence.state is State.RUNNING:
            self._release_device(sequence)
            move(sequence, State.WAITING)
            self.queue(sequence)
        else:
            move(sequence, State.WAITING)
        self.drop_host(sequence)
        sequence.has_computed(0)
        sequence.prefix.published = 0

    def note_deadline(self, sequence: Sequence) -> None:
        """End a live request once its time is over. Those that ended before theirs are forgotten
        when they are most of what is noted: a deadline may be years away."""
        if len(self.deadlines) > 2 * len(self.live) + _FEW_ENDED:
            kept = [entry for entry in self.deadlines if entry[2].state is not State.FINISHED]
            heapify(kept)
            self.deadlines = kept
        heappush(self.deadlines, (sequence.limits.deadline_s, sequence.number, sequence))

    def end_due(self, now: float) -> None:
        """End aborted requests and those past their deadline, which is the reason where both are
        true. One that is in a step ends at its commit: it is looked at again then."""
        due = self.aborted
        while self.deadlines and self.deadlines[0][0] <= now:
            due.append(heappop(self.deadlines)[2])
        self.aborted = []
        for sequence in due:
            if sequence.state is State.FINISHED:
                continue
            if sequence.in_flight:
                self.aborted.append(sequence)
            elif now < sequence.limits.deadline_s:
                self.leave(sequence, FinishReason.ABORT)
            else:
                self.leave(sequence, FinishReason.DEADLINE, "the deadline has passed")

    def leave(self, sequence: Sequence, reason: FinishReason, message: str = "") -> None:
        """End a request in any live state and take back all it holds."""
        if sequence.state is State.RUNNING:
            self._release_device(sequence)
        elif sequence.held and sequence.request.group is not None:
            self.held[sequence.request.group].remove(sequence)
        else:
            self.queues[sequence.rank].remove(sequence)
        self.drop_host(sequence)
        move(sequence, State.FINISHED)
        del self.live[sequence.id]
        if sequence.promoted:
            self.promoted.remove(sequence)
        if sequence.opened:
            self.closes.append(sequence.id)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.meter.add_final_length(len(sequence.tokens))
        usage = Usage(
            sequence.prompt_tokens, sequence.cached, sequence.generated, sequence.recomputed
        )
        self.log.finished.append(Finished(sequence.id, reason, usage, message))
        self.release_children(sequence.id)

    def release_children(self, leader: RequestId) -> None:
        """Queue the choices that waited for a group's first prefill."""
        for child in self.held.pop(leader, []):
            child.held = False
            self.queue(child)

    def hold(self, sequence: Sequence, leader: RequestId) -> None:
        """Keep a further choice back until its group's first has computed the prompt."""
        sequence.held = True
        self.held.setdefault(leader, []).append(sequence)

    def publish_full_blocks(self, sequence: Sequence) -> None:
        """Offer the full blocks a sequence has computed to the prefix index."""
        size = self.capacity.block_size
        full = sequence.computed // size
        digests = sequence.prefix.digests(sequence.tokens, full)
        for i in range(sequence.prefix.published, full):
            tokens = sequence.tokens[i * size : (i + 1) * size]
            self.device.publish(sequence.blocks[i], digests[i], tokens)
        sequence.prefix.published = full

    def _release_device(self, sequence: Sequence, copied_by: Lane | None = None) -> None:
        if copied_by is None:
            self.device.release(sequence.blocks)
        else:
            self.device.release_after_copy(sequence.blocks, copied_by)
        sequence.blocks = []
        self.roster.remove(sequence)

    def _prefix_hits(self, sequence: Sequence) -> list[BlockId]:
        """Cached leading blocks; never the block of the last token, which is always computed."""
        if sequence.state is not State.WAITING or not sequence.request.cacheable:
            return []
        size = self.capacity.block_size
        most = (len(sequence.tokens) - 1) // size
        digests = sequence.prefix.digests(sequence.tokens, most)
        return self.device.match(digests, sequence.tokens, size)
