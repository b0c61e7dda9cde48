"""Callers: the holder of a key, what it has used lately, and what it may still ask for."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from headway.core.types import ServiceClass
from headway.server.errors import ApiError
from headway.server.keys import Key, Rights
from headway.server.tiers import Tier

Clock = Callable[[], float]

EVERYBODY = Key("", "", "", 0, Rights(admin=True))
"""Stands for the key where none is needed, and for the one key that has every right."""


class Bucket:
    """A rate that holds on average, with a minute's worth at once.

    What costs more than is left may be taken as long as anything is left, and is owed: tokens of an
    answer are known only when they are there.
    """

    def __init__(self, per_minute: float, now_s: float) -> None:
        self._rate = per_minute / 60
        self._most = max(per_minute, 1.0)
        self._left = self._most
        self._at_s = now_s

    def wait_s(self, need: float, now_s: float) -> float:
        """Seconds until `need` is there; 0 if it is."""
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return max(0.0, (need - self._left) / self._rate)

    def take(self, amount: float) -> None:
        """Use some up."""
        self._left -= amount


class Caller:
    """One key's use of the server. On the event loop's thread only."""

    def __init__(self, key: Key, clock: Clock) -> None:
        self.key = key
        self._clock = clock
        self._inside = 0
        now_s = clock()
        allowance = key.allowance
        self._requests = _buckets(allowance.requests_per_minute, now_s)
        self._tokens = _buckets(allowance.tokens_per_minute, now_s)

    @property
    def tenant(self) -> str:
        """Whose files, jobs and prefix cache it sees."""
        return self.key.tenant

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have a request under way. Raises ApiError (429) for one too many."""
        most = self.key.allowance.concurrent
        if most is not None and self._inside >= most:
            raise _too_many(f"This key may have {most:,} requests under way at once.", 1.0)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def default_class(self, servers: ServiceClass) -> ServiceClass:
        """The class of requests that don't say."""
        rights = self.key.rights
        own = servers if rights.default_class is None else rights.default_class
        return max(own, rights.top_class)

    def permit(self, tier: Tier) -> Tier:
        """The tier a request runs in. Raises ApiError (403) for one above this key's."""
        top = self.key.rights.top_class
        if tier.service_class >= top:
            return tier
        if self.key.rights.downgrade:
            return tier.lowered(top)
        raise ApiError(
            403,
            f"This key may not ask for {tier.service_class.label}; its top class is {top.label}.",
            "permission_error",
            "service_tier",
            "class_not_allowed",
        )

    def begin(self, service_class: ServiceClass) -> None:
        """Count a request. Raises ApiError (429) where one or the tokens before it used up what
        the key may have a minute."""
        now_s = self._clock()
        requests, tokens = self._requests.get(service_class), self._tokens.get(service_class)
        if tokens is not None and (wait_s := tokens.wait_s(1.0, now_s)) > 0:
            raise self._beyond(service_class, "tokens", wait_s)
        if requests is not None:
            if (wait_s := requests.wait_s(1.0, now_s)) > 0:
                raise self._beyond(service_class, "requests", wait_s)
            requests.take(1.0)

    def charge(self, service_class: ServiceClass, tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        bucket = self._tokens.get(service_class)
        if bucket is not None:
            bucket.take(tokens)

    def _beyond(self, service_class: ServiceClass, what: str, wait_s: float) -> ApiError:
        allowance = self.key.allowance
        rates = allowance.tokens_per_minute if what == "tokens" else allowance.requests_per_minute
        return _too_many(
            f"This key may use {rates[service_class]:,.0f} {service_class.label} {what} a minute.",
            wait_s,
        )


def _buckets(rates: Mapping[ServiceClass, float], now_s: float) -> dict[ServiceClass, Bucket]:
    return {service_class: Bucket(rate, now_s) for service_class, rate in rates.items()}


def _too_many(message: str, wait_s: float) -> ApiError:
    headers = {"Retry-After": str(max(1, math.ceil(wait_s)))}
    return ApiError(429, message, "rate_limit_error", "", "rate_limit_exceeded", headers)
