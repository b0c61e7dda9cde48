"""The executor's forward pass against numpy."""

from dataclasses import replace

import numpy as np
import pytest

from headway.models.types import AttentionShape, Rope, TensorType, Weights
from tests.native.helpers import OPTIONS, PATHS, bench
from tests.reference import Reference
from tests.tiny import ALL, LLAMA, Tiny, tiny_weights, tokens

K_QUANTS = Tiny(
    hidden=256,
    intermediate=256,
    attention=AttentionShape(heads=8, kv_heads=2, head_dim=32),
    types=(TensorType.Q8_0, TensorType.Q8_0),
)
LENGTH = 90


def scaled_rope(weights: Weights) -> Weights:
    """The same model with stretched frequencies."""
    factors = tuple(1.0 + i / 4 for i in range(weights.config.attention.head_dim // 2))
    return replace(
        weights, config=replace(weights.config, rope=Rope(weights.config.rope.theta, factors))
    )


def mixed_types(weights: Weights) -> Weights:
    """The same model with V and gate in other formats than their neighbours."""
    other = tiny_weights(replace(LLAMA, types=(TensorType.Q8_0, TensorType.Q8_0)), seed=0)
    swapped = {f"layers.0.{name}": other.tensors[f"layers.0.{name}"] for name in ("v", "gate")}
    return replace(weights, tensors={**weights.tensors, **swapped})


MODELS = {
    **{name: tiny_weights(tiny) for name, tiny in ALL.items()},
    "q8_0": tiny_weights(K_QUANTS),
    "q4_0": tiny_weights(replace(LLAMA, types=(TensorType.Q4_0, TensorType.Q8_0))),
    "scaled_rope": scaled_rope(tiny_weights()),
    "mixed_types": mixed_types(tiny_weights()),
}


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("model", MODELS)
def test_each_layer_given_the_executors_inputs(model: str, isa: str) -> None:
    weights = MODELS[model]
    reference = Reference(weights, quantised=True)
    with bench(weights, replace(OPTIONS, isa=isa)) as it:
        run = it.run(tokens(LENGTH))
        traced = it.step((run, LENGTH))
        np.testing.assert_array_equal(traced.hidden[0], reference.embed(run.tokens[:LENGTH]))
        for index in range(weights.config.layers):
            cache = it.cache(run, index)
            layer = reference.layer(index, traced.hidden[index].astype(np.float64), cache)
            # Half-precision rounding may go the other way where float32 sums differ a little.
            np.testing.assert_allclose(cache.k, layer.cache.k, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(cache.v, layer.cache.v, rtol=1e-3, atol=1e-4)
            errors = np.linalg.norm(layer.out - traced.hidden[index + 1], axis=1)
            errors /= np.linalg.norm(layer.out, axis=1)
            settled = layer.edge > 1e-5
            assert settled.sum() >= 3, "the comparison rests on too few tokens"
            assert errors[settled].max() <= 1e-5


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("model", ALL)
def test_logits_given_the_executors_hidden_state(model: str, isa: str) -> None:
    weights = MODELS[model]
    with bench(weights, replace(OPTIONS, isa=isa)) as it:
        run = it.run(tokens(LENGTH))
        traced = it.step((run, LENGTH))
    expected = Reference(weights, quantised=True).logits(traced.hidden[-1][-1:].astype(np.float64))[
        0
    ]
    error = np.linalg.norm(traced.logits[0] - expected) / np.linalg.norm(expected)
    assert error <= 1e-2  # one activation on a rounding edge costs so much


@pytest.mark.parametrize("model", ALL)
def test_the_whole_model_against_exact_activations(model: str) -> None:
    weights = MODELS[model]
    with bench(weights) as it:
        run = it.run(tokens(LENGTH))
        logits = it.step((run, LENGTH)).logits[0]
    expected = Reference(weights, quantised=False).forward(run.tokens[:LENGTH])[-1]
    error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    # Tiny rows average less of the rounding away than a real model's.
    assert error <= 8e-2
    margin = np.diff(np.sort(expected)[-2:])[0]
    if margin > 2 * np.abs(logits - expected).max():
        assert logits.argmax() == expected.argmax()


@pytest.mark.parametrize("isa", PATHS)
def test_long_contexts_span_several_splits(isa: str) -> None:
    """Attention is summed in splits of 256 tokens; the joints must not show."""
    weights, length = MODELS["llama_64"], 700
    options = replace(OPTIONS, isa=isa, max_step_tokens=length)
    with bench(weights, options) as it:
        run = it.run(tokens(length))
        traced = it.step((run, length))
        layer = Reference(weights, quantised=True).layer(
            0, traced.hidden[0].astype(np.float64), it.cache(run, 0)
        )
    errors = np.linalg.norm(layer.out - traced.hidden[1], axis=1) / np.linalg.norm(
        layer.out, axis=1
    )
    assert errors[layer.edge > 1e-5].max() <= 1e-5
