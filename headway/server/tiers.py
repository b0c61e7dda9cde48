"""Which service class a request runs in, and the word for it in the answer.

The first that is given decides: the body's `service_tier`, the header `X-Headway-Class`, the model
alias (`smollm2:batch`), the server's default. Whatever is given must be a known word.
"""

from dataclasses import dataclass

from headway.core.types import ServiceClass
from headway.server.errors import ApiError, bad_request

CLASS_HEADER = "X-Headway-Class"

_OURS = {service_class.label: service_class for service_class in ServiceClass}
_OPENAI = {
    "priority": ServiceClass.REALTIME,
    "fast": ServiceClass.REALTIME,
    "scale": ServiceClass.REALTIME,
    "default": ServiceClass.STANDARD,
    "auto": ServiceClass.STANDARD,
    "flex": ServiceClass.BATCH,
}
TIER_WORDS = (*_OPENAI, *_OURS)
"""What a service class may be called."""

_ECHO = {
    ServiceClass.REALTIME: "priority",
    ServiceClass.STANDARD: "default",
    ServiceClass.BATCH: "flex",
}


@dataclass(frozen=True, slots=True)
class Tier:
    """A service class and the word that names it to this client."""

    service_class: ServiceClass
    word: str

    def lowered(self, service_class: ServiceClass) -> "Tier":
        """Another class in the same vocabulary."""
        if self.word in _OURS:
            return Tier(service_class, service_class.label)
        return Tier.of(service_class)

    @classmethod
    def of(cls, service_class: ServiceClass) -> "Tier":
        """The class under OpenAI's word."""
        return cls(service_class, _ECHO[service_class])


def parse_tier(word: str, param: str) -> Tier:
    """The tier a client's word means; it is answered in the same vocabulary.

    `scale` and `fast` run as realtime, so the answer says `priority`, and `auto` is `default`.
    Raises ApiError (400) for an unknown word.
    """
    if word in _OURS:
        return Tier(_OURS[word], word)
    if word in _OPENAI:
        return Tier.of(_OPENAI[word])
    known = ", ".join(TIER_WORDS)
    raise bad_request(f"Unknown service class {word[:40]!r}; known are {known}.", param)


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names a model is served under; `NAME:CLASS` is an alias that gives the class as well."""

    name: str
    others: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """The names, each with its aliases."""
        names = (self.name, *self.others)
        return tuple(alias for n in names for alias in (n, *(f"{n}:{label}" for label in _OURS)))

    def resolve(self, model: str) -> Tier | None:
        """The tier an alias gives, None for a plain name. Raises ApiError (404) otherwise."""
        names = (self.name, *self.others)
        if model in names:
            return None
        name, colon, label = model.rpartition(":")
        if colon and name in names and label in _OURS:
            return Tier(_OURS[label], label)
        raise ApiError(
            404,
            f"The model {model!r} does not exist; served here: {', '.join(self.all)}.",
            param="model",
            code="model_not_found",
        )


def resolve_tier(
    body: str | None, header: str | None, alias: Tier | None, default: ServiceClass
) -> Tier:
    """The first tier that is given; all that are given are checked. Raises ApiError (400)."""
    given = [
        parse_tier(word, param)
        for word, param in ((body, "service_tier"), (header, CLASS_HEADER))
        if word is not None
    ]
    if given:
        return given[0]
    return alias or Tier.of(default)
