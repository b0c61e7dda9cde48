"""Which residents compute in a step, and how many tokens each: the second decision of a step.

Order: class by class, decode rows before prefill chunks. A resident left out is paused.
"""

from collections.abc import Set

from headway.core.budget import FloorCredit, StepBudget
from headway.core.plan import Chunk
from headway.core.record import Computed, StepRecord
from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.step_model import StepLoad
from headway.core.types import Lane, RequestId, ServiceClass
from headway.core.world import World


class Stepping:
    """Fills one step. Lives for one plan."""

    def __init__(
        self,
        world: World,
        residency: Residency,
        credit: FloorCredit,
        now: float,
        unready: Set[RequestId] = frozenset(),
    ) -> None:
        """Works out the step's time limit from who is about. `unready` don't compute."""
        self._unready = unready
        self._world = world
        self._residency = residency
        self._credit = credit
        self._realtime_first = False
        self._chunks: dict[Sequence, int] = {}
        self._tried_rows: set[Sequence] = set()
        self._granted_block = False
        self._lane = residency.lane
        self._model = world.step_model(self._lane)
        self.limit_s = self._time_limit(now)
        self._budget = StepBudget(self._model, world.capacity.max_step_tokens, self.limit_s)

    @property
    def load(self) -> StepLoad:
        """What the step computes."""
        load = StepLoad()
        for sequence, tokens in self._chunks.items():
            load = load.plus(tokens, sequence.computed, sequence.decoding)
        return load

    @property
    def tokens(self) -> int:
        """Tokens the step computes."""
        return sum(self._chunks.values())

    @property
    def lower_tokens(self) -> int:
        """Tokens of the classes below realtime in the step."""
        realtime = ServiceClass.REALTIME
        return sum(n for s, n in self._chunks.items() if s.rank is not realtime)

    def decode_rows(self, rank: ServiceClass) -> None:
        """Add the class's decode rows, each tried once a plan: all of realtime's, of the others
        those that fit, the ones left out longest first."""
        rows = [s for s in self._ready(rank) if s.decoding and s not in self._tried_rows]
        realtime = rank is ServiceClass.REALTIME
        if self._realtime_first and not realtime:
            return
        chosen = []
        for sequence in sorted(rows, key=lambda s: (s.last_step, s.seniority)):
            if not realtime and not self._budget.fits_row(sequence.computed):
                break
            self._budget.take(1, sequence.computed, decoding=True)
            chosen.append(sequence)
        self._tried_rows.update(chosen)
        for sequence in sorted(chosen, key=lambda s: s.seniority):
            self._add(sequence, 1)

    def prefill(self, rank: ServiceClass) -> None:
        """Add prefill chunks of the class, most senior first, as long as they fit. The first one of
        the highest class present gets a block whatever the limit."""
        if self._realtime_first and rank is not ServiceClass.REALTIME:
            return
        size = self._world.capacity.block_size
        kept = self._floor_tokens() if rank is ServiceClass.REALTIME else 0
        for sequence in self._ready(rank):
            if sequence.decoding or sequence.pending == 0 or sequence in self._chunks:
                continue
            room = self._budget.chunk_room(sequence.computed)
            room = min(room, self._budget.tokens_left - kept)
            if not self._granted_block and not self._chunks_above(rank):
                room = max(room, min(size, self._budget.tokens_left))
            tokens = min(room, sequence.pending)
            if tokens < min(size, sequence.pending):
                return
            self._granted_block = True
            self._add(sequence, tokens)  # it entered with blocks for all of its tokens
            self._budget.take(tokens, sequence.computed, decoding=False)

    def note_realtime(self) -> None:
        """After realtime's turn: while it waits or prefills, the others get floor credit only.

        The decode lane goes on: it does not share units with the prefill. Where realtime waits
        and nothing of it can compute, it waits for what a promoted request holds: then the others
        go on, or nobody would.
        """
        realtime = ServiceClass.REALTIME
        if self._lane is Lane.DECODE:
            return
        waiting = len(self._world.queues[realtime]) > 0
        prefilling = any(not s.decoding for s in self._seated(realtime))
        self._realtime_first = prefilling or (waiting and bool(self._chunks))

    def floor(self) -> None:
        """Spend the floor credit on lower-class residents left out: promoted first, then those
        left out longest."""
        spent = self.lower_tokens
        size = self._world.capacity.block_size
        lower = [s for s in self._lower() if s not in self._chunks]
        for sequence in sorted(lower, key=lambda s: (not s.promoted, s.last_step, s.seniority)):
            tokens = min(size, sequence.pending)
            if tokens > self._budget.tokens_left:
                continue
            if spent + tokens > self._credit.tokens(self.tokens + tokens):
                return  # the credit is saved up for it
            if self._add(sequence, tokens):
                self._budget.take(tokens, sequence.computed, sequence.decoding)
                spent += tokens

    def _lower(self) -> list[Sequence]:
        """Residents of the classes below realtime that could compute."""
        classes = (ServiceClass.STANDARD, ServiceClass.BATCH)
        return [s for c in classes for s in self._ready(c) if s.pending]

    def _floor_tokens(self) -> int:
        """Tokens that realtime's prefill leaves for what the floor credit will buy."""
        size = self._world.capacity.block_size
        wanted = sum(min(size, s.pending) for s in self._lower())
        return min(wanted, self._credit.tokens(self._world.capacity.max_step_tokens))

    def unstick(self) -> None:
        """If nobody computes on any lane, make the most senior resident do: every step makes
        progress."""
        residents = list(self._world.residents.values())
        if self._chunks or any(s.in_flight for s in residents):
            return
        seated = [s for s in residents if s.seated and s.id not in self._unready]
        for sequence in sorted(seated, key=lambda s: s.seniority)[:1]:
            if not sequence.works_on(self._lane):
                return
            tokens = min(self._world.capacity.block_size, sequence.pending)
            if self._residency.grow_at_any_cost(sequence, sequence.computed + tokens):
                self._chunks[sequence] = tokens

    def chunks(self) -> tuple[Chunk, ...]:
        """The plan's chunks; marks who computes and who is paused."""
        step = self._world.step
        for sequence in self._world.residents.values():
            if not sequence.in_flight and sequence.works_on(self._lane):
                sequence.in_last_step = sequence in self._chunks
        for sequence in (*self._residency.moved, *self._residency.entered):
            sequence.in_flight = True
        chunks = []
        for sequence, tokens in self._chunks.items():
            sequence.in_flight = True
            sequence.last_step = step
            start, end = sequence.computed, sequence.computed + tokens
            chunks.append(
                Chunk(
                    request=sequence.id,
                    tokens=tuple(sequence.tokens[start:end]),
                    start=start,
                    blocks=sequence.blocks,
                    num_blocks=len(sequence.blocks),
                    sample=end == len(sequence.tokens),
                )
            )
        return tuple(chunks)

    def record(self) -> StepRecord:
        """The plan for people. Call it before `chunks`, which marks requests as in flight."""
        world, residency, load = self._world, self._residency, self.load
        left = [
            s
            for s in world.residents.values()
            if s not in self._chunks and not s.in_flight and s.works_on(self._lane)
        ]
        for sequence in left:
            if sequence.id in self._unready:
                residency.notes.paused(sequence, "its grammar's mask is not made yet")
        usual = "the step was full" if self.limit_s == float("inf") else "the step's time limit"
        if self._realtime_first:
            usual = "realtime waits or prefills"
        return StepRecord(
            step=world.step,
            lane=self._lane,
            limit_s=self.limit_s,
            predicted_s=self._model.predict(load),
            computed=tuple(Computed(s.id, n, s.decoding) for s, n in self._chunks.items()),
            entered=tuple(s.id for s in residency.entered),
            evicted=tuple(residency.notes.evicted),
            passed_over=residency.notes.passed_over(residency.entered),
            paused=residency.notes.left_out(left, usual),
        )

    def _add(self, sequence: Sequence, tokens: int) -> bool:
        """Add a chunk if the resident can have the blocks; drops those it displaced."""
        if sequence in self._residency.preempted:
            return False
        if not self._residency.grow(sequence, sequence.computed + tokens):
            return False
        self._chunks[sequence] = tokens
        for victim in self._residency.preempted & self._chunks.keys():
            del self._chunks[victim]
        return True

    def _seated(self, rank: ServiceClass) -> list[Sequence]:
        """Residents of the rank that this plan may compute, most senior first."""
        return [
            s
            for s in self._world.by_seniority(rank)
            if s.seated and not s.in_flight and s.wanted_by is None and s.works_on(self._lane)
        ]

    def _ready(self, rank: ServiceClass) -> list[Sequence]:
        """Those of them that can compute in this step."""
        return [s for s in self._seated(rank) if s.id not in self._unready]

    def _chunks_above(self, rank: ServiceClass) -> bool:
        """Whether a higher class than this one computes in the step."""
        return any(s.rank < rank for s in self._chunks)

    def _time_limit(self, now: float) -> float:
        """Longest the step may take: the ITL target while realtime decodes, a share of the TTFT
        target while realtime was seen lately, else no limit."""
        world, targets = self._world, self._world.config.targets
        rows = [s for s in self._seated(ServiceClass.REALTIME) if s.decoding]
        if now - world.realtime_seen_s > world.config.realtime_memory_s:
            return float("inf")
        load = StepLoad(0, 0, max(len(rows), 1), sum(s.computed for s in rows))
        realtime_step_s = self._model.predict(load)
        limit_s = targets.max_step(realtime_step_s)
        return min(limit_s, targets.itl(realtime_step_s)) if rows else limit_s
