"""Which residents compute in a step, and how many tokens each: the second decision of a step.

Order: class by class, decode rows before prefill chunks. A resident left out is paused.
"""

from collections.abc import Iterable, Set
from functools import cached_property
from itertools import chain
from math import inf
from operator import attrgetter

from headway.core.budget import FloorCredit, StepBudget, long_enough
from headway.core.plan import Chunk
from headway.core.record import Draft, StepRecord
from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.step_model import StepLoad
from headway.core.types import Lane, RequestId, ServiceClass
from headway.core.world import World


class _Ready:
    """Residents of a rank that a plan of the lane may compute, most senior first.

    rows: whose next chunk is a decode row. prompts: the others. seated: both.
    version: the roster's when they were looked for. rows_tried: whether the rows were looked at.
    """

    __slots__ = ("prompts", "rows", "rows_tried", "seated", "version")

    def __init__(self, members: Iterable[Sequence], lane: Lane, version: int) -> None:
        seated = [s for s in members if s.seated and not s.in_flight and s.wanted_by is None]
        rows = [s for s in seated if s.decoding]
        prompts = [s for s in seated if not s.decoding] if len(rows) < len(seated) else []
        if lane is Lane.DECODE:
            seated, prompts = rows, []
        elif lane is Lane.PREFILL:
            seated, rows = prompts, []
        self.seated, self.rows, self.prompts = seated, rows, prompts
        self.version = version
        self.rows_tried = False


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
        self._ready: dict[ServiceClass, _Ready] = {}
        self._tried_rows: dict[ServiceClass, set[Sequence]] = {}
        self._granted_block = False
        self._lane = residency.lane
        self._model = world.step_model(self._lane)
        self.limit_s = self._time_limit(now)
        self._long_enough_s = long_enough(self._model) if self.limit_s < inf else inf
        self._budget = StepBudget(self._model, world.capacity.max_step_tokens, self.limit_s)

    @property
    def computing(self) -> Iterable[Sequence]:
        """Who computes, in the order of the chunks."""
        return self._chunks

    @property
    def kept(self) -> int:
        """Chunks that go on when the step is interrupted: realtime's, which come first; all of
        them where the policy ignores classes."""
        if self._world.config.ignores_classes:
            return len(self._chunks)
        realtime = ServiceClass.REALTIME
        return sum([s.rank is realtime for s in self._chunks])

    @property
    def held_to_s(self) -> float:
        """What an ITL target leaves the step; inf where no answer of realtime waits for it."""
        return self.limit_s if self._of(ServiceClass.REALTIME).rows else inf

    @property
    def tokens(self) -> int:
        """Tokens the step computes."""
        return sum(self._chunks.values())

    @property
    def lower_tokens(self) -> int:
        """Tokens of the classes below realtime in the step."""
        realtime = ServiceClass.REALTIME
        return sum([n for s, n in self._chunks.items() if s.rank is not realtime])

    def decode_rows(self, rank: ServiceClass) -> None:
        """Add the class's decode rows, each tried once a plan: all of realtime's, of the others
        those that fit, the ones left out longest first."""
        ready = self._of(rank)
        realtime = rank is ServiceClass.REALTIME
        if ready.rows_tried or (self._realtime_first and not realtime):
            return
        ready.rows_tried = True
        tried = self._tried_rows.setdefault(rank, set())
        rows = self._able(ready.rows)
        if tried:
            rows = [s for s in rows if s not in tried]
        order = sorted(rows, key=_last_step)  # in order of seniority already, and so it stays
        contexts = [s.computed for s in order]
        count = len(order) if realtime else self._budget.rows_room(contexts)
        self._budget.take_rows(contexts[:count])
        tried.update(order[:count])
        chosen = rows
        if count < len(rows):
            picked = set(order[:count])
            chosen = [s for s in rows if s in picked]
        size, chunks = self._world.capacity.block_size, self._chunks
        for sequence in chosen:
            if sequence.computed < len(sequence.blocks) * size:
                chunks[sequence] = 1
            else:
                self._add(sequence, 1)

    def prefill(self, rank: ServiceClass) -> None:
        """Add prefill chunks of the class, most senior first, as long as they fit. The first one of
        the highest class present gets a block whatever the limit. While realtime is about, those of
        the lower classes make no step longer than pays: the next arrival would wait for it."""
        realtime = rank is ServiceClass.REALTIME
        prompts = self._able(self._of(rank).prompts)
        if not prompts or (self._realtime_first and not realtime):
            return
        size = self._world.capacity.block_size
        limit_s = min(self.limit_s, self._long_enough_s)
        floor = StepLoad()
        if realtime:
            limit_s = self.limit_s = self._prompt_limit()
            floor = self._floor_load(self._budget.chunk_room(prompts[0].computed, limit_s))
        for sequence in prompts:
            room = self._budget.chunk_room(sequence.computed, limit_s, floor)
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
        prefilling = bool(self._of(realtime).prompts)
        self._realtime_first = prefilling or (waiting and bool(self._chunks))

    def floor(self) -> None:
        """Spend the floor credit on lower-class residents left out: promoted first, then those
        left out longest."""
        spent = self.lower_tokens
        for sequence, tokens in self._floor_chunks():
            if tokens > self._budget.tokens_left:
                continue
            if spent + tokens > self._credit.tokens(self.tokens + tokens):
                return  # the credit is saved up for it
            if self._add(sequence, tokens):
                self._budget.take(tokens, sequence.computed, sequence.decoding)
                spent += tokens

    def _floor_load(self, prompt_tokens: int) -> StepLoad:
        """What the floor credit will buy beside so many tokens of realtime's prompts: they leave
        time and tokens for it."""
        load = StepLoad()
        most = self._credit.tokens(self.tokens + prompt_tokens)
        if most:
            for sequence, tokens in self._floor_chunks():
                if load.tokens + tokens > most:
                    break
                load = load.plus(tokens, sequence.computed, sequence.decoding)
        return load

    def _floor_chunks(self) -> list[tuple[Sequence, int]]:
        """Residents of the classes below realtime that could compute and don't yet, with the tokens
        of a row or a block, in the order in which the floor credit serves them."""
        classes = (ServiceClass.STANDARD, ServiceClass.BATCH)
        able = chain.from_iterable(self._able(self._of(c).seated) for c in classes)
        left = [s for s in able if s not in self._chunks and s.pending]
        left.sort(key=lambda s: (not s.promoted, s.last_step))
        size = self._world.capacity.block_size
        return [(s, min(size, s.pending)) for s in left]

    def unstick(self) -> None:
        """If nobody computes on any lane, make the most senior resident do: every step makes
        progress."""
        if self._chunks:
            return
        residents = list(self._world.residents.values())
        if any(s.in_flight for s in residents):
            return
        seated = [s for s in residents if s.seated and s.id not in self._unready]
        for sequence in sorted(seated, key=lambda s: s.seniority)[:1]:
            if not sequence.works_on(self._lane):
                return
            tokens = min(self._world.capacity.block_size, sequence.pending)
            if self._residency.grow_at_any_cost(sequence, sequence.computed + tokens):
                self._chunks[sequence] = tokens

    @cached_property
    def load(self) -> StepLoad:
        """What the step computes; to be asked for once it is filled."""
        contexts = [s.computed for s in self._chunks if s.decoding]
        load = StepLoad(0, 0, len(contexts), sum(contexts))
        if len(contexts) < len(self._chunks):
            for sequence, tokens in self._chunks.items():
                if not sequence.decoding:
                    load = load.plus(tokens, sequence.computed, decoding=False)
        return load

    def chunks(self) -> tuple[Chunk, ...]:
        """The plan's chunks; marks who computes."""
        step = self._world.step
        self._world.planned[self._lane] = step
        for sequence in (*self._residency.moved, *self._residency.entered):
            sequence.in_flight = True
        chunks = []
        for sequence, count in self._chunks.items():
            sequence.in_flight = True
            sequence.last_step = step
            start, blocks, tokens = sequence.computed, sequence.blocks, sequence.tokens
            new = (tokens[start],) if count == 1 else tuple(tokens[start : start + count])
            last = start + count == len(tokens)
            chunks.append(Chunk(sequence.id, new, start, blocks, len(blocks), last))
        return tuple(chunks)

    def record(self) -> Draft:
        """The plan for people. Call it before `chunks`, which marks requests as in flight."""
        world, residency, notes = self._world, self._residency, self._residency.notes
        left = [
            s
            for s in world.residents.values()
            if s not in self._chunks and not s.in_flight and s.works_on(self._lane)
        ]
        for sequence in left:
            if sequence.id in self._unready:
                residency.notes.paused(sequence, "its grammar's mask is not made yet")
        usual = "the step was full" if self.limit_s == inf else "the step's time limit"
        if self._realtime_first:
            usual = "realtime waits or prefills"
        return Draft(
            StepRecord(
                step=world.step,
                lane=self._lane,
                limit_s=self.limit_s,
                predicted_s=self._model.predict(self.load),
                entered=tuple(s.id for s in residency.entered),
                evicted=tuple(notes.evicted),
                passed_over=notes.passed_over(residency.entered),
                paused=notes.left_out(left, usual),
            ),
            tuple([(s.id, n, s.decoding) for s, n in self._chunks.items()]),
        )

    def _add(self, sequence: Sequence, tokens: int) -> bool:
        """Add a chunk if the resident can have the blocks; drops those it displaced."""
        preempted = self._residency.preempted
        if sequence in preempted:
            return False
        if not self._residency.grow(sequence, sequence.computed + tokens):
            return False
        self._chunks[sequence] = tokens
        for victim in preempted:
            self._chunks.pop(victim, None)
        return True

    def _of(self, rank: ServiceClass) -> "_Ready":
        """Residents of the rank that this plan may compute; looked for anew where they changed."""
        version = self._world.roster.version(rank)
        ready = self._ready.get(rank)
        if ready is None or ready.version != version:
            ready = self._ready[rank] = _Ready(self._world.by_seniority(rank), self._lane, version)
        return ready

    def _able(self, members: list[Sequence]) -> list[Sequence]:
        """Those of them that can compute in this step."""
        if not self._unready:
            return members
        return [s for s in members if s.id not in self._unready]

    def _chunks_above(self, rank: ServiceClass) -> bool:
        """Whether a higher class than this one computes in the step."""
        return any(s.rank < rank for s in self._chunks)

    def _time_limit(self, now: float) -> float:
        """Longest the step may take: the ITL target while realtime decodes, a share of the TTFT
        target while realtime was seen lately, else no limit."""
        world, targets = self._world, self._world.config.targets
        rows = self._of(ServiceClass.REALTIME).rows
        if now - world.realtime_seen_s > world.config.realtime_memory_s:
            return inf
        load = StepLoad(0, 0, max(len(rows), 1), sum(s.computed for s in rows))
        realtime_step_s = self._model.predict(load)
        limit_s = targets.max_step(realtime_step_s)
        if not rows:
            return limit_s
        margin = targets.margin(self._model.overrun)
        return min(limit_s, targets.itl(realtime_step_s) / (1 + margin))

    def _prompt_limit(self) -> float:
        """Longest the step may be made by realtime's own prompts."""
        rows, targets = self._of(ServiceClass.REALTIME).rows, self._world.config.targets
        if targets.itl_s or not rows:
            return self.limit_s
        load = StepLoad(0, 0, len(rows), sum(s.computed for s in rows))
        model = self._model
        return max(self.limit_s, targets.prompt_step(model.predict(load), model.beside(load)))


_last_step = attrgetter("last_step")
