"""A process that did not run for a while goes on; a step that hangs is still found out."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headway.engine.pulse import Pulse
from headway.testing import ManualClock

ROOT = Path(__file__).parents[2]


def freeze(lanes: str, step_s: float, limit_s: float, frozen_s: float) -> tuple[str, str, bool]:
    """What becomes of an engine that is frozen in its first step: how the answer ends, its message,
    and whether the engine was ever ill."""
    command = [sys.executable, "-m", "tests.engine.freezer", lanes, str(step_s), str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        killer = threading.Timer(60, child.kill)
        killer.start()
        try:
            assert child.stdout is not None and child.stdout.readline() == "going\n"
            child.send_signal(signal.SIGSTOP)
            time.sleep(frozen_s)
            child.send_signal(signal.SIGCONT)
            finish, message, ill = json.loads(child.stdout.readline())
            return finish, message, ill
        finally:
            killer.cancel()
            child.kill()


@pytest.mark.parametrize("lanes", ["unified", "split"])
def test_a_freeze_longer_than_the_stall_limit_is_survived(lanes: str) -> None:
    assert freeze(lanes, step_s=2.0, limit_s=1.0, frozen_s=1.5) == ("length", "", False)


@pytest.mark.parametrize("lanes", ["unified", "split"])
def test_a_step_that_hangs_is_found_out_after_a_freeze_too(lanes: str) -> None:
    finish, message, _ = freeze(lanes, step_s=3600.0, limit_s=0.5, frozen_s=0.8)
    assert finish == "error" and "has not ended after 0.5 s" in message


def test_a_pulse_counts_what_is_missing_between_two_beats() -> None:
    clock = ManualClock()
    pulse = Pulse(60.0, clock)
    assert pulse.frozen_s() == 0.0
    pulse.start()
    try:
        clock.advance(1.9)  # late, but not by a beat
        assert pulse.frozen_s() == 0.0
    finally:
        pulse.close()


def test_a_freeze_counts_at_once_and_once() -> None:
    clock = ManualClock()
    pulse = Pulse(0.2, clock)
    pulse.start()
    try:
        clock.advance(100.0)
        assert pulse.frozen_s() == pytest.approx(100.0, abs=0.02)
        time.sleep(0.1)  # beats on a clock that stands still
        assert pulse.frozen_s() == pytest.approx(100.0, abs=0.02)
    finally:
        pulse.close()
