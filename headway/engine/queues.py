"""How much may wait to be admitted, by class, and how long what waits may have to."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.types import ServiceClass
from headway.engine.options import LoopOptions
from headway.errors import OverloadedError

_WINDOW_S = 60.0
_LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Burden:
    """What a request adds to its queue: answers, and the tokens of their prompts in all."""

    service_class: ServiceClass
    choices: int
    tokens: int


class WaitingRoom:
    """Counts choices and prompt tokens from arrival to first admission. What was admitted never
    counts again, whatever happens to it, so an accepted request is never refused later.
    Thread-safe."""

    def __init__(self, options: LoopOptions, clock: Callable[[], float]) -> None:
        self._limits, self._token_limits = options.queues, options.queue_tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._choices = dict.fromkeys(ServiceClass, 0)
        self._tokens = dict.fromkeys(ServiceClass, 0)
        self._left: deque[tuple[float, int]] = deque()
        self._left_tokens = 0

    def enter(self, burden: Burden, limited: bool = True) -> None:
        """Count a request, all of it or nothing. Raises OverloadedError beyond a limit, unless it
        is not `limited`. One request alone may have more than the limit: to wait would not help."""
        service_class, choices, tokens = burden.service_class, burden.choices, burden.tokens
        with self._lock:
            waiting, waiting_tokens = self._choices[service_class], self._tokens[service_class]
            most, most_tokens = (
                limits.of(service_class) for limits in (self._limits, self._token_limits)
            )
            if limited and waiting and waiting + choices > most:
                raise self._full(service_class, f"{waiting:,} {service_class.label} requests")
            if limited and waiting and waiting_tokens + tokens > most_tokens:
                words = f"{service_class.label} requests of {waiting_tokens:,} tokens"
                raise self._full(service_class, words)
            self._choices[service_class] += choices
            self._tokens[service_class] += tokens

    def leave(self, burden: Burden) -> None:
        """So much was admitted, or ended first."""
        now_s = self._clock()
        with self._lock:
            self._choices[burden.service_class] -= burden.choices
            self._tokens[burden.service_class] -= burden.tokens
            self._left.append((now_s, burden.tokens))
            self._left_tokens += burden.tokens
            self._forget(now_s)

    def _full(self, service_class: ServiceClass, what: str) -> OverloadedError:
        return OverloadedError(f"{what} are waiting; try again later.", self._wait_s(service_class))

    def _wait_s(self, service_class: ServiceClass) -> float:
        """How long a new request would wait: the tokens ahead of it, of its class and those above,
        at the rate that tokens left the queues in the last minute."""
        now_s = self._clock()
        self._forget(now_s)
        if not self._left:
            return _WINDOW_S
        ahead = sum(self._tokens[c] for c in ServiceClass if c <= service_class)
        rate = self._left_tokens / max(1.0, now_s - self._left[0][0])
        return min(_LONGEST_S, ahead / rate)

    def _forget(self, now_s: float) -> None:
        while self._left and now_s - self._left[0][0] > _WINDOW_S:
            self._left_tokens -= self._left.popleft()[1]
