"""vLLM's scheduler as the planner sees it: one step's picture, and its block pool's references."""

import time
from collections.abc import Sequence

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from headway.core.sequence import blocks_for
from headway.core.types import BlockId, ServiceClass
from headway_vllm.members import Candidate, Picture, Resident
from headway_vllm.queue import ClassQueue, Ledger

_LEADING = 16
"""How much of each line a step looks at; who stands further back is not considered in it."""


class PoolView:
    """Reference counts of vLLM's block pool."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Reads the pool each time it is asked."""
        self._blocks = scheduler.kv_cache_manager.block_pool.blocks
        self._sharing = scheduler.kv_cache_manager.enable_caching

    @property
    def shared(self) -> int:
        """1 where blocks may be shared, which is all that is asked of it; 0 without a prefix
        cache."""
        return int(self._sharing)

    def references(self, block: BlockId) -> int:
        """How many requests hold the block."""
        count: int = self._blocks[block].ref_cnt
        return count


class View:
    """Takes pictures of a scheduler."""

    def __init__(self, scheduler: Scheduler, queue: ClassQueue, ledger: Ledger) -> None:
        """Reads `scheduler` each time it is asked."""
        self._scheduler = scheduler
        self._queue = queue
        self._ledger = ledger
        self._held = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        self.requests: dict[Resident | Candidate, Request] = {}

    def picture(self) -> Picture:
        """The step that is about to be planned; `requests` then has vLLM's request of each entry.

        Only whoever could enter now is listed as waiting: those that wait for something else, such
        as a grammar, are skipped by vLLM too.
        """
        scheduler = self._scheduler
        self.requests = {}
        budget = scheduler.max_num_scheduled_tokens
        residents = [self._resident(r, budget) for r in scheduler.running]
        free: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        waiting = {c: self._candidates(c, budget, free) for c in ServiceClass}
        return Picture(
            residents,
            waiting,
            free_blocks=free,
            seats=self._seats(),
            step_tokens=budget,
            now_s=time.monotonic(),
        )

    def settled(self) -> bool:
        """Whether blocks are left for everyone's growth, and nobody waits who could enter: with
        every seat held, that takes somebody of a lower class. Asked before every step, so it looks
        at no request but the last: nobody who could be displaced is less senior."""
        scheduler = self._scheduler
        running = scheduler.running
        most = len(running) + scheduler.max_num_scheduled_tokens // scheduler.block_size
        free: int = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if most > free:
            return False
        first = next((c for c in ServiceClass if self._queue.lines.count(c)), None)
        if first is None:
            return True
        if self._seats() > 0:
            return False
        return not running or first >= self._ledger.of(running[-1]).service_class

    def need_blocks(self, request: Request, free: int) -> int:
        """Blocks that entering would take: ceil((tokens + 1) / s) for a fresh request, the whole KV
        and one more for a resumed one. Where that is more than `free`, those of the prefix cache
        that others hold too are taken off."""
        scheduler, size = self._scheduler, self._scheduler.block_size
        need = blocks_for(request.num_tokens + 1, size)
        if self._ledger.of(request).resuming:
            need = blocks_for(request.num_tokens, size) + 1
        manager = scheduler.kv_cache_manager
        if need > free and manager.enable_caching:
            hits = manager.get_computed_blocks(request)[0].blocks[0]
            need -= sum(1 for block in hits if block.ref_cnt > 0)
        most: int = manager.block_pool.num_gpu_blocks - 1
        return min(need, most)

    def held_blocks(self, request: Request) -> Sequence[BlockId]:
        """The blocks a running request holds."""
        return [BlockId(block.block_id) for block in self._held.get(request.request_id, ())]

    def _seats(self) -> int:
        scheduler = self._scheduler
        seated = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        seats: int = scheduler.max_num_active_reqs - seated
        return seats

    def _resident(self, request: Request, budget: int) -> Resident:
        scheduler = self._scheduler
        pending = request.num_tokens_with_spec + request.num_output_placeholders
        most = scheduler.max_model_len - request.num_computed_tokens - 1
        tokens = max(min(pending - request.num_computed_tokens, budget, most), 0)
        end = blocks_for(request.num_computed_tokens + tokens, scheduler.block_size)
        growth = end - len(self._held.get(request.request_id, ())) if tokens else 0
        resident = Resident(
            self._ledger.of(request),
            max(growth, 0),
            tokens,
            request.num_computed_tokens,
            # A streaming session is never taken: what it waits for may not come.
            scheduler._request_blocks_can_be_freed(request) and not request.resumable,
            lambda: self.held_blocks(request),
        )
        self.requests[resident] = request
        return resident

    def _candidates(self, service_class: ServiceClass, budget: int, free: int) -> list[Candidate]:
        line = []
        for request in self._queue.lines.leading(service_class, _LEADING):
            stale = request.num_stale_output_tokens and not request.drop_stale_output
            # vLLM asks this too, but only once there is a seat; a grammar that is ready by then
            # must not keep its request from displacing somebody.
            if stale or not self._scheduler._handle_blocked_waiting_request(request):
                continue
            tokens = min(request.num_tokens, budget)
            need = self.need_blocks(request, free)
            candidate = Candidate(self._ledger.of(request), need, tokens)
            self.requests[candidate] = request
            line.append(candidate)
        return line
