"""The life of a request: one transition table, and the one function that applies it.

        WAITING ──admit──▶ RUNNING ──swap out──▶ SWAPPED
           ▲                │  ▲                    │
           └──recompute─────┘  └──────swap in───────┘
        any live state ──▶ FINISHED

A running request that is left out of a step is paused: it keeps its state and its blocks.
"""

from headway.core.sequence import Sequence
from headway.core.types import State

_ALLOWED: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.FINISHED}),
    State.RUNNING: frozenset({State.SWAPPED, State.WAITING, State.FINISHED}),
    State.SWAPPED: frozenset({State.RUNNING, State.WAITING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


def move(sequence: Sequence, to: State) -> None:
    """Change a sequence's state. Raises RuntimeError on a transition the table does not have."""
    if to not in _ALLOWED[sequence.state]:
        raise RuntimeError(
            f"request {sequence.id}: {sequence.state.value} -> {to.value} is not a transition"
        )
    sequence.state = to
