"""From deltas to OpenAI's JSON: server-sent events for streams, one body otherwise.

The parts of an event that don't change during an answer are encoded once; per delta only the text
is, so a token costs a few byte joins.
"""

from dataclasses import dataclass, field

from headway.core.request import Usage
from headway.core.types import FinishReason
from headway.engine.types import Delta, TokenInfo
from headway.models.answers import Part, PartKind
from headway.server.jsontext import Json, dumps
from headway.server.logprobs import Logprobs
from headway.server.shapes import ChoiceReader, Shape

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
        self._prompt = self._cached = self._generated = self._reasoning = 0

    def add(self, choice: int, usage: Usage, reasoning_tokens: int) -> None:
        """Count a finished choice."""
        self._generated += usage.generated
        self._reasoning += reasoning_tokens
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
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


def finish_reason(finish: FinishReason, called: bool) -> str:
    """OpenAI's word for a choice's end. One that was cut says so, whatever it was writing; one
    that a stop string ended within a call has not called."""
    return "tool_calls" if called and finish is FinishReason.STOP else finish.value


@dataclass(slots=True)
class _Choice:
    """A choice under way; `parts` and `tokens` only of an unstreamed answer."""

    reader: ChoiceReader
    logprobs: Logprobs | None
    parts: list[Part] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finish: FinishReason | None = None


class EventWriter:
    """Writes a streamed answer's events: opening, pieces, closing of each choice; usage; the end.

    include_usage: whether the client asked for the usage chunk (`stream_options`).
    """

    def __init__(self, head: Head, shape: Shape, n: int, include_usage: bool) -> None:
        self._shape = shape
        self._usage = UsageTotal(n)
        self._include_usage = include_usage
        self._frame = shape.frame
        self._head = dumps(head.fields(shape.frame.chunk_object))[:-1]
        self._tail = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._choices: dict[int, _Choice] = {}

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta; empty if there is nothing to show yet."""
        index, events = delta.choice, []
        choice = self._choices.get(index)
        if choice is None:
            choice = _Choice(self._shape.reader(), self._shape.logprobs())
            self._choices[index] = choice
            if self._frame.opening:
                events.append(self._event(index, self._frame.opening, "null", "null"))
        pieces = [self._shape.piece(part) for part in choice.reader.read(delta)]
        shown = "null"
        if choice.logprobs is not None and delta.tokens:
            shown = dumps(choice.logprobs.json(delta.tokens))
            pieces = pieces or [self._shape.piece(_NOTHING)]
        for piece in pieces:
            events.append(self._event(index, piece, shown, "null"))
            shown = "null"
        if delta.finish is not None:
            reader = choice.reader
            if delta.usage is not None:
                self._usage.add(index, delta.usage, reader.reasoning_tokens)
            reason = f'"{finish_reason(delta.finish, reader.called)}"'
            events.append(self._event(index, self._frame.closing, "null", reason))
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


_NOTHING = Part(PartKind.CONTENT, "")


class BodyWriter:
    """Gathers an unstreamed answer."""

    def __init__(self, head: Head, shape: Shape, n: int) -> None:
        self._head = head
        self._shape = shape
        self._usage = UsageTotal(n)
        self._choices: dict[int, _Choice] = {}

    def add(self, delta: Delta) -> None:
        """Take in a delta."""
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = _Choice(self._shape.reader(), self._shape.logprobs())
            self._choices[delta.choice] = choice
        choice.parts += choice.reader.read(delta)
        choice.tokens += delta.tokens
        if delta.finish is not None:
            choice.finish = delta.finish
            if delta.usage is not None:
                self._usage.add(delta.choice, delta.usage, choice.reader.reasoning_tokens)

    def body(self) -> bytes:
        """The whole answer."""
        choices = [self._json(index, choice) for index, choice in sorted(self._choices.items())]
        answer = self._head.fields(self._shape.frame.body_object)
        return dumps({**answer, "choices": choices, "usage": self._usage.json()}).encode()

    def _json(self, index: int, choice: _Choice) -> Json:
        finish, called, logprobs = choice.finish, choice.reader.called, choice.logprobs
        return {
            "index": index,
            **self._shape.whole(choice.parts),
            "logprobs": None if logprobs is None else logprobs.json(choice.tokens),
            "finish_reason": None if finish is None else finish_reason(finish, called),
        }


def error_event(body: bytes) -> bytes:
    """A stream's last event when it can't go on; clients raise it."""
    return b"data: " + body + b"\n\n"
