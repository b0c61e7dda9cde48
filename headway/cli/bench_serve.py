"""`headway bench serve`: a load on any OpenAI-compatible server."""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter

from headway.bench.client import BenchError, Client
from headway.bench.dialect import Dialect
from headway.bench.outcomes import document, outcome, table
from headway.bench.page import page
from headway.bench.replay import CUT, Recording, Replay, Span, words_a_token
from headway.bench.traffic import Traffic, from_streams, from_trace, parse_lengths, parse_stream
from headway.cli.urls import check_url
from headway.config import API_KEY_VARIABLE
from headway.errors import ConfigError
from headway.simulate.figures import parse_objectives
from headway.simulate.synthetic import load_trace
from headway.simulate.workload import Mix, parse_shares


def run(settings: argparse.Namespace) -> int:
    """Load the server and print what came of it; 1 if nothing was answered whole.
    Raises BenchError, ConfigError."""
    check_url(settings.url)
    if settings.warmup >= settings.seconds:
        raise ConfigError("the warm-up takes all of the time: --seconds must be more")
    objectives = parse_objectives(settings.objectives)
    traffic = _traffic(settings)
    # What can't be written should not be known after the load only.
    outputs = [(Path(p), kind) for kind in ("json", "html") if (p := getattr(settings, kind))]
    for path, _ in outputs:
        try:
            path.touch()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
    recording, said = asyncio.run(_load(settings, traffic))
    result = outcome(recording, objectives)
    if any(sample.answer.times_s for sample in recording.samples):
        for line in table(result):
            print(line)
        if recording.message:
            print(f"first failure: {recording.message}")
    else:
        print(f"headway: no request was answered: {_failures(recording)}", file=sys.stderr)
    for path, kind in outputs:
        text = (
            json.dumps(document(result, said), indent=1) + "\n"
            if kind == "json"
            else page(result, recording, said)
        )
        path.write_text(text, encoding="utf-8")
    return 0 if any(seen.requests for seen in result.classes.values()) else 1


def _failures(recording: Recording) -> str:
    """How often what failed, and what the first failure said."""
    kinds = Counter(sample.error for sample in recording.samples if sample.error not in ("", CUT))
    counts = ", ".join(f"{times} x {kind}" for kind, times in kinds.most_common())
    return "; ".join(words for words in (counts, recording.message) if words)


def _traffic(settings: argparse.Namespace) -> Traffic:
    if (settings.trace is None) == (not settings.traffic):
        raise ConfigError("give either --traffic (once a class) or --trace")
    if settings.traffic:
        streams = [parse_stream(text) for text in settings.traffic]
        traffic = from_streams(streams, settings.seconds, settings.seed)
    else:
        mix = Mix(parse_shares(settings.classes), settings.rate_scale, seed=settings.seed)
        prompt, answer = (
            parse_lengths(text) if text else None for text in (settings.prompt, settings.answer)
        )
        trace = load_trace(settings.trace, settings.seed)
        traffic = from_trace(trace, mix, settings.seconds, prompt, answer)
    if not traffic.arrivals and not traffic.floods:
        raise ConfigError(f"no request arrives within {settings.seconds:g} s: give more --seconds")
    return traffic


async def _load(
    settings: argparse.Namespace, traffic: Traffic
) -> tuple[Recording, dict[str, object]]:
    """Run it; what came back, and what to say of the settings."""
    client = Client(
        settings.url.rstrip("/").removesuffix("/v1"),
        settings.api_key or os.environ.get(API_KEY_VARIABLE, ""),
    )
    model = settings.model or await _first_model(client)
    dialect = Dialect(model, settings.endpoint, settings.priority, not settings.no_ignore_eos)
    ratio = await words_a_token(client, dialect)
    span = Span(settings.seconds, settings.warmup)
    replay = Replay(client, dialect, traffic, span, ratio, settings.seed)
    progress = _Progress(settings.seconds)
    try:
        recording = await replay.run(progress.show)
    finally:
        progress.clear()
    said: dict[str, object] = {
        "url": settings.url,
        "model": model,
        "endpoint": settings.endpoint,
        "priority": settings.priority,
        "traffic": "; ".join(settings.traffic or [settings.trace]),
        "seconds": settings.seconds,
        "warm-up": settings.warmup,
        "seed": settings.seed,
        "objectives": settings.objectives,
    }
    if settings.trace:
        said["rate scale"] = settings.rate_scale
        said["classes"] = ",".join(f"{k}={v:g}" for k, v in settings.classes.items())
    return recording, said


async def _first_model(client: Client) -> str:
    models = await client.models()
    if not models:
        raise BenchError(f"{client.url}: lists no model; give --model")
    return models[0]


class _Progress:
    """One line on a terminal's standard error, once a second; nothing elsewhere."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._shown = sys.stderr.isatty()
        self._told_s = perf_counter()
        self._events = 0

    def show(self, recording: Recording, elapsed_s: float) -> None:
        """Say where the load is."""
        if not self._shown:
            return
        states: Counter[str] = Counter()
        events = 0
        for sample in recording.samples:
            state = "failed" if sample.error else "done" if sample.end_s else "under way"
            states[state] += 1
            events += len(sample.answer.times_s)
        now_s = perf_counter()
        rate = (events - self._events) / (now_s - self._told_s)
        self._told_s, self._events = now_s, events
        counts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        line = f"{elapsed_s:.0f} of {self._seconds:.0f} s: {counts}; {rate:.0f} tokens/s"
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave an empty line."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
