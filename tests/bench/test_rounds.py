"""Which rounds count, and what they say."""

import random

import pytest

from headway.bench.rounds import Probe, estimate, note, steady


def test_rounds_whose_probes_are_off_are_left_out() -> None:
    probes = [(100, 101), (100, 94), (106, 100), (104, 96), (99, 100)]
    assert steady(probes) == [True, False, False, True, True]


def test_a_median_lies_in_its_interval_which_narrows_with_rounds() -> None:
    rng = random.Random(1)
    values = [1.5 + 0.1 * rng.gauss(0, 1) for _ in range(200)]
    few, many = estimate(values[:8]), estimate(values)
    assert few.low <= few.median <= few.high
    assert many.low < 1.5 < many.high
    assert many.high - many.low < few.high - few.low
    assert str(estimate([2.0])) == "2.00 (2.00 to 2.00)"
    assert str(estimate([220.4, 220.4])) == "220 (220 to 220)"


@pytest.mark.parametrize(
    ("kept", "words"),
    [([True, False], "1 rounds; 1 more left out"), ([False, False], "none of 2 rounds")],
)
def test_what_was_left_out_is_said(kept: list[bool], words: str) -> None:
    assert words in note(kept)


def test_the_probe_counts_work() -> None:
    assert Probe().rate() > 0
