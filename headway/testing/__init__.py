"""Shipped fakes and checks, for Headway's own tests and for those of its users.

ScriptedExecutor   an executor without a model, with a modelled KV cache that catches misuse
Simulation         the loop plan, submit, commit over a scheduler, with a record of events
LaneSimulation     the same with a step in flight on each lane
ManualClock        time that moves only when told to
conformance        what every executor must do, as checks that take an executor factory
"""

from headway.executors.rules import PlanFaultError
from headway.testing.builders import make_capacity, make_request
from headway.testing.clock import ManualClock, WallClock
from headway.testing.driver import Simulation
from headway.testing.lanes import LaneSimulation
from headway.testing.recording import RecordingExecutor
from headway.testing.scripted import (
    LinearDuration,
    Mishaps,
    ScriptedExecutor,
    instant,
    oracle_tokens,
)
from headway.testing.sequence import Script

__all__ = [
    "LaneSimulation",
    "LinearDuration",
    "ManualClock",
    "Mishaps",
    "PlanFaultError",
    "RecordingExecutor",
    "Script",
    "ScriptedExecutor",
    "Simulation",
    "WallClock",
    "instant",
    "make_capacity",
    "make_request",
    "oracle_tokens",
]
