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
    """Commit a step that ran; an interrupted one commits its copies and the chunks it kept."""
    _measure(world, plan, under_way, result, now)
    _settle_copies(world, under_way)
    chunks = plan.computed(result.interrupted)
    if result.interrupted and not chunks:
        return
    world.measured.caution.on_step()
    world.meter.add_step(under_way.room, now - under_way.planned_s)
    errors = {e.request: e.message for e in result.errors}
    sampled = {s.request: s for s in result.sampled}
    for chunk, sequence in zip(chunks, under_way.computing[: len(chunks)], strict=True):
        request = chunk.request
        if request in errors:
            world.leave(sequence, FinishReason.ERROR, errors[request])
            continue
        _advance(world, sequence, chunk, now)
        if chunk.sample:
            _take_token(world, sequence, sampled[request], verdicts.get(request))


def apply_failure(world: World, plan: StepPlan, under_way: UnderWay, failure: StepFailure) -> None:
    """The step failed as a whole: its requests end with one error; those whose KV it was copying
    compute it again."""
    for chunk in plan.chunks:
        world.leave(world.live[chunk.request], FinishReason.ERROR, failure.message)
    for sequence in under_way.copied:
        if sequence.state is not State.FINISHED:
            world.forget_kv(sequence)


def _measure(
    world: World, plan: StepPlan, under_way: UnderWay, result: StepResult, now: float
) -> None:
    timing, measured = result.timing, world.measured
    if plan.swap_out:
        measured.copy_out_s.add(timing.copy_out_s / len(plan.swap_out))
    if plan.swap_in:
        measured.copy_in_s.add(timing.copy_in_s / len(plan.swap_in))
    if plan.chunks and not result.interrupted:
        model = measured.steps.of(plan.lane, plan.units)
        elapsed_s = now - under_way.planned_s
        model.observe(under_way.load, timing.compute_s, under_way.held_to_s, elapsed_s)


def _settle_copies(world: World, under_way: UnderWay) -> None:
    """Copies are done: what came back no longer needs its host blocks."""
    for sequence in under_way.copied:
        if sequence.state is State.RUNNING:
            world.drop_host(sequence)


def _advance(world: World, sequence: Sequence, chunk: Chunk, now: float) -> None:
    start, count, high = chunk.start, len(chunk.tokens), sequence.computed_high
    end = start + count
    if start < high:
        sequence.recomputed += min(end, high) - start
    sequence.has_computed(end)
    if end > high:
        sequence.computed_high = end
    sequence.progress_s = now
    request = sequence.request
    world.queues[sequence.rank].counters.charge(request.tenant, count)
    if end >= (sequence.prefix.published + 1) * sequence.block_size and request.cacheable:
        world.publish_full_blocks(sequence)
    if world.held and end >= sequence.prompt_tokens:
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
    sequence.sampled(sampled.token)
    world.log.emitted.append(Emitted(sequence.id, sampled.token, sampled.logprobs))
    reason = _end_reason(world, sequence, sampled.token, verdict)
    if reason is not None:
        if reason is FinishReason.STOP:
            world.measured.lengths.add(sequence.service_class, sequence.generated)
        world.leave(sequence, reason)


def _end_reason(
    world: World, sequence: Sequence, token: int, verdict: Verdict | None
) -> FinishReason | None:
    length = len(sequence.tokens)
    if verdict is not None and verdict.kind is VerdictKind.STOP:
        return FinishReason.STOP
    if token in sequence.limits.stop_ids:
        return FinishReason.STOP
    if length >= sequence.most_tokens or length >= world.longest:
        return FinishReason.LENGTH
    return None
