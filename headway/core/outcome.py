"""Applying what came of a plan: tokens, ends, measured rates, failures."""

from collections.abc import Mapping

from headway.core.plan import Chunk, Sampled, StepFailure, StepPlan, StepResult
from headway.core.request import Emitted, Verdict, VerdictKind
from headway.core.sequence import Sequence
from headway.core.types import FinishReason, RequestId, State
from headway.core.under_way import UnderWay
from headway.core.world import World


def apply_result(
    world: World,
    plan: StepPlan,
    under_way: UnderWay,
    result: StepResult,
    verdicts: Mapping[RequestId, Verdict],
    now: float,
) -> None:
    """Commit a step that ran; an interrupted one commits its copies only."""
    _measure(world, plan, under_way, result)
    _settle_copies(world, under_way)
    if result.interrupted:
        return
    world.measured.caution.on_step()
    world.meter.add_step(under_way.room, now - under_way.planned_s)
    errors = {e.request: e.message for e in result.errors}
    sampled = {s.request: s for s in result.sampled}
    for chunk in plan.chunks:
        sequence = world.live[chunk.request]
        if chunk.request in errors:
            world.leave(sequence, FinishReason.ERROR, errors[chunk.request])
            continue
        _advance(world, sequence, chunk, now)
        if chunk.sample:
            _take_token(world, sequence, sampled[chunk.request], verdicts.get(chunk.request))


def apply_failure(world: World, plan: StepPlan, under_way: UnderWay, failure: StepFailure) -> None:
    """The step failed as a whole: its requests end with one error; those whose KV it was copying
    compute it again."""
    for chunk in plan.chunks:
        world.leave(world.live[chunk.request], FinishReason.ERROR, failure.message)
    for sequence in under_way.copied:
        if sequence.state is not State.FINISHED:
            world.forget_kv(sequence)


def _measure(world: World, plan: StepPlan, under_way: UnderWay, result: StepResult) -> None:
    timing, measured = result.timing, world.measured
    if plan.swap_out:
        measured.copy_out_s.add(timing.copy_out_s / len(plan.swap_out))
    if plan.swap_in:
        measured.copy_in_s.add(timing.copy_in_s / len(plan.swap_in))
    if plan.chunks and not result.interrupted:
        measured.steps.of(plan.lane, plan.units).observe(under_way.load, timing.compute_s)


def _settle_copies(world: World, under_way: UnderWay) -> None:
    """Copies are done: what came back no longer needs its host blocks."""
    for sequence in under_way.copied:
        if sequence.state is State.RUNNING:
            world.drop_host(sequence)


def _advance(world: World, sequence: Sequence, chunk: Chunk, now: float) -> None:
    end = chunk.start + len(chunk.tokens)
    sequence.recomputed += max(min(end, sequence.computed_high) - chunk.start, 0)
    sequence.computed = end
    sequence.computed_high = max(sequence.computed_high, end)
    sequence.progress_s = now
    queue = world.queues[sequence.rank]
    queue.counters.charge(sequence.request.tenant, len(chunk.tokens))
    if sequence.request.cacheable:
        world.publish_full_blocks(sequence)
    if end >= sequence.prompt_tokens:
        world.release_children(sequence.id)


def _take_token(
    world: World, sequence: Sequence, sampled: Sampled, verdict: Verdict | None
) -> None:
    """Append a sampled token, unless the request is being aborted; end the request if it is due."""
    if sequence.aborted:
        return
    if verdict is not None and verdict.kind is VerdictKind.ERROR:
        world.leave(sequence, FinishReason.ERROR, verdict.message)
        return
    sequence.tokens.append(sampled.token)
    world.log.emitted.append(Emitted(sequence.id, sampled.token, sampled.logprobs))
    reason = _end_reason(world, sequence, sampled.token, verdict)
    if reason is not None:
        if reason is FinishReason.STOP:
            world.measured.lengths.add(sequence.service_class, sequence.generated)
        world.leave(sequence, reason)


def _end_reason(
    world: World, sequence: Sequence, token: int, verdict: Verdict | None
) -> FinishReason | None:
    limits, capacity = sequence.request.limits, world.capacity
    if verdict is not None and verdict.kind is VerdictKind.STOP:
        return FinishReason.STOP
    if token in limits.stop_ids:
        return FinishReason.STOP
    longest = min(capacity.max_model_len, capacity.kv_blocks * capacity.block_size)
    if sequence.generated >= limits.max_tokens or len(sequence.tokens) >= longest:
        return FinishReason.LENGTH
    return None
