"""Trace readers, jitter, synthetic traces; files that can't be used are named by line."""

import json
from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.simulate.synthetic import Quantiles, load_trace
from headway.simulate.traces import MOONCAKE_TICK_S, read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
)


def mooncake(*rows: tuple[int, int, int, list[int]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_azure(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "conv.csv", AZURE), seed=0)
    assert trace.name == "conv"
    assert [(r.prompt_tokens, r.answer_tokens) for r in trace.records] == [(374, 44), (396, 109)]
    assert trace.records[0].at_s == 0
    assert trace.records[1].at_s == pytest.approx(4.314579)
    assert trace.longest_answer == 109
    assert trace.longest_request == 505


def test_azure_columns_in_any_order_blank_lines_and_no_last_newline(tmp_path: Path) -> None:
    header = "GeneratedTokens,TIMESTAMP,ContextTokens"
    text = f"{header}\n\n7,2023-11-16 18:15:46,5\n\n8,2023-11-16 18:15:47,6"
    trace = read_trace(written(tmp_path / "x.csv", text), seed=0)
    assert [(r.at_s, r.prompt_tokens, r.answer_tokens) for r in trace.records] == [
        (0, 5, 7),
        (1, 6, 8),
    ]


def test_mooncake_is_jittered_within_its_tick_and_sorted(tmp_path: Path) -> None:
    rows = [(3000 * (i // 10), 600, 5, [0, i]) for i in range(100)]
    path = written(tmp_path / "m.jsonl", mooncake(*rows))
    trace = read_trace(path, seed=1)
    times = [r.at_s for r in trace.records]
    assert times == sorted(times)
    assert len(set(times)) == 100
    assert 9 * MOONCAKE_TICK_S < times[-1] < 10 * MOONCAKE_TICK_S
    assert trace.records[0].blocks[:1] == array("I", [0])
    again, other = read_trace(path, seed=1), read_trace(path, seed=2)
    assert trace == again
    assert times != [r.at_s for r in other.records]


def test_only_the_first_requests(tmp_path: Path) -> None:
    path = written(tmp_path / "conv.csv", AZURE)
    assert len(read_trace(path, seed=0, max_requests=1).records) == 1


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = {"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "neither JSON lines nor a CSV"),
        ("a,b\n1,2\n", "wrong.txt:1: neither JSON lines nor a CSV"),
        (HEADER, "holds no requests"),
        (HEADER + "2023-11-16 18:15:46,5\n", "wrong.txt:2: "),
        (HEADER + "yesterday,5,5\n", "wrong.txt:2: "),
        (HEADER + "2023-11-16 18:15:46,0,5\n", "wrong.txt:2: '0' is no number of tokens"),
        (HEADER + "2023-11-16 18:15:46,-4,5\n", "wrong.txt:2: "),
        (HEADER + "2023-11-16 18:15:46,5,1.5\n", "wrong.txt:2: "),
        (HEADER + "2023-11-16 18:15:46,5,99999999999\n", "wrong.txt:2: "),
        (json.dumps(ROW) + "\n{\n", "wrong.txt:2: "),
        (json.dumps(ROW) + "\n[1]\n", "wrong.txt:2: "),
        (json.dumps({"timestamp": 0}), "wrong.txt:1: 'input_length' is missing"),
        (json.dumps({**ROW, "hash_ids": []}), "wrong.txt:1: "),
        (json.dumps({**ROW, "hash_ids": ["a"]}), "wrong.txt:1: "),
        (json.dumps({**ROW, "hash_ids": [-1]}), "wrong.txt:1: "),
        (json.dumps({**ROW, "hash_ids": 3}), "wrong.txt:1: "),
        (json.dumps({**ROW, "input_length": 513}), "wrong.txt:1: 1 hash_ids can't cover 513"),
        (json.dumps({**ROW, "input_length": True}).replace("true", "null"), "wrong.txt:1: "),
        (json.dumps({**ROW, "timestamp": -1}), "wrong.txt:1: "),
        (json.dumps({**ROW, "timestamp": "x"}), "wrong.txt:1: "),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5, "hash_ids": [1]}', ":1: "),
    ],
)
def test_what_can_not_be_used_is_named_in_a_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path / "wrong.txt", text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path, seed=0)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "wrong.bin"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"wrong\.bin"):
        read_trace(path, seed=0)
    with pytest.raises(ConfigError, match="nowhere"):
        read_trace(tmp_path / "nowhere", seed=0)


def test_synthetic_traces_have_their_rate_and_the_real_ones_quantiles() -> None:
    trace = load_trace("poisson:4", seed=3, max_requests=4000)
    assert trace.records[-1].at_s == pytest.approx(1000, rel=0.1)
    prompts = sorted(r.prompt_tokens for r in trace.records)
    answers = sorted(r.answer_tokens for r in trace.records)
    # Of Azure's conversation trace: medians 1,020 and 129, 90 % below 2,734 and 424.
    assert prompts[2000] == pytest.approx(1020, rel=0.05)
    assert prompts[3600] == pytest.approx(2734, rel=0.1)
    assert answers[2000] == pytest.approx(129, rel=0.05)
    assert answers[3600] == pytest.approx(424, rel=0.05)
    assert load_trace("poisson:4", seed=3, max_requests=10).records == trace.records[:10]
    assert load_trace("poisson:4", seed=4, max_requests=10).records != trace.records[:10]


def test_gamma_gaps_have_their_coefficient_of_variation() -> None:
    records = load_trace("gamma:10:3", seed=1, max_requests=20_000).records
    gaps = [b.at_s - a.at_s for a, b in pairwise(records)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.1)
    assert deviation / mean == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    "words", ["poisson:0", "poisson:x", "poisson:1:2", "gamma:1:2:3", "gamma:1:-1", "gamma:nan"]
)
def test_wrong_words_for_a_synthetic_trace(words: str) -> None:
    with pytest.raises(ConfigError, match="is not"):
        load_trace(words, seed=0)


def test_quantiles_are_linear_between_levels() -> None:
    quantiles = Quantiles((0.0, 0.5, 1.0), (0.0, 100.0, 300.0))
    assert [quantiles.tokens(level) for level in (0.0, 0.25, 0.5, 0.75, 1.0)] == [
        1,
        50,
        100,
        200,
        300,
    ]
