"""What rounding activations costs the embedded model on English: its perplexity."""

from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from headway.models.loader import load_model
from tests.native.helpers import OPTIONS, bench
from tests.reference import Floats, Reference

_TOKENS = 500
_TEXTS = 4


def test_perplexity_is_that_of_exact_activations(smollm2_path: Path) -> None:
    """Within 1 % over 2,000 tokens in four texts, prefilled in chunks."""
    model = load_model(smollm2_path)
    text = " ".join(" ".join(str(topics[name]).split()) for name in sorted(topics)[:12])
    ids = list(model.tokenizer.encode(text, False))
    texts = [ids[i * _TOKENS : (i + 1) * _TOKENS] for i in range(_TEXTS)]
    options = replace(OPTIONS, threads=2, kv_blocks=160, max_model_len=_TOKENS + 1)
    exact = Reference(model.weights, quantised=False, dtype=np.float32)
    rounded = exact.rounding()
    got, want = 0.0, 0.0
    with bench(model.weights, options) as it:
        for tokens in texts:
            assert len(tokens) == _TOKENS
            run = it.run(tokens)
            outputs = [it.step((run, _TOKENS // 5)).hidden[-1] for _ in range(5)]
            got += _nll(rounded.logits(np.concatenate(outputs)), tokens)
            want += _nll(exact.forward(tokens), tokens)
    assert 1 < want / _TEXTS < 4, "the text is not English to the model"
    assert abs(np.exp((got - want) / _TEXTS) - 1) < 0.01


def _nll(logits: Floats, ids: list[int]) -> float:
    """Mean negative log likelihood of a text, in nats a token."""
    peak = logits.max(axis=1)
    total = np.log(np.exp(logits - peak[:, None]).sum(axis=1)) + peak
    rows = np.arange(len(ids) - 1)
    return float((total[:-1] - logits[rows, ids[1:]]).mean())
