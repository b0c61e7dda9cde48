"""An engine of vLLM in this process, driven step by step, so that steps can be counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from headway_vllm.settings import Settings

STOCK = {"fcfs": "fcfs", "priority": "priority"}
"""vLLM's own policies, for comparison."""


@dataclass
class Ended:
    """A request's answer, and the engine steps between its arrival and its first token."""

    tokens: list[int] = field(default_factory=list)
    first_step: int = 0
    arrived_step: int = 0

    @property
    def ttft_steps(self) -> int:
        """Steps from arrival to first token, both included."""
        return self.first_step - self.arrived_step


class Engine:
    """`policy` is `headway`, or one of vLLM's own."""

    def __init__(self, model: Path, policy: str, settings: Settings | None, **options: Any) -> None:
        chosen: dict[str, Any] = {"scheduling_policy": STOCK.get(policy, "priority")}
        if policy == "headway":
            chosen |= {
                "scheduler_cls": "headway_vllm.scheduler.HeadwayScheduler",
                "kv_transfer_config": {
                    "kv_connector": "HeadwaySwap",
                    "kv_role": "kv_both",
                    "kv_connector_module_path": "headway_vllm.connector",
                    "kv_connector_extra_config": (settings or Settings()).to_extra(),
                },
            }
        self._llm = LLM(
            str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=32,
            max_model_len=512,
            **{"enforce_eager": True, "enable_prefix_caching": False} | chosen | options,
        )
        self.engine = self._llm.llm_engine
        self.steps = 0
        self.ended: dict[str, Ended] = {}

    @property
    def scheduler(self) -> Any:
        """The scheduler, where the engine runs in this process."""
        return self.engine.engine_core.engine_core.scheduler

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, priority: int = 0) -> None:
        """A request of a class, by priority."""
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        self.ended[name] = Ended(arrived_step=self.steps)
        prompt_ids = {"prompt_token_ids": list(prompt)}
        self.engine.add_request(name, prompt_ids, params, priority=priority)

    def step(self) -> None:
        """One engine step."""
        self.steps += 1
        for output in self.engine.step():
            ended = self.ended[output.request_id]
            ended.tokens = list(output.outputs[0].token_ids)
            if ended.tokens and not ended.first_step:
                ended.first_step = self.steps

    def run(self) -> None:
        """Until nothing is left to do."""
        while self.engine.has_unfinished_requests():
            self.step()

    def close(self) -> None:
        """Let the engine go."""
        self.engine.engine_core.shutdown()
