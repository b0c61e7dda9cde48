"""vLLM's scheduler with Headway's pass before each of its steps; `--scheduler-cls` names it.

vLLM's own `schedule` is not copied and not patched. Before it runs, victims are preempted with
vLLM's own `_preempt_request`, whoever has to pause is skipped by vLLM's own mark for that, and the
queue is arranged; it then finds blocks and seats free for what was planned.
"""

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request

from headway.core.sequence import blocks_for
from headway.core.types import PreemptKind, ServiceClass
from headway.core.victims import Cost, cheaper_way, uncached_tokens
from headway_vllm.connector import HeadwaySwap
from headway_vllm.contract import differences
from headway_vllm.guards import refuse, unsupported
from headway_vllm.members import Decision, Member, Picture, Resident
from headway_vllm.pace import Pace
from headway_vllm.planner import Planner
from headway_vllm.promotion import promote
from headway_vllm.queue import ClassQueue, Ledger
from headway_vllm.settings import Settings
from headway_vllm.tally import Tally
from headway_vllm.view import PoolView, View

_LOOK_S = 1.0
"""Whoever starves is promoted within so many seconds, however settled the steps are."""


class HeadwayScheduler(Scheduler):
    """For engines without asynchronous scheduling, which is what the tests run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM calls it. Raises ConfigError where something is not supported or not tested."""
        refuse(differences())
        super().__init__(*args, **kwargs)
        refuse(unsupported(self))
        self.settings = Settings.of(self.vllm_config.kv_transfer_config.kv_connector_extra_config)
        self.swap: HeadwaySwap = self.connector
        self.ledger = Ledger()
        self.waiting = ClassQueue(self.ledger)
        self.pace = Pace()
        self.tally = Tally()
        self._view = View(self, self.waiting, self.ledger)
        self._pool = PoolView(self)
        self._unsorted = False
        self._next_look_s = 0.0

    # --- what vLLM calls ---------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step: the pass, then vLLM's own."""
        if self._pause_state == PauseState.UNPAUSED:
            self._plan()
        output = super().schedule(throttle_prefills)
        self.waiting.lines.arrange(())
        self._note(output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        """As vLLM's, which also says how long the step took and whose first token came."""
        self.pace.ended(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        now_s = time.monotonic()
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                if output.new_token_ids:
                    self.tally.token(output.request_id, now_s)
        return outputs

    def add_request(self, request: Request) -> None:
        """As vLLM's; the request's history begins."""
        member = self.ledger.of(request)
        self.tally.arrived(request.request_id, member.service_class, member.arrival_s)
        super().add_request(request)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """As vLLM's, with what `/metrics` shows by class."""
        stats: SchedulerStats | None = super().make_stats(*args, **kwargs)
        if stats is None:
            self.tally.clear()
        else:
            waiting = {c: self.waiting.lines.count(c) for c in ServiceClass}
            running = dict.fromkeys(ServiceClass, 0)
            for request in self.running:
                running[self.ledger.of(request).service_class] += 1
            stats.kv_connector_stats = self.tally.report(waiting, running, self.swap.book)
        return stats

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """As vLLM's; KV that was swapped out is of the old weights too, so it is dropped."""
        self.swap.book.drop_all()
        reset: bool = super().reset_prefix_cache(reset_running_requests, reset_connector)
        return reset

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        """As vLLM's, whoever chose the victim; its KV is saved first where that is cheaper."""
        member = self.ledger.of(request)
        # A drop means that the KV is worthless: weights changed, or a hand-off was lost.
        kind = PreemptKind.RECOMPUTE if drop_stale_output else self._save(request)
        self.tally.preempted(member.service_class, kind)
        member.leaves(request.num_computed_tokens)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's; the request has ended, and what was kept for it goes."""
        self.swap.book.drop(request.request_id)
        self.ledger.forget(request.request_id)
        self.tally.ended(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    # --- the pass ----------------------------------------------------------------------------

    def _plan(self) -> None:
        """Promote, decide, and apply."""
        if self._unsorted:
            # What vLLM serves first gets the tokens of a step.
            self.running.sort(key=lambda r: self.ledger.of(r).turn)
            self._unsorted = False
        if self._view.settled() and time.monotonic() < self._next_look_s:
            return
        picture = self._view.picture()
        due, idle = picture.now_s >= self._next_look_s, self._nothing_to_decide(picture)
        if due or not idle:
            self._next_look_s = picture.now_s + _LOOK_S
            self._promote(picture)
        if not idle:
            planner = Planner(picture, self._pool, self._cost_seconds, self.settings.pass_s)
            self._apply(planner.decide())

    def _nothing_to_decide(self, picture: Picture) -> bool:
        """Whether everyone there can go on and nobody waits."""
        growth = sum(r.growth_blocks for r in picture.residents)
        return growth <= picture.free_blocks and not any(picture.waiting.values())

    def _apply(self, decision: Decision) -> None:
        requests = self._view.requests
        victims = [requests[v] for v in decision.victims]
        for victim in victims:
            self.running.remove(victim)
            self._preempt_request(victim, time.monotonic(), self.requires_kv_delivery)
        for paused in decision.paused:
            # `schedule` counts the step up and skips who may not decode before the next.
            requests[paused].next_decode_eligible_step = self.current_step + 2
        self.waiting.lines.arrange([requests[c] for c in decision.entering], victims)

    def _promote(self, picture: Picture) -> None:
        batch = ServiceClass.BATCH
        needs = {c.member: c.need_blocks for c in picture.waiting[batch]}
        held = {r.member: len(r.blocks) for r in picture.residents if r.rank is batch}
        fresh = [m for m in needs if not m.resuming][:1]
        stuck = [*held, *(m for m in needs if m.resuming), *fresh]
        pool_blocks = self.kv_cache_manager.block_pool.num_gpu_blocks
        chosen = promote(
            stuck,
            self.ledger.promoted(),
            self.settings.reserve,
            lambda member: held.get(member) or needs.get(member, 0),
            pool_blocks,
            picture.now_s,
        )
        for member in chosen:
            member.promoted = self._unsorted = True
            self.tally.promotions += 1
        waiting = {c.member: self._view.requests[c] for c in picture.waiting[batch]}
        for member in chosen:
            if member in waiting:
                self.waiting.lines.add(waiting[member], member)

    # --- what a preemption costs -------------------------------------------------------------

    def _cost_seconds(self, resident: Resident) -> float:
        return self._cost(self._view.requests[resident]).seconds

    def _cost(self, request: Request) -> Cost:
        blocks, size = self._view.held_blocks(request), self.block_size
        computed = request.num_computed_tokens
        recompute_s = self.pace.model.prefill_seconds(
            uncached_tokens(blocks, computed, size, self._pool)
        )
        used = blocks_for(computed, size)
        return cheaper_way(used, recompute_s, self.swap.rates, self.swap.book.free)

    def _save(self, request: Request) -> PreemptKind:
        kind = self._cost(request).kind
        if kind is PreemptKind.SWAP:
            blocks = self._view.held_blocks(request)
            self.swap.book.save(request.request_id, blocks, request.num_computed_tokens)
        return kind

    # --- what a step did ---------------------------------------------------------------------

    def _note(self, output: SchedulerOutput) -> None:
        """Remember who entered and who made progress, and when the step began."""
        now_s = time.monotonic()
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        entered = {r.req_id for r in output.scheduled_new_reqs} | set(resumed)
        self._unsorted = self._unsorted or bool(entered)
        for request_id in output.num_scheduled_tokens:
            member = self.ledger.known(request_id)
            if member is None:
                continue
            member.progress_s = now_s
            if request_id in entered:
                self._entered(member, now_s)
        self.pace.began(output, self.requests)

    def _entered(self, member: Member, now_s: float) -> None:
        if not member.resuming:
            self.tally.queued(member.service_class, now_s - member.arrival_s)
        member.enters(self.current_step, self.block_size)


class HeadwayAsyncScheduler(HeadwayScheduler, AsyncScheduler):
    """The same over vLLM's asynchronous scheduler. No test has run it, so it has to be allowed by
    name."""
