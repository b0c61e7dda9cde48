"""The embedded model on the executor: against numpy, and to the bit in a crowd."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.core.plan import SamplingSpec, Truncation
from headway.models.loader import LoadedModel, load_model
from tests.native.helpers import OPTIONS, Bench, Run, bench
from tests.reference import Floats, Reference

TEXT = (
    "The river rises in the hills above the town, where rain falls on two hundred days of the "
    "year, and reaches the sea after forty miles of meadows, mills and bridges."
)
TWO_THREADS = replace(OPTIONS, threads=2, kv_blocks=128)


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LoadedModel:
    """The embedded model."""
    return load_model(smollm2_path)


def test_layers_and_logits_against_numpy(model: LoadedModel) -> None:
    ids = list(model.tokenizer.encode(TEXT, False))
    weights = model.weights
    exact = Reference(weights, quantised=False)
    rounded = exact.rounding()
    with bench(weights, TWO_THREADS) as it:
        run = it.run(ids)
        traced = it.step((run, len(ids)))
        for index in (0, 1, weights.config.layers // 2, weights.config.layers - 1):
            cache = it.cache(run, index)
            layer = rounded.layer(index, traced.hidden[index].astype(np.float64), cache)
            errors = _relative(traced.hidden[index + 1].astype(np.float64), layer.out)
            # Rows this wide always have a value near an edge; 1e-6 is float32's own reach.
            settled = layer.edge > 1e-6
            assert settled.sum() >= 3
            assert errors[settled].max() <= 1e-5
    got = rounded.logits(traced.hidden[-1].astype(np.float64))
    assert _relative(traced.logits.astype(np.float64), got[-1:]).max() <= 1e-2
    _expect_near(got, exact.forward(ids), ids)


def _expect_near(got: Floats, exact: Floats, ids: list[int]) -> None:
    """Rounding activations to int8 costs a few per cent of the logits, and no answers."""
    assert np.median(_relative(got, exact)) <= 5e-2
    noise = np.sqrt(((got - exact) ** 2).mean(axis=1))
    ordered = np.sort(exact, axis=1)
    sure = ordered[:, -1] - ordered[:, -2] > 4 * noise
    assert sure.mean() > 0.3
    assert (got.argmax(axis=1) == exact.argmax(axis=1))[sure].all()
    assert abs(_nll(got, ids) - _nll(exact, ids)) <= 0.05


def _relative(got: Floats, want: Floats) -> Floats:
    """Relative error of each row."""
    errors: Floats = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    return errors


def _nll(logits: Floats, ids: list[int]) -> float:
    """Mean negative log likelihood of the text, in nats a token."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1))
    rows = np.arange(len(ids) - 1)
    return float((total[:-1] - shifted[rows, ids[1:]]).mean())


def test_a_crowd_changes_no_bit(model: LoadedModel) -> None:
    ids = list(model.tokenizer.encode(TEXT, False))
    prompts = [ids[i:] + ids[:i] for i in range(0, 12, 2)]
    spec = SamplingSpec(seed=7, temperature=0.8, truncation=Truncation(top_p=0.9), logprobs=2)
    alone = []
    for prompt in prompts[:2]:
        with bench(model.weights, replace(TWO_THREADS, threads=1)) as it:
            run = it.run(prompt, spec)
            it.decode(run, 6)
            alone.append(run)
    with bench(model.weights, TWO_THREADS) as it:
        runs = _crowd(it, prompts, spec)
        for expected, got in zip(alone, runs, strict=False):
            assert got.tokens[: len(expected.tokens)] == expected.tokens
            for a, b in zip(expected.logits, got.logits, strict=False):
                np.testing.assert_array_equal(a, b)


def _crowd(it: Bench, prompts: list[list[int]], spec: SamplingSpec) -> list[Run]:
    """All prompts at once, in chunks of 13 tokens."""
    runs = [it.run(prompt, spec) for prompt in prompts]
    while any(len(run.logits) < 6 for run in runs[:2]):
        it.step(*((run, min(13, len(run.tokens) - run.computed)) for run in runs))
    return runs
