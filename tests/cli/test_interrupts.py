"""Ctrl-C while a command starts: it ends, wherever the exception would have come up."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace

import pytest

from headway.cli import main
from headway.cli.interrupts import noted_interrupts
from headway.cli.loading import Loaded, StillLoadingError, load_beside
from headway.errors import ModelError


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell starts what runs in the background with ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("room", ["arguments", "serve"])
def test_while_a_command_is_imported(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> ModuleType:
        if name == f"headway.cli.{room}":
            raise KeyboardInterrupt
        return import_module(name)

    monkeypatch.setattr("headway.cli.import_module", interrupted)
    assert main(["serve"]) == 130


def test_in_a_finaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def interrupted(name: str) -> ModuleType:
        Dropped()
        time.sleep(10)
        return import_module(name)

    monkeypatch.setattr("headway.cli.import_module", interrupted)
    begun_s = time.monotonic()
    assert main(["serve"]) == 130
    assert time.monotonic() - begun_s < 9


def test_while_a_model_loads_beside_imports() -> None:
    loaded: Loaded = SimpleNamespace()  # type: ignore[assignment]
    imported: list[str] = []

    def other() -> None:
        signal.raise_signal(signal.SIGINT)  # breaks nothing off
        imported.append("all")

    def late() -> Loaded:
        more.wait()
        return loaded

    more = Event()
    with noted_interrupts() as interrupted:
        assert load_beside(lambda: loaded, lambda: None, interrupted) is loaded
        with pytest.raises(StillLoadingError):
            load_beside(late, other, interrupted)
        more.set()
    assert imported == ["all"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_fails_to_load_is_raised() -> None:
    def broken() -> Loaded:
        raise ModelError("no model")

    with pytest.raises(ModelError, match="no model"):
        load_beside(broken, lambda: None, Event())


def test_while_a_model_is_downloaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:  # that answers nothing
        more = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "HF_HOME": str(tmp_path)}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
        command = [sys.executable, "-m", "headway", "serve", "hf:a/b", "--port", "0"]
        with subprocess.Popen(
            [*command, "--no-batches"], env=kept | more, stderr=subprocess.PIPE
        ) as server:
            try:
                hub.settimeout(60)
                hub.accept()[0].close()  # whether it can be reached
                with hub.accept()[0] as asked:
                    assert asked.recv(1)
                    server.send_signal(signal.SIGINT)
                    assert server.wait(5) == 130
                    assert server.stderr is not None and server.stderr.read() == b""
            finally:
                server.kill()
