"""An executor around another that keeps count of what it was asked to do."""

from dataclasses import dataclass, replace

from headway.core.plan import Capacity, Executor, Masks, StepHandle, StepPlan, StepResult


@dataclass(slots=True)
class Tally:
    """What an executor did.

    steps: plans submitted. chunks: chunks in them, of which `unsampled` only computed.
    swapped_out, swapped_in: blocks copied. interrupted: steps that ended early.
    """

    steps: int = 0
    chunks: int = 0
    unsampled: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    interrupted: int = 0


class RecordingExecutor:
    """Passes everything on, and counts it in `tally`.

    interrupt_every: ask each so many-th step to stop as soon as it has started; 0 = none.
    compute_scale: compute times are reported so many times as long, so that copying a victim's
        blocks pays where computing them again costs next to nothing.
    """

    def __init__(
        self, executor: Executor, interrupt_every: int = 0, compute_scale: float = 1.0
    ) -> None:
        self.tally = Tally()
        self._executor = executor
        self._compute_scale = compute_scale
        self._interrupt_every = interrupt_every

    @property
    def capacity(self) -> Capacity:
        """The inner executor's."""
        return self._executor.capacity

    def submit(self, plan: StepPlan, masks: Masks) -> "RecordingHandle":
        """Start a step."""
        self.tally.steps += 1
        self.tally.chunks += len(plan.chunks)
        self.tally.unsampled += sum(not chunk.sample for chunk in plan.chunks)
        self.tally.swapped_out += len(plan.swap_out)
        self.tally.swapped_in += len(plan.swap_in)
        handle = self._executor.submit(plan, masks)
        if self._interrupt_every and self.tally.steps % self._interrupt_every == 0:
            handle.interrupt()
        return RecordingHandle(handle, self.tally, self._compute_scale)

    def close(self) -> None:
        """Close the inner executor."""
        self._executor.close()


class RecordingHandle:
    """A step under way."""

    def __init__(self, handle: StepHandle, tally: Tally, compute_scale: float = 1.0) -> None:
        self._handle = handle
        self._tally = tally
        self._compute_scale = compute_scale

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Wait for the inner step; call it once, as each call counts."""
        result = self._handle.result(timeout_s)
        self._tally.interrupted += result.interrupted
        compute_s = result.timing.compute_s * self._compute_scale
        return replace(result, timing=replace(result.timing, compute_s=compute_s))

    def done(self) -> bool:
        """Whether the inner step has ended."""
        return self._handle.done()

    def interrupt(self) -> None:
        """Interrupt the inner step."""
        self._handle.interrupt()
