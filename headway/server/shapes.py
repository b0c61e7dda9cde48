"""What differs between chat and text completions in an answer."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.engine.types import Delta
from headway.models.answers import Part, PartKind, PartReader, PlainReader
from headway.models.reasoning import ReasoningMeter, ReasoningReader, Thinking
from headway.models.tool_calls import ToolFormat, ToolReader
from headway.server.jsontext import Json, dumps, quoted
from headway.server.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from headway.server.model import TextCodec


@dataclass(frozen=True, slots=True)
class Frame:
    """Words of an endpoint.

    opening, closing: bodies of a choice's first and last chunk; the first may be "".
    """

    id_prefix: str
    body_object: str
    chunk_object: str
    opening: str
    closing: str


CHAT = Frame(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    '"delta":{"role":"assistant","content":""}',
    '"delta":{}',
)
TEXT = Frame("cmpl", "text_completion", "text_completion", "", '"text":""')


_CONTENT = PartKind.CONTENT
"""Looked up for each token."""


class Shape(Protocol):
    """What differs between the two endpoints. One serves all choices of an answer."""

    @property
    def frame(self) -> Frame:
        """The endpoint's words."""
        ...

    def reader(self) -> "ChoiceReader":
        """A fresh one for each choice."""
        ...

    def logprobs(self) -> Logprobs | None:
        """A fresh one for each choice; None if the request asked for none."""
        ...

    def piece(self, part: Part) -> str:
        """Body of a choice's chunk with a part."""
        ...

    def whole(self, parts: Sequence[Part]) -> Json:
        """Body of a choice of an unstreamed answer."""
        ...


class ChoiceReader:
    """Takes one choice's deltas apart.

    calls: calls of functions so far. reasoning_tokens: tokens of reasoning so far.
    """

    def __init__(self, parts: PartReader, meter: ReasoningMeter, codec: TextCodec) -> None:
        self.calls = 0
        self._plain = isinstance(parts, PlainReader)
        self._parts = parts
        self._meter = meter
        self._codec = codec

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far, tags included."""
        return self._meter.tokens

    @property
    def called(self) -> bool:
        """Whether there are calls, and the last is complete."""
        return self.calls > 0 and not self._parts.mid_call

    def read(self, delta: Delta) -> Sequence[Part]:
        """Parts that are certain now; all that was held back with the last delta."""
        if self._plain:
            return self._parts.push(delta.text)
        if self._meter.counting:
            for info in delta.tokens:
                self._meter.push(self._codec.token_bytes(info.token))
        parts = self._parts.push(delta.text) if delta.text else ()
        if delta.finish is not None:
            parts = (*parts, *self._parts.finish())
        self.calls += sum(part.kind is PartKind.CALL for part in parts)
        return parts


@dataclass(frozen=True, slots=True)
class Offer:
    """The functions a request offers, and how the model calls them.

    many: whether it may call several at once.
    """

    form: ToolFormat
    names: Collection[str]
    many: bool


@dataclass(frozen=True, slots=True)
class ChatShape:
    """`delta` and `message`.

    thinking: how answers begin. offer: None where no functions are offered.
    """

    codec: TextCodec
    with_logprobs: bool
    thinking: Thinking = Thinking.NEVER
    offer: Offer | None = None

    @property
    def frame(self) -> Frame:
        """Chat's words."""
        return CHAT

    def reader(self) -> ChoiceReader:
        """Tells reasoning, content and calls."""
        offer = self.offer
        parts: PartReader = PlainReader()
        if offer is not None:
            parts = ToolReader(offer.form, offer.names, offer.many)
        if self.thinking is not Thinking.NEVER:
            parts = ReasoningReader(self.thinking, parts)
        return ChoiceReader(parts, ReasoningMeter(self.thinking), self.codec)

    def logprobs(self) -> Logprobs | None:
        """A fresh one for each choice."""
        return ChatLogprobs(self.codec) if self.with_logprobs else None

    def piece(self, part: Part) -> str:
        """A delta."""
        if part.kind is _CONTENT:
            return f'"delta":{{"content":{quoted(part.text)}}}'
        match part.kind:
            case PartKind.REASONING:
                return f'"delta":{{"reasoning_content":{quoted(part.text)}}}'
            case PartKind.CALL:
                call = {"index": part.call, **self._call(part.text, "")}
            case _:
                call = {"index": part.call, "function": {"arguments": part.text}}
        return f'"delta":{{"tool_calls":[{dumps(call)}]}}'

    def whole(self, parts: Sequence[Part]) -> Json:
        """The message."""
        texts = {kind: "".join(p.text for p in parts if p.kind is kind) for kind in PartKind}
        names = [part.text for part in parts if part.kind is PartKind.CALL]
        calls = [
            self._call(name, "".join(p.text for p in parts if _is_argument(p, index)))
            for index, name in enumerate(names)
        ]
        reasoning = texts[PartKind.REASONING]
        nothing = None if calls or reasoning else ""
        message: Json = {
            "role": "assistant",
            "content": texts[PartKind.CONTENT] or nothing,
            "refusal": None,
        }
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _call(self, name: str, arguments: str) -> Json:
        length = self.offer.form.id_chars if self.offer is not None else 0
        identity = secrets.token_hex(length)[:length] if length else f"call_{secrets.token_hex(12)}"
        return {
            "id": identity,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


def _is_argument(part: Part, call: int) -> bool:
    return part.kind is PartKind.ARGUMENTS and part.call == call


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """`text`."""

    codec: TextCodec
    with_logprobs: bool

    @property
    def frame(self) -> Frame:
        """The text endpoint's words."""
        return TEXT

    def reader(self) -> ChoiceReader:
        """All of it is text."""
        return ChoiceReader(PlainReader(), ReasoningMeter(Thinking.NEVER), self.codec)

    def logprobs(self) -> Logprobs | None:
        """A fresh one for each choice."""
        return CompletionLogprobs(self.codec) if self.with_logprobs else None

    def piece(self, part: Part) -> str:
        """Text."""
        return f'"text":{quoted(part.text)}'

    def whole(self, parts: Sequence[Part]) -> Json:
        """All of the text."""
        return {"text": "".join(part.text for part in parts)}
