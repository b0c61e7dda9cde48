"""The online model of a step's time: what it learns, and what must not move it."""

import random
import statistics
from collections.abc import Callable, Iterable
from math import inf

import pytest

from headway.core.step_model import StepLoad, StepModel

Clock = Callable[[StepLoad], float]


def accelerator(load: StepLoad) -> float:
    """A roofline: weights are read once a step, however few tokens there are."""
    tokens = load.prefill_tokens + load.decode_rows
    attention = 1.2e-9 * load.prefill_context + 5e-8 * load.decode_context
    return 0.001 + max(0.005, 2.7e-5 * tokens) + attention


def processor(load: StepLoad) -> float:
    """Time in proportion to the tokens, a thousand times as slow."""
    tokens = load.prefill_tokens + load.decode_rows
    return 0.0005 + 0.0008 * tokens + 1e-6 * load.decode_context + 5e-7 * load.prefill_context


def mixed_loads(count: int, seed: int) -> list[StepLoad]:
    """Decode steps of changing size, now and then with a prefill chunk."""
    draw = random.Random(seed)
    loads, rows = [], 1
    for _ in range(count):
        rows = min(max(rows + draw.choice((-1, 0, 1)), 1), 64)
        load = StepLoad(0, 0, rows, rows * draw.randrange(100, 2000))
        if draw.random() < 0.05:
            load = load.plus(draw.randrange(16, 2048), draw.randrange(4000), decoding=False)
        loads.append(load)
    return loads


@pytest.mark.parametrize("clock", [accelerator, processor])
def test_the_error_is_small_after_200_steps_and_stays_so(clock: Clock) -> None:
    model = StepModel()
    errors = []
    for load in mixed_loads(6000, seed=1):
        model.observe(load, clock(load))
        errors.append(model.relative_error)
    assert statistics.median(errors[200:1000]) < 0.1
    assert statistics.median(errors[-1000:]) < 0.1
    assert max(errors[-1000:]) < 1


def test_a_rare_prefill_chunk_is_predicted_too() -> None:
    model = StepModel()
    loads = mixed_loads(4000, seed=2)
    errors = []
    for load in loads:
        model.observe(load, accelerator(load))
        errors.append((load.prefill_tokens, model.relative_error))
    prefill = [error for tokens, error in errors[1000:] if tokens > 256]
    assert statistics.median(prefill) < 0.15


def test_what_the_load_does_not_excite_stays_as_it_was() -> None:
    model = StepModel()
    for load in mixed_loads(2000, seed=3):
        model.observe(load, processor(load))
    before = model.prefill_seconds(500)
    for _ in range(20_000):
        load = StepLoad(0, 0, 8, 8 * 500)
        model.observe(load, processor(load))
    assert model.prefill_seconds(500) == pytest.approx(before, rel=0.05)


def test_one_stolen_time_slice_moves_the_prediction_little() -> None:
    model = StepModel()
    for load in mixed_loads(2000, seed=4):
        model.observe(load, processor(load))
    load = StepLoad(0, 0, 8, 8 * 500)
    before = model.predict(load)
    model.observe(load, 40 * processor(load))
    assert model.predict(load) == pytest.approx(before, rel=0.05)


def test_a_machine_that_slows_down_is_followed() -> None:
    model = StepModel()
    for load in mixed_loads(2000, seed=5):
        model.observe(load, processor(load))
    for load in mixed_loads(1500, seed=6):
        model.observe(load, 3 * processor(load))
    load = StepLoad(0, 0, 8, 8 * 500)
    assert model.predict(load) == pytest.approx(3 * processor(load), rel=0.1)


def test_prefill_room_is_what_fits() -> None:
    model = StepModel()
    for load in mixed_loads(3000, seed=7):
        model.observe(load, processor(load))
    rows = StepLoad(0, 0, 4, 4 * 500)
    room = model.prefill_room(rows, 0, 0.1)
    assert room > 0
    assert model.predict(rows.plus(room, 0, decoding=False)) == pytest.approx(0.1, rel=0.02)
    assert model.prefill_room(rows, 0, model.predict(rows) / 2) == 0


def test_a_long_chunks_room_counts_that_its_tokens_see_each_other() -> None:
    model = StepModel()
    for load in mixed_loads(3000, seed=7):
        model.observe(load, processor(load))
    for context in (0, 1000):
        room = model.prefill_room(StepLoad(), context, 2.0)
        chunk = StepLoad().plus(room, context, decoding=False)
        assert chunk.prefill_context > 1.3 * room * context
        assert model.predict(chunk) == pytest.approx(2.0, rel=0.001)


def overrun_after(errors: Iterable[float], room: float = 1.0) -> float:
    """Of a model that knows its load and then sees steps so much longer than it predicts, held to
    `room` times that."""
    model, load = StepModel(), StepLoad(0, 0, 8, 8 * 500)
    for _ in range(400):
        model.observe(load, processor(load))
    for error in errors:
        predicted_s = model.predict(load)
        model.observe(load, predicted_s * (1 + error), room * predicted_s)
    return model.overrun


def test_the_overrun_is_what_one_limited_step_in_a_hundred_exceeds() -> None:
    draw = random.Random(9)
    errors = [draw.uniform(-0.02, 0.02) for _ in range(20_000)]
    assert overrun_after(errors) == pytest.approx(0.0196, abs=0.003)
    assert overrun_after(errors, inf) == 0.0


def test_the_overrun_stays_between_nothing_and_all() -> None:
    assert overrun_after([-0.01] * 50) == 0.0
    assert overrun_after([0.5] * 100) > 0.4
    assert overrun_after([3.0] * 200) == 1.0


def test_a_large_overrun_is_followed_as_fast_as_a_small_one() -> None:
    errors = [0.4 if i % 10 == 0 else 0.0 for i in range(1000)]
    assert overrun_after(errors) == pytest.approx(0.4, abs=0.05)


def test_what_a_short_step_loses_is_held_against_the_time_it_had() -> None:
    errors = [0.8 if i % 10 == 0 else 0.0 for i in range(1000)]
    assert overrun_after(errors, room=4) == pytest.approx(0.2, abs=0.03)


def test_the_overrun_is_of_all_that_a_step_took() -> None:
    model, load = StepModel(), StepLoad(0, 0, 4, 100)
    for _ in range(400):
        model.observe(load, 0.01)
    for _ in range(100):
        model.observe(load, 0.01, 0.01, elapsed_s=0.012)
    assert model.overrun == pytest.approx(0.2, abs=0.03)
    assert model.predict(load) == pytest.approx(0.01, rel=0.01)


def test_what_a_new_model_gets_wrong_is_no_overrun() -> None:
    model = StepModel()
    for load in mixed_loads(100, seed=10):
        model.observe(load, 5 * processor(load), 0.05)
    assert model.overrun == 0.0


def test_a_lone_row_is_predicted_though_most_steps_are_long_chunks() -> None:
    """Reading the weights takes 5 ms, which a chunk of 1,500 tokens hides."""
    model, draw = StepModel(), random.Random(8)
    for _ in range(3000):
        rows = draw.randrange(10, 60)
        load = StepLoad(0, 0, rows, 600 * rows)
        if draw.random() < 0.5:
            load = StepLoad(0, 0, 240, 240 * 600).plus(draw.randrange(1300, 1700), 200, False)
        model.observe(load, accelerator(load))
    lone = StepLoad(0, 0, 1, 600)
    assert model.predict(lone) == pytest.approx(accelerator(lone), rel=0.05)


def test_attention_does_not_hide_behind_the_reading_of_the_weights() -> None:
    def seconds(load: StepLoad) -> float:
        rows_s, context_s = 5e-5 * load.decode_rows, 2e-9 * load.prefill_context
        return max(5e-3 + rows_s, 1e-3 + 2.5e-5 * load.prefill_tokens + rows_s) + context_s

    model = StepModel()
    for i in range(400):
        prompt = (0, 400, 600, 900)[i % 4]
        load = StepLoad(prompt, prompt * (200 + 37 * (i % 50)), 1 + i % 7, 0)
        model.observe(load, seconds(load))
    hidden = StepLoad(100, 100 * 8000, 2, 0)
    assert seconds(hidden) > 1.3 * seconds(StepLoad(0, 0, 2, 0))
    assert model.predict(hidden) == pytest.approx(seconds(hidden), rel=0.02)
    room = model.prefill_room(StepLoad(0, 0, 2, 0), 8000, limit_s=0.006)
    assert seconds(StepLoad(0, 0, 2, 0).plus(room, 8000, decoding=False)) == pytest.approx(
        0.006, rel=0.02
    )
