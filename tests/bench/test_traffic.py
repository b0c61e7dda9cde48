"""What is sent, and when: the command line's words, arrivals, lengths, prompts."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.traffic import (
    Sizes,
    from_streams,
    from_trace,
    parse_lengths,
    parse_stream,
    prompt_text,
)
from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway.simulate.synthetic import load_trace
from headway.simulate.workload import Mix

REALTIME = "realtime:rate=50,prompt=80,answer=32"


def test_open_loop_arrivals_have_the_rate_and_keep_to_the_seed() -> None:
    stream = parse_stream(REALTIME)
    arrivals = from_streams([stream], 100.0, seed=1).arrivals
    assert arrivals == from_streams([stream], 100.0, seed=1).arrivals
    assert arrivals != from_streams([stream], 100.0, seed=2).arrivals
    assert 4_700 < len(arrivals) < 5_300
    assert all(a.sizes == Sizes(80, 32) for a in arrivals)
    assert [a.at_s for a in arrivals] == sorted(a.at_s for a in arrivals)


@pytest.mark.parametrize(("cv", "low", "high"), [("1", 0.9, 1.1), ("3", 2.5, 3.5)])
def test_gaps_have_their_coefficient_of_variation(cv: str, low: float, high: float) -> None:
    stream = parse_stream(f"standard:rate=50,cv={cv},prompt=8,answer=2")
    times_s = [a.at_s for a in from_streams([stream], 200.0, seed=3).arrivals]
    gaps = [b - a for a, b in pairwise(times_s)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert low < deviation / mean < high


def test_a_flood_sends_the_same_again_and_no_two_streams_alike() -> None:
    flood = from_streams([parse_stream("batch:streams=2,prompt=10/90,answer=4")], 9, 1).floods[0]
    first = [size for size, _ in zip(flood.requests(0, seed=1), range(20), strict=False)]
    again = [size for size, _ in zip(flood.requests(0, seed=1), range(20), strict=False)]
    other = [size for size, _ in zip(flood.requests(1, seed=1), range(20), strict=False)]
    assert first == again != other
    assert all(10 <= size.prompt_tokens <= 90 for size in first)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=6).map(sorted), st.floats(0, 1))
def test_lengths_lie_between_the_first_and_the_last(values: Sequence[int], level: float) -> None:
    lengths = parse_lengths("/".join(map(str, values)))
    assert values[0] <= lengths.tokens(level) <= values[-1]
    assert (lengths.tokens(0), lengths.tokens(1)) == (values[0], values[-1])


def test_a_trace_gives_arrivals_classes_and_lengths() -> None:
    trace = load_trace("poisson:10", seed=0, max_requests=500)
    mix = Mix(((ServiceClass.REALTIME, 1.0), (ServiceClass.BATCH, 1.0)), rate_scale=2.0)
    arrivals = from_trace(trace, mix, 10.0, None, parse_lengths("7")).arrivals
    assert 150 < len(arrivals) < 250
    assert {a.service_class for a in arrivals} == {ServiceClass.REALTIME, ServiceClass.BATCH}
    assert arrivals[5].at_s == trace.records[5].at_s / 2
    assert arrivals[5].sizes == Sizes(trace.records[5].prompt_tokens, 7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("urgent:rate=1,prompt=8,answer=2", "realtime, standard, batch"),
        ("realtime", "CLASS:KEY=VALUE"),
        ("realtime:rate=1,prompt=8,answer=2,depth=3", "depth=3"),
        ("realtime:rate=1,rate=2,prompt=8,answer=2", "rate=2"),
        ("realtime:prompt=8,answer=2", "rate= "),
        ("realtime:rate=1,streams=2,prompt=8,answer=2", "not both"),
        ("realtime:rate=0,prompt=8,answer=2", "rate=0"),
        ("realtime:rate=inf,prompt=8,answer=2", "rate=inf"),
        ("realtime:rate=1,cv=x,prompt=8,answer=2", "cv=x"),
        ("batch:streams=-1,prompt=8,answer=2", "streams=-1"),
        ("batch:streams=0,prompt=8,answer=2", "streams=0"),
        ("realtime:rate=1,answer=2", "prompt="),
        ("realtime:rate=1,prompt=0,answer=2", "'0'"),
        ("realtime:rate=1,prompt=9/8,answer=2", "'9/8'"),
        ("realtime:rate=1,prompt=8/,answer=2", "'8/'"),
    ],
)
def test_wrong_words_are_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_stream(text)


def test_prompts_share_what_they_should_and_no_more() -> None:
    draw = random.Random(4)
    plain = [prompt_text(20, 0, "batch", draw).split() for _ in range(50)]
    assert all(len(words) == 20 for words in plain)
    assert len({words[0] for words in plain}) == 50
    shared = [prompt_text(20, 12, "batch", draw).split() for _ in range(50)]
    assert len({tuple(words[:12]) for words in shared}) == 1
    assert len({words[12] for words in shared}) == 50
    assert shared[0][:12] != prompt_text(20, 12, "realtime", draw).split()[:12]
