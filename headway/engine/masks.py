"""Masks of rows under a grammar, made beside the engine thread."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from headway.core.plan import Masks, StepPlan
from headway.core.types import RequestId
from headway.engine.types import Grammar, GrammarState

PATIENCE_S = 0.002
"""How long a plan waits for masks. Most take 0.1 ms; a row whose mask takes longer is left out of
one step."""

_THREADS = 2


@dataclass(slots=True)
class _Row:
    state: GrammarState
    mask: Future[bytes]


class MaskMaker:
    """The grammars of the choices under way. Each has one state, which moves on by a token between
    a step's result and its commit, so preemption, copies and interrupts don't concern it.

    For the engine thread; masks are made on threads of its own. A row's state is the threads' while
    its mask is made, and the engine's again afterwards: no row is planned in between.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        """`wake`: called, from another thread, when a mask that a plan did without is there."""
        self._wake = wake
        self._rows: dict[RequestId, _Row] = {}
        self._making: dict[RequestId, Future[bytes]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "headway-masks")

    def add(self, request: RequestId, grammar: Grammar) -> None:
        """Begin an answer."""
        first: Future[bytes] = Future()
        first.set_result(grammar.first_mask)
        self._rows[request] = _Row(grammar.start(), first)

    def forget(self, request: RequestId) -> None:
        """An answer has ended; unknown ones are ignored."""
        self._rows.pop(request, None)
        self._making.pop(request, None)

    def accept(self, request: RequestId, token: int) -> bool:
        """Go on by a sampled token; whether the answer is complete with it: never for a choice
        without a grammar. Raises what the grammar raises, also for the mask that the token was
        sampled with."""
        row = self._rows.get(request)
        if row is None:
            return False
        row.mask.result()
        row.state.accept(token)
        if row.state.complete:
            return True
        row.mask = self._making[request] = self._threads.submit(row.state.mask)
        return False

    def unready(self) -> frozenset[RequestId]:
        """Requests to leave out of the next step: their masks are not there in time."""
        if not self._making:
            return frozenset()
        late = wait(self._making.values(), PATIENCE_S).not_done
        self._making = {r: mask for r, mask in self._making.items() if mask in late}
        for mask in late:
            mask.add_done_callback(lambda _: self._wake())
        return frozenset(self._making)

    def masks(self, plan: StepPlan) -> Masks:
        """Masks of the rows that a plan samples; none for one that could not be made, whose token
        `accept` will refuse."""
        if not self._rows:
            return _NONE
        masks = {}
        for chunk in plan.chunks:
            row = self._rows.get(chunk.request)
            if row is not None and chunk.sample and row.mask.exception() is None:
                masks[chunk.request] = row.mask.result()
        return masks

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


_NONE: Mapping[RequestId, bytes] = {}
