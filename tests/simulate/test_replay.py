"""Whole replays: everything ends, tokens add up, the same seed gives the same, more is not less."""

import json
from array import array
from dataclasses import replace

import pytest

from headway.core.config import POLICIES
from headway.core.types import RequestId, ServiceClass
from headway.engine.options import LoopOptions
from headway.errors import ConfigError
from headway.simulate.cells import Cell, Sizes, run_cells
from headway.simulate.devices import Host, find_device
from headway.simulate.record import Recorder, ended_well
from headway.simulate.report import document
from headway.simulate.synthetic import load_trace
from headway.simulate.traces import MOONCAKE_BLOCK_TOKENS, Record, Trace
from headway.simulate.workload import BlockPrompt
from tests.simulate.helpers import make_cell

TRACE = load_trace("gamma:6", seed=1, max_requests=36)


def replayed(cell: Cell, trace: Trace = TRACE) -> Recorder:
    return cell.replay(trace)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "sizes", [Sizes(), Sizes(kv_blocks=700, host_blocks=400, max_seqs=8), Sizes(700, -1, 8)]
)
def test_every_request_ends_with_its_whole_answer(policy: str, sizes: Sizes) -> None:
    recorder = replayed(make_cell(policy=policy, sizes=sizes, rate_scale=3))
    assert len(recorder.lives) == len(TRACE.records)
    assert recorder.alive == 0
    for life, record in zip(recorder.lives.values(), TRACE.records, strict=True):
        assert ended_well(life)
        assert life.tokens == record.answer_tokens
        assert life.finished is not None
        assert life.finished.usage.generated == record.answer_tokens
        assert life.first_s is not None
        assert life.arrival_s < life.first_s <= life.last_s
    answers = sum(r.answer_tokens for r in TRACE.records)
    assert sum(c.tokens for c in recorder.classes.values()) == answers
    gaps = sum(len(c.gaps_s) for c in recorder.classes.values())
    assert gaps == answers - len(TRACE.records)


def test_every_token_is_computed_once_where_nothing_is_preempted() -> None:
    recorder = replayed(make_cell())
    prompts = sum(r.prompt_tokens for r in TRACE.records)
    answers = sum(r.answer_tokens for r in TRACE.records)
    busy = recorder.busy
    assert not any(c.swaps + c.recomputes for c in recorder.classes.values())
    # The last token of an answer is sampled and never computed.
    computed = busy.prefill_tokens + busy.decode_tokens
    assert computed == prompts + answers - len(TRACE.records)


def test_a_small_pool_preempts_and_says_so() -> None:
    sizes = Sizes(kv_blocks=600, host_blocks=500, max_seqs=64)
    recorder = replayed(make_cell(policy="fcfs", sizes=sizes, rate_scale=8))
    swaps = sum(c.swaps for c in recorder.classes.values())
    assert swaps > 0
    assert recorder.busy.swapped_blocks > 0
    assert recorder.busy.copying_s > 0
    without = replayed(make_cell(policy="fcfs", sizes=Sizes(600, -1, 64), rate_scale=8))
    assert sum(c.swaps for c in without.classes.values()) == 0
    assert sum(c.recomputes for c in without.classes.values()) > 0
    assert without.busy.copying_s == 0


@pytest.mark.parametrize("lanes", ["split", "auto", "split:0.6"])
def test_two_lanes_serve_everything_too(lanes: str) -> None:
    recorder = replayed(make_cell(lanes=lanes, rate_scale=3))
    assert all(ended_well(life) for life in recorder.lives.values())
    answers = sum(r.answer_tokens for r in TRACE.records)
    assert sum(life.tokens for life in recorder.lives.values()) == answers
    busy = recorder.busy
    assert busy.any_s <= busy.computing_s + busy.copying_s + 1e-6
    assert busy.any_s <= recorder.end_s


@pytest.mark.parametrize("lanes", ["three", "split:0", "split:1", "split:x", "auto:0.5", ""])
def test_lanes_that_there_are_not(lanes: str) -> None:
    with pytest.raises(ConfigError, match="lanes"):
        make_cell(lanes=lanes).scheduler()


def test_a_backlog_is_always_there_and_ends_with_the_trace() -> None:
    cell = make_cell(shares={"realtime": 1}, backlog=20)
    recorder = replayed(cell)
    batch = [x for x in recorder.lives.values() if x.service_class is ServiceClass.BATCH]
    realtime = [x for x in recorder.lives.values() if x.service_class is ServiceClass.REALTIME]
    assert len(realtime) == len(TRACE.records)
    assert all(ended_well(life) for life in realtime)
    assert len(batch) > 20
    end_s = max(life.last_s for life in realtime)
    # Whoever ends in the very last step is followed by nobody.
    assert sum(1 for life in batch if not ended_well(life) or life.last_s >= end_s) == 20
    assert all(life.finished for life in batch)


def test_what_never_fits_is_counted_and_nobody_waits_for_it() -> None:
    records = (Record(0.0, 3000, 4), Record(1.0, 30, 4))
    figures = make_cell(sizes=Sizes(kv_blocks=64)).run(Trace("two", records))
    assert sum(c.requests for c in figures.classes.values()) == 1
    assert sum(c.cut for c in figures.classes.values()) == 1


def test_the_same_seed_gives_the_same_document_in_any_number_of_processes() -> None:
    cells = [make_cell(policy=p, rate_scale=2, backlog=3) for p in ("tiered", "fcfs")]
    first = json.dumps(document(cells, run_cells(cells, TRACE, jobs=1), TRACE, "gamma"))
    again = json.dumps(document(cells, run_cells(cells, TRACE, jobs=2), TRACE, "gamma"))
    assert first == again
    other = [make_cell(policy=p, rate_scale=2, backlog=3, seed=1) for p in ("tiered", "fcfs")]
    assert first != json.dumps(document(other, run_cells(other, TRACE, jobs=1), TRACE, "gamma"))


def test_classes_do_not_depend_on_rate_or_policy() -> None:
    slow, fast = replayed(make_cell()), replayed(make_cell(policy="fcfs", rate_scale=5))
    assert [x.service_class for x in slow.lives.values()] == [
        x.service_class for x in fast.lives.values()
    ]


def test_a_faster_device_is_not_slower() -> None:
    ends = [replayed(make_cell(device=d, rate_scale=20)).end_s for d in ("a100", "h100", "h200")]
    assert ends == sorted(ends, reverse=True)
    assert ends[0] > 1.2 * ends[-1]


def test_a_higher_rate_ends_no_later_and_waits_no_less() -> None:
    slow = make_cell(policy="fcfs").run(TRACE)
    fast = make_cell(policy="fcfs", rate_scale=30).run(TRACE)
    assert fast.span_s < slow.span_s
    for service_class, seen in slow.classes.items():
        assert fast.classes[service_class].ttft.mean > seen.ttft.mean


def realtime_after_batch(
    device: str, model: str, layer_group: int, gain_s: float = 0.0
) -> tuple[float, int]:
    """Realtime's time to first token beside a batch prompt of 8,000 tokens, and interrupts."""
    trace = Trace("two", (Record(0.0, 8000, 2), Record(0.1, 20, 2)))
    order = [ServiceClass.BATCH, ServiceClass.REALTIME]
    shares = {"realtime": 1.0, "batch": 1.0}
    seeds = (make_cell(shares=shares, seed=seed).mix for seed in range(100))
    seed = next(m.seed for m in seeds if [m.service_class(i) for i in range(2)] == order)
    cell = make_cell(device=device, model=model, shares=shares, seed=seed)
    host = Host(interrupt_gain_s=gain_s)
    grouped = replace(cell, device=replace(cell.device, layer_group=layer_group, host=host))
    recorder = replayed(grouped, trace)
    assert all(ended_well(life) for life in recorder.lives.values())
    first_s = recorder.lives[RequestId(1)].first_s
    assert first_s is not None
    return first_s - 0.1, recorder.busy.interrupted


@pytest.mark.parametrize("names", [("cpu", "smollm2-135m"), ("h100", "llama-3.1-8b")])
def test_realtime_interrupts_a_long_step_where_the_device_can(names: tuple[str, str]) -> None:
    waits = {group: realtime_after_batch(*names, group) for group in (0, 1, 4)}
    assert [interrupted for _, interrupted in waits.values()] == [0, 1, 1]
    seconds = {group: wait_s for group, (wait_s, _) in waits.items()}
    assert seconds[1] <= seconds[4] < 0.6 * seconds[0]


def test_realtime_interrupts_where_that_gains_what_the_engine_asks() -> None:
    whole_s, _ = realtime_after_batch("h100", "llama-3.1-8b", 0)
    assert realtime_after_batch("h100", "llama-3.1-8b", 1, 0.5 * whole_s)[1] == 1
    assert realtime_after_batch("h100", "llama-3.1-8b", 1, whole_s) == (whole_s, 0)


def test_the_cpu_interrupts_as_the_engine_does() -> None:
    assert find_device("cpu").host.interrupt_gain_s == LoopOptions().interrupt_gain_s


def test_readers_have_tokens_a_door_later_than_the_scheduler() -> None:
    cell = make_cell()
    far = replace(cell, device=replace(cell.device, host=Host(door_s=0.25)))
    near, later = replayed(cell).lives.values(), replayed(far).lives.values()
    for life, other in zip(near, later, strict=True):
        assert life.first_s is not None
        assert other.first_s == pytest.approx(life.first_s + 0.25)
        assert other.last_s == pytest.approx(life.last_s + 0.25)
        assert other.arrival_s == life.arrival_s


def test_equal_hash_ids_are_served_from_the_prefix_cache() -> None:
    blocks = array("I", [1, 2, 3])
    records = (Record(0.0, 1300, 4, blocks), Record(5.0, 1400, 4, blocks))
    figures = make_cell().run(Trace("shared", records))
    assert figures.cached_tokens == 1296  # All full blocks of the first prompt: 81 of 16.
    other = (records[0], Record(5.0, 1400, 4, array("I", [9, 2, 3])))
    assert make_cell().run(Trace("apart", other)).cached_tokens == 0


def test_a_prompt_of_blocks_is_a_sequence() -> None:
    prompt = BlockPrompt(array("I", [4, 1]), MOONCAKE_BLOCK_TOKENS + 3)
    tokens = list(prompt)
    assert len(prompt) == len(tokens) == MOONCAKE_BLOCK_TOKENS + 3
    assert tokens[0] == 2 + 4 * MOONCAKE_BLOCK_TOKENS
    assert tokens[-1] == prompt[-1] == 2 + MOONCAKE_BLOCK_TOKENS + 2
    assert prompt[510:514] == tokens[510:514]
    assert [prompt[i] for i in range(len(prompt))] == tokens
    with pytest.raises(IndexError):
        prompt[len(prompt)]


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves no room"):
        make_cell(device="cpu", model="codellama-34b").run(TRACE)
