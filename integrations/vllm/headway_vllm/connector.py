"""A KV connector that saves exactly what a preempted request has computed, and brings it back.

The scheduler's half keeps the book; each worker's half copies. The two meet in a step's metadata:
saves are made before anything is written in that step, loads before anything is computed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from headway.core.step_model import RunningMean
from headway.core.victims import CopyRates
from headway_vllm.book import Copies, SwapBook
from headway_vllm.copies import CopyTimes, HostCopies
from headway_vllm.settings import Settings
from headway_vllm.stats import ClassMetrics, ClassStats

_PRIOR_BYTES_PER_S = 10e9
"""Until copies were timed; on CUDA, where timing one would mean waiting for it, for good."""


@dataclass
class SwapCopies(KVConnectorMetadata):
    """A step's copies, from the scheduler to every worker."""

    copies: Copies


@dataclass
class SwapTimes(KVConnectorWorkerMetadata):
    """How long a worker's copies took, back to the scheduler."""

    times: CopyTimes

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """The slower worker's: all copy the same blocks at once."""
        if not isinstance(other, SwapTimes):
            return self
        return max(self, other, key=lambda t: t.times.out_s + t.times.in_s)


def bytes_per_block(config: KVCacheConfig) -> int:
    """Bytes of one KV block over all layers of a worker; they share one allocation."""
    return int(config.kv_cache_tensors[0].size // config.num_blocks)


class HeadwaySwap(KVConnectorBase_V1, SupportsHMA):
    """vLLM makes one in the scheduler and one in each worker."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """As vLLM calls it. Raises ConfigError for settings that are wrong."""
        super().__init__(vllm_config, role, kv_cache_config)
        settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config)
        block_bytes = bytes_per_block(kv_cache_config)
        host_blocks = int(settings.host_gib * 2**30) // block_bytes
        prior_s = block_bytes / _PRIOR_BYTES_PER_S
        self._size = vllm_config.cache_config.block_size
        self.book = SwapBook(host_blocks, self._size)
        self._out_s, self._in_s = RunningMean(prior_s), RunningMean(prior_s)
        self.host: HostCopies | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a preempted request's tokens in flight are delivered as without a connector."""
        return False

    # --- the scheduler's half ----------------------------------------------------------------

    @property
    def rates(self) -> CopyRates:
        """Seconds a block, each way."""
        return CopyRates(self._out_s.value, self._in_s.value)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """What was kept beyond the prefix cache's hit; a token is always left to compute."""
        kept = min(self.book.tokens(request.request_id), request.num_tokens - 1)
        return max(kept - num_computed_tokens, 0), False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """The request has its blocks: load what was promised into them."""
        request_id = request.request_id
        kept = self.book.tokens(request_id)
        if kept:
            end = min(kept, request.num_tokens - 1)
            self.book.restore(request_id, blocks.get_block_ids()[0], num_external_tokens, end)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> SwapCopies:
        """The step's copies."""
        return SwapCopies(self.book.hand_out())

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Learn from the workers' copies."""
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, SwapTimes):
            times = meta.times
            if times.out_blocks:
                self._out_s.add(times.out_s / times.out_blocks)
            if times.in_blocks:
                self._in_s.add(times.in_s / times.in_blocks)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """What was kept of it goes."""
        self.book.drop(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """What was kept of it goes."""
        self.book.drop(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Everything kept goes."""
        self.book.drop_all()
        return True

    # --- a worker's half ---------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The worker's KV cache, a tensor a layer."""
        self.host = HostCopies(kv_caches.values())

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Save, before the step writes anything."""
        if self.host is not None and isinstance(kv_connector_metadata, SwapCopies):
            self.host.save(kv_connector_metadata.copies.saves)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load, before the step computes anything."""
        metadata = self._get_connector_metadata()
        if self.host is not None and isinstance(metadata, SwapCopies):
            self.host.load(metadata.copies.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: the step's kernels are queued behind its loads."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: what is kept is saved when its request is preempted."""

    def wait_for_save(self) -> None:
        """Nothing: the step's kernels are queued behind its saves."""

    def build_connector_worker_meta(self) -> SwapTimes | None:
        """What the step's copies took."""
        times = self.host.take_times() if self.host is not None else None
        return None if times is None else SwapTimes(times)

    # --- metrics -----------------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ClassStats:
        """The scheduler's report as vLLM's loggers want it."""
        return ClassStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ClassMetrics:
        """What `/metrics` shows of it."""
        return ClassMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
