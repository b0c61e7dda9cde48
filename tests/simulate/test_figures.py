"""Percentiles, goodput and targets, worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.request import Finished, Usage
from headway.core.types import FinishReason, RequestId, ServiceClass
from headway.errors import ConfigError, ModelError
from headway.simulate.capacity import broken
from headway.simulate.figures import Objective, Spread, figures, parse_objectives, tpot_s
from headway.simulate.record import Life, Recorder
from headway.simulate.shapes import find_model
from headway.simulate.workload import Mix, parse_shares

REALTIME = ServiceClass.REALTIME


def life(arrival_s: float, first_s: float, last_s: float, tokens: int) -> Life:
    finished = Finished(RequestId(1), FinishReason.STOP, Usage(recomputed=2, cached=3))
    return Life(
        arrival_s, REALTIME, 10, first_s=first_s, last_s=last_s, tokens=tokens, finished=finished
    )


def recorder_of(*lives: Life) -> Recorder:
    recorder = Recorder()
    recorder.lives = {RequestId(i): x for i, x in enumerate(lives)}
    recorder.classes[REALTIME].tokens = sum(x.tokens for x in lives)
    recorder.classes[REALTIME].gaps_s.extend([0.1, 0.3])
    recorder.close(10.0)
    return recorder


def test_percentiles_are_linear() -> None:
    spread = Spread.of([float(i) for i in range(101)])
    assert (spread.p50, spread.p90, spread.p99, spread.most) == (50, 90, 99, 100)
    assert Spread.of([1.0, 2.0]).p50 == 1.5
    assert Spread.of([]).count == 0


def test_rates_and_goodput() -> None:
    good, slow = life(0, 0.2, 1.2, 11), life(1, 2.0, 2.5, 6)
    cut = replace(
        life(2, 2.1, 2.2, 2), finished=Finished(RequestId(3), FinishReason.ABORT, Usage())
    )
    result = figures(recorder_of(good, slow, cut), {REALTIME: Objective(ttft_s=0.5, itl_s=0.2)})
    seen = result.classes[REALTIME]
    assert (seen.requests, seen.cut, seen.tail) == (2, 1, "p90")
    assert seen.requests_per_s == pytest.approx(0.2)
    assert seen.good_per_s == pytest.approx(0.1)
    assert seen.tokens_per_s == pytest.approx(1.9)
    assert seen.ttft.p50 == pytest.approx(0.6)
    assert result.recomputed_tokens == 4
    assert tpot_s(good) == pytest.approx(0.1)
    assert list(result.classes) == [REALTIME]


def test_missed_targets_are_said_in_words() -> None:
    result = figures(recorder_of(life(0, 0.2, 1.2, 11)), {})
    assert broken(result, {REALTIME: Objective(ttft_s=0.5, itl_s=0.5)}) == ()
    (missed,) = broken(result, {REALTIME: Objective(ttft_s=0.1)})
    assert missed == "realtime TTFT p90 0.2 s > 0.1 s"
    (missed,) = broken(result, {REALTIME: Objective(itl_s=0.2)})
    assert missed.startswith("realtime ITL p90")


def test_objectives_of_several_classes() -> None:
    parsed = parse_objectives("realtime.ttft=0.5, realtime.itl=0.05,batch.ttft=60")
    assert parsed[REALTIME] == Objective(0.5, 0.05)
    assert parsed[ServiceClass.BATCH] == Objective(ttft_s=60)
    with pytest.raises(ConfigError, match=r"'realtime\.ttft' is not"):
        parse_objectives("realtime.ttft")


def test_class_shares_are_kept() -> None:
    mix = Mix(parse_shares({"realtime": 1, "batch": 3}), seed=5)
    drawn = [mix.service_class(i) for i in range(2000)]
    assert drawn.count(REALTIME) == pytest.approx(500, rel=0.1)
    assert ServiceClass.STANDARD not in drawn
    assert drawn[:50] == [mix.service_class(i) for i in range(50)]


def test_known_models() -> None:
    assert find_model("qwen2.5-7b").kv_bytes == 56 * 1024
    assert find_model("smollm2-135m").weights == pytest.approx(134.5e6, rel=0.01)


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def test_a_model_from_a_config_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    model = find_model(str(path))
    assert model == find_model(str(tmp_path))
    assert model.layer_weights == 2 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 128)
    assert model.weights == model.layer_weights + 64 * 100


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", json.dumps({**CONFIG, "model_type": "mamba"}), '{"vocab_size": "x"}']
)
def test_config_files_that_can_not_be_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelError) as caught:
        find_model(str(path))
    assert "\n" not in str(caught.value)


def test_time_to_first_token_by_length_of_prompt() -> None:
    lives = [replace(life(0, 0.01 * n, 1.0, 5), prompt_tokens=n) for n in (80, 10, 40, 30, 60, 20)]
    quartiles = figures(recorder_of(*lives), {}).classes[REALTIME].quartiles
    assert [q.longest for q in quartiles] == [10, 30, 40, 80]
    assert [q.ttft.count for q in quartiles] == [1, 2, 1, 2]
    assert [q.ttft.most for q in quartiles] == pytest.approx([0.1, 0.3, 0.4, 0.8])
    assert {q.tail for q in quartiles} == {"p90"}
    assert figures(recorder_of(*lives[:3]), {}).classes[REALTIME].quartiles == ()
