"""An executor without a model: deterministic tokens read from a modelled KV cache.

It fails loudly where a plan breaks the contract or a chunk reads a cell that does not hold what
it must, so a block handed away too early, a wrong copy or a stale cell never passes unnoticed.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.interrupts import num_tokens
from headway.core.plan import (
    Capacity,
    Chunk,
    Masks,
    Open,
    RequestError,
    Sampled,
    SamplingSpec,
    StepPlan,
    StepResult,
    StepTiming,
)
from headway.core.types import Lane, RequestId
from headway.errors import ExecutorError
from headway.executors.rules import PlanFaultError, Touched, check_plan
from headway.testing.cells import CELL_BYTES, POISON, CellPool, extend_chain
from headway.testing.clock import Clock, ManualClock
from headway.testing.sequence import Script, SequenceState, draw, last_cell

Duration = Callable[[StepPlan], StepTiming]


def instant(plan: StepPlan) -> StepTiming:
    """A duration model: every step takes no time."""
    return StepTiming()


@dataclass(frozen=True, slots=True)
class LinearDuration:
    """A duration model: seconds per step, computed token and copied block."""

    step_s: float = 0.01
    token_s: float = 0.001
    block_s: float = 0.0005

    def __call__(self, plan: StepPlan) -> StepTiming:
        tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
        return StepTiming(
            copy_out_s=len(plan.swap_out) * self.block_s,
            copy_in_s=len(plan.swap_in) * self.block_s,
            compute_s=self.step_s + tokens * self.token_s,
        )


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What goes wrong on purpose.

    fail_steps: steps whose handle raises ExecutorError; those with chunks count, from 0.
    nan_at: request → how many tokens it has sampled when its logits turn to NaN.
    strict: raise PlanFaultError for a wrong cell; else it only changes the tokens drawn from it.
    layers: equal parts of a step's compute time; an interrupt takes effect at the end of one,
        0 ignores interrupts.
    """

    fail_steps: frozenset[int] = frozenset()
    nan_at: Mapping[RequestId, int] = field(default_factory=dict)
    strict: bool = True
    layers: int = 4


class ScriptedExecutor:
    """Implements `core.plan.Executor`. A step takes effect when its time on `clock` has passed;
    waiting for a result moves a manual clock there. On a real clock, several threads may wait.

    faults: every PlanFaultError raised, as text; empty after a clean run.
    """

    def __init__(
        self,
        capacity: Capacity,
        script: Script | None = None,
        mishaps: Mishaps | None = None,
        duration: Duration = instant,
        clock: Clock | None = None,
    ) -> None:
        self._capacity = capacity
        self.script = script or Script(vocab_size=capacity.vocab_size)
        self.mishaps = mishaps or Mishaps()
        self.clock = clock or ManualClock()
        self.faults: list[str] = []
        self.submitted: list[StepPlan] = []
        self._duration = duration
        self._device = CellPool(capacity.kv_blocks, capacity.block_size)
        self._host = CellPool(capacity.host_blocks, capacity.block_size)
        self._sequences: dict[RequestId, SequenceState] = {}
        self._uncertain: set[RequestId] = set()
        self._in_flight: dict[Lane, ScriptedHandle] = {}
        self._computed_steps = 0
        self._closed = False
        self._lock = threading.RLock()

    @property
    def capacity(self) -> Capacity:
        """Sizes, as given."""
        return self._capacity

    @property
    def open_requests(self) -> frozenset[RequestId]:
        """Requests opened and not closed; empty once all have ended."""
        return frozenset(self._sequences)

    def submit(self, plan: StepPlan, masks: Masks) -> "ScriptedHandle":
        """Check a plan against the contract and start it. Raises PlanFaultError."""
        with self._lock:
            return self._submit(plan, masks)

    def _submit(self, plan: StepPlan, masks: Masks) -> "ScriptedHandle":
        try:
            touched = self._check(plan)
        except PlanFaultError as fault:
            self.faults.append(str(fault))
            raise
        fails = bool(plan.chunks) and self._computed_steps in self.mishaps.fail_steps
        self._computed_steps += bool(plan.chunks)
        self.submitted.append(plan)
        handle = ScriptedHandle(self, plan, masks, touched, self._duration(plan), fails)
        self._in_flight[plan.lane] = handle
        return handle

    def close(self) -> None:
        """End what is in flight; idempotent. Later plans are refused."""
        self._closed = True
        self._in_flight.clear()

    def _check(self, plan: StepPlan) -> Touched:
        if self._closed:
            raise PlanFaultError("a plan for a closed executor")
        if plan.lane in self._in_flight:
            raise PlanFaultError(f"a second step in flight on lane {plan.lane.name}")
        touched = check_plan(plan, self._capacity)
        units = plan.units + sum(h.plan.units for h in self._in_flight.values())
        if units > self._capacity.units:
            raise PlanFaultError(f"lanes share compute units: {units} are asked for")
        opened = {o.request for o in plan.opens}
        for request in opened & self._sequences.keys():
            raise PlanFaultError(f"request {request} is opened twice")
        for request in plan.closes:
            if request not in self._sequences.keys() | opened | self._uncertain:
                raise PlanFaultError(f"request {request} is closed but not open")
        for other in self._in_flight.values():
            touched.check_apart(other.touched)
            for chunk in plan.chunks:
                if any(chunk.request == theirs.request for theirs in other.plan.chunks):
                    raise PlanFaultError(f"request {chunk.request} is in two lanes at once")
        self._check_sequences(plan)
        return touched

    def _check_sequences(self, plan: StepPlan) -> None:
        """Requests of chunks are open and alive; tokens and sampling follow what is known."""
        new = {o.request: SequenceState.from_open(o) for o in plan.opens}
        for chunk in plan.chunks:
            sequence = new.get(chunk.request) or self._sequences.get(chunk.request)
            if sequence is None:
                raise PlanFaultError(f"request {chunk.request}: a chunk before it is opened")
            if sequence.failed:
                raise PlanFaultError(f"request {chunk.request}: a chunk after its error")
            sequence.check_table(chunk.request, chunk.blocks, chunk.num_blocks)
            for position, token in enumerate(chunk.tokens, chunk.start):
                if sequence.token_at(position) != token:
                    raise PlanFaultError(
                        f"request {chunk.request}: token {token} at position {position}, "
                        f"where {sequence.token_at(position)} stands"
                    )
            end = chunk.start + len(chunk.tokens)
            if chunk.sample and end != sequence.num_tokens:
                raise PlanFaultError(
                    f"request {chunk.request}: sampled at {end} of {sequence.num_tokens} tokens"
                )
        self._sequences |= new

    def _finish(self, handle: "ScriptedHandle") -> StepResult:
        """Carry a step out. Called once, when its time has passed."""
        with self._lock:
            return self._carry_out(handle)

    def _carry_out(self, handle: "ScriptedHandle") -> StepResult:
        plan = handle.plan
        self._in_flight.pop(plan.lane, None)
        for copy in plan.swap_out:
            self._host.write_block(copy.host, self._device.read_block(copy.device))
        for copy in plan.swap_in:
            self._device.write_block(copy.device, self._host.read_block(copy.host))
        sampled: list[Sampled] = []
        errors: list[RequestError] = []
        count = 0 if handle.fails else len(plan.computed(handle.interrupted))
        for index, chunk in enumerate(handle.frozen_chunks):
            if index >= count:
                poison = POISON * len(chunk.tokens)
                self._device.write(chunk.blocks, chunk.start, poison)
            else:
                self._compute(chunk, handle.masks, sampled, errors)
        for request in plan.closes:
            self._sequences.pop(request, None)
            self._uncertain.discard(request)
        if handle.fails:
            self._uncertain |= {o.request for o in plan.opens} | set(plan.closes)
            raise ExecutorError(f"step {plan.step} failed, as its script says")
        return StepResult(
            plan.step, tuple(sampled), tuple(errors), handle.timing, handle.interrupted
        )

    def _compute(
        self, chunk: Chunk, masks: Masks, sampled: list[Sampled], errors: list[RequestError]
    ) -> None:
        request, start, end = chunk.request, chunk.start, chunk.start + len(chunk.tokens)
        sequence = self._sequences[request]
        before = self._device.read(chunk.blocks, start)
        if self.mishaps.strict and before != sequence.truth[: len(before)]:
            self._report_stale(request, before, sequence)
        cells = before + extend_chain(last_cell(before), chunk.tokens, start)
        self._device.write(chunk.blocks, start, cells[len(before) :])
        if not chunk.sample:
            return
        if self._is_nan(request, sequence):
            sequence.failed = True
            errors.append(RequestError(request, f"request {request}: logits are not numbers"))
            return
        drawn = draw(self.script, request, sequence, cells[: end * CELL_BYTES], masks.get(request))
        sequence.append(drawn.token)
        sampled.append(drawn)

    def _is_nan(self, request: RequestId, sequence: SequenceState) -> bool:
        biased = any(math.isnan(value) for _, value in sequence.spec.bias)
        return biased or self.mishaps.nan_at.get(request) == len(sequence.output)

    def _report_stale(self, request: RequestId, cells: bytes, sequence: SequenceState) -> None:
        position = next(
            at // CELL_BYTES
            for at in range(0, len(cells), CELL_BYTES)
            if cells[at : at + CELL_BYTES] != sequence.truth[at : at + CELL_BYTES]
        )
        at = position * CELL_BYTES
        kind = "was never written" if cells[at : at + CELL_BYTES] == POISON else "is another's"
        fault = f"request {request}: the cell of position {position} {kind}"
        self.faults.append(fault)
        raise PlanFaultError(fault)


class ScriptedHandle:
    """A step under way; see `core.plan.StepHandle`. `end_s` is when it ends on the clock."""

    def __init__(
        self,
        executor: ScriptedExecutor,
        plan: StepPlan,
        masks: Masks,
        touched: Touched,
        timing: StepTiming,
        fails: bool,
    ) -> None:
        self.plan = plan
        self.masks = masks
        self.touched = touched
        self.timing = timing
        self.fails = fails
        self.interrupted = False
        self.frozen_chunks = tuple(
            c._replace(tokens=tuple(c.tokens), blocks=tuple(c.blocks[: c.num_blocks]))
            for c in plan.chunks
        )
        self._executor = executor
        self._compute_from_s = executor.clock() + timing.copy_out_s + timing.copy_in_s
        self.end_s = self._compute_from_s + timing.compute_s
        self._outcome: StepResult | ExecutorError | None = None

    def done(self) -> bool:
        """Whether the clock has passed the step's end."""
        return self._executor.clock() >= self.end_s

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Move or wait the clock to the step's end; then the outcome, the same at every call."""
        clock = self._executor.clock
        limit_s = float("inf") if timeout_s is None else clock() + timeout_s
        while not self.done():
            if clock() >= limit_s:
                raise TimeoutError(f"step {self.plan.step} goes on after {timeout_s} s")
            clock.jump_to(min(self.end_s, limit_s))
        if self._outcome is None:
            try:
                self._outcome = self._executor._finish(self)
            except ExecutorError as error:
                self._outcome = error
        if isinstance(self._outcome, ExecutorError):
            raise self._outcome
        return self._outcome

    def interrupt(self) -> None:
        """From the next layer boundary, if there is one left before the end, go on with what the
        plan keeps alone, for its part of the rows; or end there."""
        layers, plan = self._executor.mishaps.layers, self.plan
        if not layers or self.done() or self.interrupted or plan.kept == len(plan.chunks):
            return
        layer_s = self.timing.compute_s / layers
        now_s = self._executor.clock()
        boundary_s = self._compute_from_s
        while layer_s and boundary_s < now_s:
            boundary_s += layer_s
        if boundary_s < self.end_s:
            left = num_tokens(plan.computed(interrupted=True)) / num_tokens(plan.chunks)
            self.end_s = boundary_s + (self.end_s - boundary_s) * left
            self.interrupted = True


def oracle_tokens(
    prompt: Sequence[int],
    sampling: SamplingSpec,
    max_tokens: int,
    script: Script,
    stop_ids: frozenset[int] = frozenset(),
    request: RequestId | None = None,
) -> list[int]:
    """The answer to one request alone: what any schedule of it must give, the stop id included.

    request: its id, where the script spells out its answer.
    """
    name = RequestId(-1) if request is None else request
    sequence = SequenceState.from_open(Open(name, prompt, sampling))
    while len(sequence.output) < max_tokens:
        token = draw(script, name, sequence, bytes(sequence.truth), None).token
        sequence.append(token)
        if token in stop_ids:
            break
    return sequence.output
