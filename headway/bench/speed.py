"""Tokens per second of an engine: decoding for 1 to 64 sequences at once, and prefill."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headway.engine.engine import Engine
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions

_DECODE_ROWS = (1, 8, 32, 64)
_DECODE_TOKENS = 64
_DECODE_PROMPT = 8
_PREFILL_ROWS = 8
_PREFILL_PROMPT = 691


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of one kind of work."""

    work: str
    tokens_per_s: float

    def __str__(self) -> str:
        return f"{self.work:<28}{self.tokens_per_s:>8,.0f} tokens/s"


def measure(engine: Engine, seed: int = 1) -> Iterator[Rate]:
    """Rates of a started engine with nothing else to do; each as soon as it is known.

    Decoding counts generated tokens over the whole time, short prompts included. What needs more
    seats or a longer model than there are is left out.
    """
    rng = random.Random(seed)
    seats, length = engine.capacity.max_seqs, engine.max_model_len
    _elapsed_s(engine, 1, _DECODE_PROMPT, 4, rng)  # warm
    for rows in _DECODE_ROWS:
        if rows <= seats and length > _DECODE_PROMPT + _DECODE_TOKENS:
            elapsed_s = _elapsed_s(engine, rows, _DECODE_PROMPT, _DECODE_TOKENS, rng)
            yield Rate(f"decode, {rows} at once", rows * _DECODE_TOKENS / elapsed_s)
    if length > _PREFILL_PROMPT:
        elapsed_s = _elapsed_s(engine, _PREFILL_ROWS, _PREFILL_PROMPT, 1, rng)
        tokens = _PREFILL_ROWS * _PREFILL_PROMPT
        yield Rate(f"prefill, {_PREFILL_ROWS} x {_PREFILL_PROMPT}", tokens / elapsed_s)


def _elapsed_s(
    engine: Engine, rows: int, prompt_tokens: int, tokens: int, rng: random.Random
) -> float:
    """Seconds for `rows` answers of `tokens` tokens to random prompts, all sent at once."""
    vocab = engine.capacity.vocab_size
    requests = [
        GenerationRequest(
            [rng.randrange(vocab) for _ in range(prompt_tokens)],
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=tokens, ignore_eos=True),
        )
        for _ in range(rows)
    ]
    began_s = time.perf_counter()
    for generation in [engine.submit_sync(request) for request in requests]:
        for _ in generation:
            pass
    return time.perf_counter() - began_s
