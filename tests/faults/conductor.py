"""An executor around the real one: made-up times, slow copies, and actions at numbered steps."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headway.core.plan import (
    Capacity,
    Executor,
    Masks,
    StepHandle,
    StepPlan,
    StepResult,
    StepTiming,
)
from headway.testing import ManualClock

STEP_S, TOKEN_S, COPY_S = 0.01, 0.001, 0.00001


class Conductor:
    """Implements Executor over another. A step takes 10 ms, 1 ms a token and 10 us a copied block
    on the manual clock, whatever it took.

    slow_copy_s: real seconds that a plan's copies wait before they begin, and again before what
        follows them: whoever writes their blocks meanwhile spoils them.
    plans: every plan submitted, in order.
    """

    def __init__(self, executor: Executor, clock: ManualClock, slow_copy_s: float = 0.0) -> None:
        self.plans: list[StepPlan] = []
        self._landed = 0
        self._executor = executor
        self._clock = clock
        self._slow_copy_s = slow_copy_s
        self._actions: dict[int, list[Callable[[], object]]] = {}

    @property
    def capacity(self) -> Capacity:
        """The inner executor's."""
        return self._executor.capacity

    @property
    def due(self) -> list[int]:
        """Steps that have actions still to come."""
        return sorted(self._actions)

    @property
    def resting(self) -> bool:
        """Whether the result of every plan has been taken."""
        return self._landed == len(self.plans)

    def at(self, step: int, action: Callable[[], object]) -> None:
        """Run an action on the engine's thread just before step `step` is submitted."""
        self._actions.setdefault(step, []).append(action)

    def submit(self, plan: StepPlan, masks: Masks) -> StepHandle:
        """Act, then start the step."""
        for action in self._actions.pop(len(self.plans), []):
            action()
        self.plans.append(plan)
        if self._slow_copy_s and (plan.swap_out or plan.swap_in):
            inner: StepHandle = SlowStep(self._executor, plan, masks, self._slow_copy_s)
        else:
            inner = self._executor.submit(plan, masks)
        return TimedStep(inner, partial(self._land, timing_of(plan)))

    def close(self) -> None:
        """Close the inner executor."""
        self._executor.close()

    def _land(self, timing: StepTiming, result: StepResult) -> StepResult:
        self._clock.advance(timing.copy_out_s + timing.copy_in_s + timing.compute_s)
        self._landed += 1
        return replace(result, timing=timing)


def timing_of(plan: StepPlan) -> StepTiming:
    """How long a step is said to take."""
    tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
    return StepTiming(
        len(plan.swap_out) * COPY_S, len(plan.swap_in) * COPY_S, STEP_S + tokens * TOKEN_S
    )


class TimedStep:
    """A step whose end is reported as `land` puts it."""

    def __init__(self, handle: StepHandle, land: Callable[[StepResult], StepResult]) -> None:
        self._handle = handle
        self._land = land

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Wait for the real step, however long it takes."""
        return self._land(self._handle.result(None))

    def done(self) -> bool:
        """Whether the real step has ended."""
        return self._handle.done()

    def interrupt(self) -> None:
        """Interrupt the real step."""
        self._handle.interrupt()


class SlowStep:
    """A plan run in pieces, its copies out late, its copies in later, its chunks last."""

    def __init__(self, executor: Executor, plan: StepPlan, masks: Masks, delay_s: float) -> None:
        self._pieces = (
            replace(plan, swap_in=(), chunks=(), closes=(), kept=0),
            replace(plan, swap_out=(), opens=(), chunks=(), closes=(), kept=0),
            replace(plan, swap_out=(), swap_in=(), opens=()),
        )
        self._executor = executor
        self._masks = masks
        self._delay_s = delay_s
        self._outcome: StepResult | Exception | None = None
        self._thread = threading.Thread(target=self._run, name="slow-copies")
        self._thread.start()

    def result(self, timeout_s: float | None = None) -> StepResult:
        """The last piece's result, or what any of them raised."""
        self._thread.join()
        if isinstance(self._outcome, StepResult):
            return self._outcome
        raise self._outcome or RuntimeError("the step has no outcome")

    def done(self) -> bool:
        """Whether all pieces have ended."""
        return not self._thread.is_alive()

    def interrupt(self) -> None:
        """Not supported."""

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                if not piece.empty:
                    time.sleep(self._delay_s)
                    self._outcome = self._executor.submit(piece, self._masks).result(None)
        except Exception as error:
            self._outcome = error
