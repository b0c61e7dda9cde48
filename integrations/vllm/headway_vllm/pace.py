"""How long steps take, learned from vLLM's steps by Headway's own model."""

import time
from collections import deque
from collections.abc import Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from headway.core.step_model import StepLoad, StepModel

_IN_FLIGHT = 16
"""More steps than an engine ever has in flight."""


class Pace:
    """Feeds the step model. With several steps in flight a step counts from the end of the one
    before it."""

    def __init__(self) -> None:
        """A vague prior."""
        self.model = StepModel()
        self._flying: deque[tuple[SchedulerOutput, StepLoad, float]] = deque(maxlen=_IN_FLIGHT)
        self._ended_s = 0.0

    def began(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """A step was handed out. vLLM has counted its tokens as computed already."""
        prefill = prefill_context = rows = row_context = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            context = max(requests[request_id].num_computed_tokens - tokens, 0)
            if tokens == 1:
                rows += 1
                row_context += context
            else:
                prefill += tokens
                prefill_context += tokens * context + tokens * tokens // 2
        load = StepLoad(prefill, prefill_context, rows, row_context)
        self._flying.append((output, load, time.monotonic()))

    def ended(self, output: SchedulerOutput) -> None:
        """A step's results are here."""
        now_s = time.monotonic()
        while self._flying:
            begun, load, began_s = self._flying.popleft()
            if begun is output:
                if output.num_scheduled_tokens:
                    self.model.observe(load, now_s - max(began_s, self._ended_s))
                break
        self._ended_s = now_s
