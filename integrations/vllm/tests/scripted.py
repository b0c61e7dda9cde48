"""vLLM's real scheduler and our real connector over a model of arithmetic: engine steps without an
engine, a thousand in a second or two.

The KV of a position is a number made of its token and of the KV before it, read from the cache; the
next token is the last KV, modulo. So an answer is right only if every cached value it was made of
was, wherever it has been meanwhile.
"""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from headway.core.types import ServiceClass
from headway_vllm.classes import PRIORITY
from headway_vllm.connector import HeadwaySwap
from headway_vllm.pace import Pace
from headway_vllm.scheduler import HeadwayScheduler
from headway_vllm.settings import Settings

SIZE = 32
VOCABULARY = 97
_MODULUS = 2**31 - 1


def kv(before: int, token: int) -> int:
    """The KV of a token behind the KV `before`."""
    return (before * 48271 + token + 1) % _MODULUS


def answer(prompt: list[int], tokens: int) -> list[int]:
    """What a request has to be answered, computed without a cache."""
    state, found = 0, []
    for token in prompt:
        state = kv(state, token)
    for _ in range(tokens):
        found.append(state % VOCABULARY)
        state = kv(state, found[-1])
    return found


class SteadyPace(Pace):
    """Learns nothing: swapping costs less than computing again."""

    def ended(self, output: object) -> None:
        """Nothing."""


@dataclass
class Asked:
    """A request and what became of it. first_step: of the first token, 0 before."""

    prompt: list[int]
    tokens: int
    arrived_step: int
    answer: list[int] = field(default_factory=list)
    first_step: int = 0
    aborted: bool = False


class Scripted:
    """One scheduler, driven step by step. policy: `headway`, or `priority` and `fcfs`, vLLM's own.
    in_flight: steps handed out before the first one's results are taken in, as in a pipeline."""

    def __init__(
        self,
        model: Path,
        policy: str,
        blocks: int,
        seats: int,
        settings: Settings | None = None,
        prefix_cache: bool = False,
        in_flight: int = 1,
        step_tokens: int = 512,
    ) -> None:
        transfer = {
            "kv_connector": "HeadwaySwap",
            "kv_role": "kv_both",
            "kv_connector_module_path": "headway_vllm.connector",
            "kv_connector_extra_config": (settings or Settings(host_gib=0.01)).to_extra(),
        }
        config = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=seats,
            max_num_batched_tokens=step_tokens,
            block_size=SIZE,
            scheduling_policy="fcfs" if policy == "fcfs" else "priority",
            enable_prefix_caching=prefix_cache,
            pipeline_parallel_size=in_flight,
            enforce_eager=True,
            kv_transfer_config=transfer if policy == "headway" else None,
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32)
        page = spec.page_size_bytes
        place = KVCacheTensor(
            page * blocks, ["layer"], layer_stride=page * blocks, block_stride=page
        )
        caches = KVCacheConfig(blocks, [place], [KVCacheGroupSpec(["layer"], spec)])
        kind = HeadwayScheduler if policy == "headway" else Scheduler
        self.scheduler: Any = kind(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=SIZE,
            hash_block_size=SIZE,
        )
        self.worker: HeadwaySwap | None = None
        self.cache = torch.zeros(blocks, SIZE, dtype=torch.int64)
        if policy == "headway":
            self.scheduler.pace = SteadyPace()
            self.worker = HeadwaySwap(config, KVConnectorRole.WORKER, caches)
            self.worker.register_kv_caches({"layer": self.cache})
        hashing = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hashing)
        self._hasher = get_request_block_hasher(SIZE, hashing)
        self._in_flight = in_flight
        self._flying: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.steps = 0
        self.asked: dict[str, Asked] = {}

    def ask(self, name: str, prompt: list[int], tokens: int, service_class: ServiceClass) -> None:
        """A request arrives."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        request = Request(
            name, prompt, params, None, priority=PRIORITY[service_class], block_hasher=self._hasher
        )
        self.asked[name] = Asked(prompt, tokens, self.steps)
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        """Its client has left."""
        self.asked[name].aborted = True
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    @property
    def live(self) -> list[str]:
        """Requests that have not ended."""
        return list(self.scheduler.requests)

    def step(self) -> None:
        """One engine step: hand one out, take in what has to be."""
        self.steps += 1
        output = self.scheduler.schedule()
        self._flying.append((output, self._compute(output)))
        if len(self._flying) >= self._in_flight or not output.num_scheduled_tokens:
            self._take_in()

    def run(self, limit: int = 20_000) -> None:
        """Until nobody is left."""
        while self.scheduler.has_unfinished_requests():
            self.step()
            assert self.steps < limit, f"no end in sight: {self.live}"
        while self._flying:
            self._take_in()

    def _take_in(self) -> None:
        output, result = self._flying.popleft()
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                asked = self.asked[one.request_id]
                asked.answer += one.new_token_ids
                if asked.answer and not asked.first_step:
                    asked.first_step = self.steps

    def _compute(self, output: Any) -> ModelRunnerOutput:
        """What a worker does with a step: saves, loads, then the arithmetic."""
        connector = KVConnectorOutput()
        if self.worker is not None:
            self.worker.handle_preemptions(output.kv_connector_metadata)
            self.worker.bind_connector_metadata(output.kv_connector_metadata)
            self.worker.start_load_kv(None)
            connector.kv_connector_worker_meta = self.worker.build_connector_worker_meta()
        names = list(output.num_scheduled_tokens)
        sampled = [self._compute_one(n, output.num_scheduled_tokens[n]) for n in names]
        places = {name: place for place, name in enumerate(names)}
        return ModelRunnerOutput(names, places, sampled, kv_connector_output=connector)

    def _compute_one(self, name: str, count: int) -> list[int]:
        """The scheduler has counted the step's tokens as computed already."""
        request = self.scheduler.requests[name]
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        tokens, end = list(request.all_token_ids), request.num_computed_tokens
        start = end - count
        state = self._at(blocks, start - 1) if start else 0
        for position in range(start, end):
            state = kv(state, tokens[position])
            self.cache[blocks[position // SIZE], position % SIZE] = state
        return [state % VOCABULARY] if end == len(tokens) else []

    def _at(self, blocks: list[int], position: int) -> int:
        return int(self.cache[blocks[position // SIZE], position % SIZE])
