"""The scripted executor catches each kind of misuse it is there to catch."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.plan import BlockCopy, Chunk, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ExecutorError
from headway.testing import (
    LinearDuration,
    ManualClock,
    Mishaps,
    PlanFaultError,
    Script,
    ScriptedExecutor,
    make_capacity,
    oracle_tokens,
)
from headway.testing.builders import make_prompt
from headway.testing.feeder import Feeder, missing


def make_executor(mishaps: Mishaps | None = None, script: Script | None = None) -> ScriptedExecutor:
    return ScriptedExecutor(make_capacity(host_blocks=16), script, mishaps, LinearDuration())


def chunk(
    request: int, tokens: Sequence[int], start: int, blocks: Sequence[int], sample: bool = False
) -> Chunk:
    table = [BlockId(b) for b in blocks]
    return Chunk(RequestId(request), tokens, start, table, len(table), sample)


def plan_of(*chunks: Chunk, step: int = 0) -> StepPlan:
    return StepPlan(step, Lane.UNIFIED, chunks=chunks)


PROMPT = make_prompt(1, 20)


def prefilled(executor: ScriptedExecutor) -> int:
    """Request 1 with 20 tokens in blocks 3 and 5; returns its first token."""
    opened = Open(RequestId(1), PROMPT, SamplingSpec())
    plan = StepPlan(0, Lane.UNIFIED, (opened,), chunks=(chunk(1, PROMPT, 0, [3, 5], True),))
    return executor.submit(plan, {}).result().sampled[0].token


def test_wrong_block_is_caught() -> None:
    executor = make_executor()
    token = prefilled(executor)
    with pytest.raises(PlanFaultError, match="the cell of position 16 was never written"):
        executor.submit(plan_of(chunk(1, [token], 20, [3, 4], True)), {}).result()
    assert executor.faults


def test_block_given_away_too_early_is_caught() -> None:
    executor = make_executor()
    token = prefilled(executor)
    prompt = make_prompt(2, 8)
    opened = Open(RequestId(2), prompt, SamplingSpec())
    thief = StepPlan(1, Lane.UNIFIED, (opened,), chunks=(chunk(2, prompt, 0, [3], True),))
    executor.submit(thief, {}).result()
    with pytest.raises(PlanFaultError, match="the cell of position 0 is another's"):
        executor.submit(plan_of(chunk(1, [token], 20, [3, 5], True)), {}).result()


def test_wrong_copy_is_caught() -> None:
    executor = make_executor()
    token = prefilled(executor)
    out = (BlockCopy(BlockId(3), BlockId(0)), BlockCopy(BlockId(5), BlockId(1)))
    executor.submit(StepPlan(1, Lane.UNIFIED, swap_out=out), {}).result()
    swapped = (BlockCopy(BlockId(8), BlockId(1)), BlockCopy(BlockId(9), BlockId(0)))
    back = StepPlan(2, Lane.UNIFIED, swap_in=swapped, chunks=(chunk(1, [token], 20, [8, 9], True),))
    with pytest.raises(PlanFaultError, match="the cell of position 0 is another's"):
        executor.submit(back, {}).result()


def test_skipped_position_is_caught() -> None:
    executor = make_executor()
    opened = Open(RequestId(1), PROMPT, SamplingSpec())
    plan = StepPlan(0, Lane.UNIFIED, (opened,), chunks=(chunk(1, PROMPT[4:9], 4, [0]),))
    with pytest.raises(PlanFaultError, match="position 0 was never written"):
        executor.submit(plan, {}).result()


def test_lenient_executor_gives_other_tokens_instead() -> None:
    strict, lenient = make_executor(), make_executor(Mishaps(strict=False))
    token = prefilled(strict)
    assert prefilled(lenient) == token
    right = strict.submit(plan_of(chunk(1, [token], 20, [3, 5], True)), {}).result()
    wrong = lenient.submit(plan_of(chunk(1, [token], 20, [3, 4], True)), {}).result()
    assert right.sampled != wrong.sampled


BAD_PLANS: dict[str, Callable[[int], StepPlan]] = {
    "a chunk before it is opened": lambda t: plan_of(chunk(7, [1], 0, [0])),
    "both write block 5": lambda t: plan_of(
        chunk(1, [t], 20, [3, 5]), chunk(2, make_prompt(2, 8), 0, [5])
    ),
    "reads block 3, which 2 writes": lambda t: plan_of(
        chunk(1, [t], 20, [3, 5]), chunk(2, make_prompt(2, 8), 0, [3])
    ),
    "don't cover 33 tokens": lambda t: plan_of(chunk(1, [t], 32, [3, 5])),
    "block id outside the pool": lambda t: plan_of(chunk(1, [t], 20, [3, 64])),
    "uses of a block in one table": lambda t: plan_of(chunk(1, [t], 20, [3, 3])),
    "outside the vocabulary": lambda t: plan_of(chunk(1, [1000], 20, [3, 5])),
    "chunks of a request": lambda t: plan_of(chunk(1, [t], 20, [3, 5]), chunk(1, [t], 20, [3, 5])),
    "a chunk without tokens": lambda t: plan_of(chunk(1, [], 20, [3, 5])),
    "where": lambda t: plan_of(chunk(1, [(t + 1) % 1000], 20, [3, 5])),
    "no token is known": lambda t: plan_of(chunk(1, [t, t], 20, [3, 5])),
    "sampled at 20 of 21 tokens": lambda t: plan_of(chunk(1, PROMPT, 0, [3, 5], True)),
    "opened twice": lambda t: StepPlan(
        2, Lane.UNIFIED, (Open(RequestId(1), PROMPT, SamplingSpec()),)
    ),
    "closed but not open": lambda t: StepPlan(2, Lane.UNIFIED, closes=(RequestId(9),)),
    "a copy outside the pools": lambda t: StepPlan(
        2, Lane.UNIFIED, swap_out=(BlockCopy(BlockId(3), BlockId(16)),)
    ),
    "copies into a host block": lambda t: StepPlan(
        2,
        Lane.UNIFIED,
        swap_out=(BlockCopy(BlockId(3), BlockId(0)), BlockCopy(BlockId(5), BlockId(0))),
    ),
    "overwritten before they are read": lambda t: StepPlan(
        2,
        Lane.UNIFIED,
        swap_out=(BlockCopy(BlockId(3), BlockId(0)),),
        swap_in=(BlockCopy(BlockId(9), BlockId(0)),),
    ),
}


@pytest.mark.parametrize("fault", BAD_PLANS)
def test_bad_plan_is_refused(fault: str) -> None:
    executor = make_executor()
    token = prefilled(executor)
    opened = Open(RequestId(2), make_prompt(2, 8), SamplingSpec())
    executor.submit(StepPlan(1, Lane.UNIFIED, (opened,)), {}).result()
    with pytest.raises(PlanFaultError, match=fault):
        executor.submit(BAD_PLANS[fault](token), {})
    executor.submit(plan_of(chunk(1, [token], 20, [3, 5], True)), {}).result()


def test_second_step_in_flight_is_refused() -> None:
    executor = make_executor()
    prefilled(executor)
    executor.submit(StepPlan(1, Lane.UNIFIED), {})
    with pytest.raises(PlanFaultError, match="second step in flight"):
        executor.submit(StepPlan(2, Lane.UNIFIED), {})


def test_lanes_may_not_share_a_block_that_one_writes() -> None:
    executor = make_executor()
    token = prefilled(executor)
    executor.submit(plan_of(chunk(1, [token], 20, [3, 5], True)), {})
    stolen = StepPlan(2, Lane.PREFILL, swap_in=(BlockCopy(BlockId(5), BlockId(0)),))
    with pytest.raises(PlanFaultError, match="lanes share device blocks"):
        executor.submit(stolen, {})


def test_table_changed_in_place_is_caught() -> None:
    executor = make_executor()
    opened = Open(RequestId(1), PROMPT, SamplingSpec())
    table = [BlockId(3), BlockId(5)]
    first = Chunk(RequestId(1), PROMPT, 0, table, 2, True)
    sampled = executor.submit(StepPlan(0, Lane.UNIFIED, (opened,), chunks=(first,)), {}).result()
    table[0] = BlockId(4)
    later = first._replace(tokens=[sampled.sampled[0].token], start=20)
    with pytest.raises(PlanFaultError, match="changed in place"):
        executor.submit(plan_of(later), {})


def test_failing_step_ends_its_requests_only() -> None:
    executor = make_executor(Mishaps(fail_steps=frozenset({1})))
    feeder = Feeder(executor)
    feed, other = feeder.add(1, PROMPT), feeder.add(2, make_prompt(2, 9))
    feeder.prefill(feed)
    with pytest.raises(ExecutorError, match="failed, as its script says"):
        feeder.step({other.request: 9})
    feeder.close(other)
    feeder.decode(feed, num_tokens=3)
    assert feed.output == oracle_tokens(PROMPT, SamplingSpec(), 4, executor.script)
    assert executor.open_requests == {feed.request}


def test_interrupt_stops_at_a_layer_and_spoils_the_cells() -> None:
    clock = ManualClock()
    duration = LinearDuration(step_s=1.0, token_s=0.0)
    executor = ScriptedExecutor(make_capacity(), duration=duration, clock=clock)
    opened = Open(RequestId(1), PROMPT, SamplingSpec())
    first = chunk(1, PROMPT, 0, [3, 5], True)
    handle = executor.submit(StepPlan(0, Lane.UNIFIED, (opened,), chunks=(first,)), {})
    clock.advance(0.3)
    handle.interrupt()
    assert handle.result().interrupted and clock() == pytest.approx(0.5)
    later = chunk(1, PROMPT[16:], 16, [3, 5], True)
    with pytest.raises(PlanFaultError, match="never written"):
        executor.submit(plan_of(later), {}).result()


def test_interrupt_leaves_what_the_plan_keeps_for_its_part_of_the_time() -> None:
    clock = ManualClock()
    duration = LinearDuration(step_s=1.0, token_s=0.0)
    executor = ScriptedExecutor(make_capacity(), duration=duration, clock=clock)
    opens = tuple(Open(RequestId(i), PROMPT, SamplingSpec()) for i in (1, 2))
    chunks = chunk(1, PROMPT, 0, [3, 5], True), chunk(2, PROMPT, 0, [4, 6], True)
    handle = executor.submit(StepPlan(0, Lane.UNIFIED, opens, chunks=chunks, kept=1), {})
    clock.advance(0.3)
    handle.interrupt()
    end = handle.result()
    assert end.interrupted and [s.request for s in end.sampled] == [1]
    assert clock() == pytest.approx(0.75)
    again = StepPlan(1, Lane.UNIFIED, chunks=chunks[1:])
    assert [s.request for s in executor.submit(again, {}).result().sampled] == [2]


def test_interrupt_changes_nothing_where_all_is_kept() -> None:
    clock = ManualClock()
    executor = ScriptedExecutor(make_capacity(), duration=LinearDuration(1.0, 0.0), clock=clock)
    opened = Open(RequestId(1), PROMPT, SamplingSpec())
    chunks = (chunk(1, PROMPT, 0, [3, 5], True),)
    handle = executor.submit(StepPlan(0, Lane.UNIFIED, (opened,), chunks=chunks, kept=1), {})
    handle.interrupt()
    assert not handle.result().interrupted and clock() == 1.0


def test_result_times_out_and_goes_on() -> None:
    clock = ManualClock()
    duration = LinearDuration(step_s=1.0, token_s=0.0)
    executor = ScriptedExecutor(make_capacity(), duration=duration, clock=clock)
    handle = executor.submit(StepPlan(0, Lane.UNIFIED), {})
    with pytest.raises(TimeoutError):
        handle.result(timeout_s=0.25)
    assert clock() == 0.25 and not handle.done()
    assert handle.result().step == 0 and clock() == 1.0


def test_script_spells_out_an_answer() -> None:
    script = Script(outputs={RequestId(1): [5, 6, 7]})
    feeder = Feeder(make_executor(script=script))
    feed = feeder.add(1, PROMPT)
    feeder.prefill(feed)
    feeder.decode(feed, num_tokens=4)
    assert feed.output[:3] == [5, 6, 7]
    assert feed.output == oracle_tokens(PROMPT, SamplingSpec(), 5, script, request=RequestId(1))


def test_eos_comes_as_often_as_scripted() -> None:
    script = Script(eos_id=2, eos_probability=0.1)
    lengths = [
        len(oracle_tokens(make_prompt(i, 9), SamplingSpec(), 200, script, frozenset({2})))
        for i in range(200)
    ]
    assert 8 < sum(lengths) / len(lengths) < 12


@given(st.lists(st.sampled_from(["step", "swap", "drop", "part"]), max_size=12), st.integers(0, 3))
def test_any_life_gives_the_oracles_tokens(moves: list[str], seed: int) -> None:
    executor = make_executor()
    feeder = Feeder(executor)
    sampling = SamplingSpec(seed=seed, temperature=float(seed > 1))
    feed = feeder.add(1, PROMPT, sampling)
    for move in moves:
        if move == "drop":
            feeder.drop(feed)
        elif move == "swap" and feed.blocks:
            feeder.step({}, swap_out=[feed])
            feeder.step({}, swap_in=[feed])
        elif move == "part":
            feeder.step({feed.request: max(1, missing(feed) // 2)})
        else:
            feeder.step({feed.request: missing(feed)})
    expected = oracle_tokens(PROMPT, sampling, len(feed.output), executor.script)
    assert feed.output == expected and not executor.faults
