"""From deltas to OpenAI's JSON: server-sent events for streams, one body otherwise.

The parts of an event that don't change during an answer are encoded once; per delta only the text
is, so a token costs a few byte joins.
"""

from dataclasses import dataclass, field

from headway.core.request import Usage
from headway.core.types import FinishReason
from headway.engine.types import Delta, TokenInfo
from headway.server.jsontext import Json, dumps
from headway.server.logprobs import Logprobs
from headway.server.shapes import Shape

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What every part of an answer repeats.

    id, created: OpenAI's; created in Unix seconds.
    model: as the client named it.
    tier: the word for the service class really used.
    """

    id: str
    created: int
    model: str
    tier: str

    def fields(self, kind: str) -> Json:
        """The leading fields of an object of this kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": self.tier,
        }


class UsageTotal:
    """Sums usage over choices. A prompt shared by n choices counts once, as does its cached part:
    that of the first of them."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompt = self._cached = self._generated = 0

    def add(self, choice: int, usage: Usage) -> None:
        """Count a finished choice."""
        self._generated += usage.generated
        if choice % self._n == 0:
            self._prompt += usage.prompt
            self._cached += usage.cached

    def json(self) -> Json:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._generated,
            "total_tokens": self._prompt + self._generated,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }


class EventWriter:
    """Writes a streamed answer's events: opening, pieces, closing of each choice; usage; the end.

    include_usage: whether the client asked for the usage chunk (`stream_options`).
    """

    def __init__(self, head: Head, shape: Shape, n: int, include_usage: bool) -> None:
        self._shape = shape
        self._usage = UsageTotal(n)
        self._include_usage = include_usage
        self._head = dumps(head.fields(shape.chunk_object))[:-1]
        self._tail = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._logprobs: dict[int, Logprobs | None] = {}

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta; empty if there is nothing to show yet."""
        choice, events = delta.choice, []
        if choice not in self._logprobs:
            self._logprobs[choice] = self._shape.logprobs()
            if (opening := self._shape.opening()) is not None:
                events.append(self._event(choice, opening, "null", "null"))
        logprobs = self._logprobs[choice]
        shown = "null"
        if logprobs is not None and delta.tokens:
            shown = dumps(logprobs.json(delta.tokens))
        if delta.text or shown != "null":
            events.append(self._event(choice, self._shape.piece(delta.text), shown, "null"))
        if delta.finish is not None:
            if delta.usage is not None:
                self._usage.add(choice, delta.usage)
            reason = f'"{delta.finish.value}"'
            events.append(self._event(choice, self._shape.closing(), "null", reason))
        return "".join(events).encode()

    def end(self) -> bytes:
        """What follows the last choice's end."""
        if not self._include_usage:
            return DONE
        usage = dumps(self._usage.json())
        return f'data: {self._head},"choices":[],"usage":{usage}}}\n\n'.encode() + DONE

    def _event(self, choice: int, body: str, logprobs: str, reason: str) -> str:
        return (
            f'data: {self._head},"choices":[{{"index":{choice},{body},'
            f'"logprobs":{logprobs},"finish_reason":{reason}}}]{self._tail}'
        )


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finish: FinishReason | None = None


class BodyWriter:
    """Gathers an unstreamed answer."""

    def __init__(self, head: Head, shape: Shape, n: int) -> None:
        self._head = head
        self._shape = shape
        self._usage = UsageTotal(n)
        self._choices: dict[int, _Choice] = {}

    def add(self, delta: Delta) -> None:
        """Take in a delta."""
        choice = self._choices.setdefault(delta.choice, _Choice())
        choice.text.append(delta.text)
        choice.tokens.extend(delta.tokens)
        if delta.finish is not None:
            choice.finish = delta.finish
            if delta.usage is not None:
                self._usage.add(delta.choice, delta.usage)

    def body(self) -> bytes:
        """The whole answer."""
        choices = [self._json(index, choice) for index, choice in sorted(self._choices.items())]
        answer = self._head.fields(self._shape.body_object)
        return dumps({**answer, "choices": choices, "usage": self._usage.json()}).encode()

    def _json(self, index: int, choice: _Choice) -> Json:
        logprobs = self._shape.logprobs()
        return {
            "index": index,
            **self._shape.whole("".join(choice.text)),
            "logprobs": None if logprobs is None else logprobs.json(choice.tokens),
            "finish_reason": None if choice.finish is None else choice.finish.value,
        }


def error_event(body: bytes) -> bytes:
    """A stream's last event when it can't go on; clients raise it."""
    return b"data: " + body + b"\n\n"
