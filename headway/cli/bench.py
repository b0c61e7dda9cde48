"""`headway bench`."""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headway.bench import speed
from headway.bench.client import BenchError, Client
from headway.bench.overtake import Fullness, Load, measure
from headway.cli import bench_serve
from headway.cli.loading import flag_options, load
from headway.cli.settings import PREFIX
from headway.config import API_KEY_VARIABLE

_READY = "Ready on "


def run(settings: argparse.Namespace) -> int:
    """Measure; 1 if an answer was not what it is alone. Raises BenchError, ModelError."""
    return _MEASUREMENTS[settings.what](settings)


@dataclass(frozen=True, slots=True)
class _Scene:
    """A server made small in one respect, so that batch streams fill it."""

    title: str
    flags: tuple[str, ...]
    load: Load
    full: Fullness


def _seats_taken(metrics: dict[str, float]) -> bool:
    return _batch(metrics, "running") >= 8 and _batch(metrics, "waiting") > 0


def _blocks_taken(metrics: dict[str, float]) -> bool:
    """Fewer blocks to be had than a realtime prompt of 100 words takes."""
    free, cached = (
        metrics[f'headway_kv_blocks{{state="{state}",tier="device"}}'] for state in _UNUSED
    )
    return free + cached < 7 and _batch(metrics, "waiting") > 0


def _batch(metrics: dict[str, float], state: str) -> float:
    return metrics[f'headway_requests{{service_class="batch",state="{state}"}}']


_UNUSED = ("free", "cached")
_POOL = ("--max-model-len", "512")
_SCENES = (
    _Scene(
        "8 seats, all held by batch streams",
        (*_POOL, "--max-seqs", "8", "--kv-blocks", "1024", "--host-blocks", "0"),
        Load(streams=10),
        _seats_taken,
    ),
    _Scene(
        "128 KV blocks, all held by batch streams",
        (*_POOL, "--max-seqs", "32", "--kv-blocks", "128", "--host-blocks", "128"),
        Load(streams=14, words=100),
        _blocks_taken,
    ),
)


def _speed(settings: argparse.Namespace) -> int:
    loaded = load(settings.model, flag_options(settings))
    loaded.engine.start()
    try:
        for line in loaded.describe():
            print(line)
        for rate in speed.measure(loaded.engine):
            print(rate, flush=True)
    finally:
        loaded.engine.stop()
    return 0


def _overtake(settings: argparse.Namespace) -> int:
    same = True
    for scene in _SCENES:
        print(f"{scene.title}:", flush=True)
        with _server(settings.model, scene.flags) as url:
            client = Client(url, os.environ.get(API_KEY_VARIABLE, ""))
            sent = replace(scene.load, tries=settings.tries)
            outcome = asyncio.run(measure(client, "bench", sent, scene.full))
        for line in outcome.lines():
            print(f"  {line}", flush=True)
        same = same and outcome.same == outcome.checked
    return 0 if same else 1


@contextmanager
def _server(model: str | None, flags: tuple[str, ...]) -> Iterator[str]:
    """A server in a process of its own; its URL. Raises BenchError if it doesn't start."""
    command = [sys.executable, "-m", "headway", "serve", *([model] if model else [])]
    command += ["--port", "0", "--served-model-name", "bench", "--no-batches", *flags]
    command += ["--log-level", "error"]  # that it stops is no news
    kept = (API_KEY_VARIABLE, *(name for name in os.environ if not name.startswith(PREFIX)))
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                if line.startswith(_READY):
                    yield line.split()[2]
                    return
            raise BenchError("the server did not start")
        finally:
            process.terminate()


_MEASUREMENTS = {"speed": _speed, "overtake": _overtake, "serve": bench_serve.run}
