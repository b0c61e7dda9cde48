"""Realtime overtakes batch: how much longer a realtime request waits for its first token when
batch streams hold every seat, or every KV block, than on the idle server.

Batch streams run in a closed loop, so that the server stays full, and realtime requests come one
at a time. Each batch answer must equal, token for token and log probability for log probability,
the same request alone on the idle server afterwards.
"""

import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headway.bench.client import BenchError, Client, Streamed

_WORDS = (
    *("river", "stone", "market", "winter", "letter", "engine", "garden", "signal", "copper"),
    *("window", "history", "planet", "silver", "border", "harbor", "ticket", "theory", "branch"),
)
_FULL_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    streams: batch streams at once. batch_words, batch_tokens: of a prompt, of an answer.
    tries: realtime requests, idle and loaded. words: of a realtime prompt.
    checked: batch answers that are repeated alone.
    """

    streams: int
    batch_words: int = 100
    batch_tokens: int = 200
    tries: int = 100
    words: int = 60
    checked: int = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it, in seconds; `same` of `checked` batch answers were as when alone."""

    idle_s: Sequence[float]
    loaded_s: Sequence[float]
    batch_tokens_per_s: float
    preemptions: dict[str, int]
    checked: int
    same: int

    @property
    def ratio(self) -> float:
        """Median under load over median when idle."""
        return statistics.median(self.loaded_s) / statistics.median(self.idle_s)

    def lines(self) -> list[str]:
        """For a person."""
        swaps = ", ".join(f"{count:,} by {kind}" for kind, count in self.preemptions.items())
        return [
            f"idle      TTFT {_summary(self.idle_s)}",
            f"loaded    TTFT {_summary(self.loaded_s)}   ratio of medians {self.ratio:.2f}",
            f"batch     {self.batch_tokens_per_s:,.0f} tokens/s meanwhile; preempted: {swaps}",
            f"answers   {self.same} of {self.checked} batch answers equal to the bit when alone",
        ]


class Fullness(Protocol):
    """Whether a server is as full as the measurement needs, from its metrics."""

    def __call__(self, metrics: dict[str, float]) -> bool: ...


@dataclass(slots=True)
class _Flood:
    """Batch streams that are replaced as they end."""

    client: Client
    model: str
    load: Load
    rng: random.Random
    done: list[tuple[dict[str, object], Streamed]] = field(default_factory=list)

    async def stream(self) -> None:
        """One after the other, for ever."""
        while True:
            body = _body(self.model, "batch", self.load.batch_words, self.rng)
            body |= {"max_tokens": self.load.batch_tokens, "logprobs": 0}
            self.done.append((body, await self.client.complete(body)))


async def measure(client: Client, model: str, load: Load, full: Fullness, seed: int = 1) -> Outcome:
    """Measure a server that is idle now. Raises BenchError."""
    rng = random.Random(seed)
    await _realtime(client, model, load, rng, tries=3)  # warm
    # Half of the idle tries before, half after, for a machine that isn't the same throughout.
    half = (load.tries + 1) // 2
    idle = await _realtime(client, model, load, rng, half)
    before = await client.metrics()
    flood = _Flood(client, model, load, rng)
    streams = [asyncio.create_task(flood.stream()) for _ in range(load.streams)]
    try:
        await _until_full(client, full, streams)
        started = await client.metrics()
        began_s = asyncio.get_running_loop().time()
        loaded = await _realtime(client, model, load, rng, load.tries, full)
        elapsed_s = asyncio.get_running_loop().time() - began_s
        after = await client.metrics()
        while len(flood.done) < load.checked:
            await _unbroken(streams, 0.1)
    finally:
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    checked = flood.done[: load.checked]
    idle += await _realtime(client, model, load, rng, load.tries - half)
    alone = [await client.complete(body) for body, _ in checked]
    return Outcome(
        idle,
        loaded,
        (_itl_count(after) - _itl_count(started)) / elapsed_s,
        {kind: int(_preempted(after, kind) - _preempted(before, kind)) for kind in _KINDS},
        len(checked),
        sum(a.content == b.content for a, (_, b) in zip(alone, checked, strict=True)),
    )


async def _realtime(
    client: Client,
    model: str,
    load: Load,
    rng: random.Random,
    tries: int,
    full: Fullness | None = None,
) -> list[float]:
    """TTFTs of requests one after the other; with `full`, each waits until the server is."""
    times_s = []
    for _ in range(tries):
        if full is not None:
            await _until_full(client, full, [])
        # Not in step with the server's steps.
        await asyncio.sleep(rng.uniform(0.01, 0.05))
        body = _body(model, "realtime", load.words, rng) | {"max_tokens": 8}
        times_s.append((await client.complete(body)).ttft_s)
    return times_s


async def _until_full(
    client: Client, full: Fullness, streams: Sequence[asyncio.Task[None]]
) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _FULL_TIMEOUT_S
    while not full(await client.metrics()):
        if loop.time() > end_s:
            raise BenchError("the batch streams don't fill the server; give it more of them")
        await _unbroken(streams, 0.02)


async def _unbroken(streams: Sequence[asyncio.Task[None]], pause_s: float) -> None:
    """Pause; raise what ended one of the streams."""
    await asyncio.sleep(pause_s)
    for stream in streams:
        if stream.done():
            stream.result()


def _body(model: str, label: str, words: int, rng: random.Random) -> dict[str, object]:
    # A number first, so that no two prompts share a cached prefix.
    prompt = f"{rng.random()} " + " ".join(rng.choice(_WORDS) for _ in range(words))
    return {
        "model": model,
        "service_tier": label,
        "prompt": prompt,
        "temperature": 0,
        "ignore_eos": True,
    }


_KINDS = ("swap", "recompute")


def _itl_count(metrics: dict[str, float]) -> float:
    return metrics['headway_itl_seconds_count{service_class="batch"}']


def _preempted(metrics: dict[str, float], kind: str) -> float:
    return metrics[f'headway_preemptions_total{{kind="{kind}",service_class="batch"}}']


def _summary(times_s: Sequence[float]) -> str:
    ordered = sorted(times_s)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return (
        f"median {1000 * statistics.median(ordered):.0f} ms, p90 {1000 * p90:.0f} ms, "
        f"longest {1000 * ordered[-1]:.0f} ms ({len(ordered)} tries)"
    )
