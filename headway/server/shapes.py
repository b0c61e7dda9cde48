"""What differs between chat and text completions in an answer."""

from dataclasses import dataclass
from typing import Protocol

from headway.server.jsontext import Json, quoted
from headway.server.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from headway.server.model import TextCodec


class Shape(Protocol):
    """What differs between the two endpoints."""

    @property
    def id_prefix(self) -> str:
        """What answers' ids begin with."""
        ...

    @property
    def chunk_object(self) -> str:
        """`object` of a stream's chunks."""
        ...

    @property
    def body_object(self) -> str:
        """`object` of an unstreamed answer."""
        ...

    def logprobs(self) -> Logprobs | None:
        """A fresh one for each choice; None if the request asked for none."""
        ...

    def opening(self) -> str | None:
        """Body of a choice's first chunk, None if the endpoint has none."""
        ...

    def piece(self, text: str) -> str:
        """Body of a choice's chunk with text."""
        ...

    def closing(self) -> str:
        """Body of a choice's last chunk, which gives the finish reason."""
        ...

    def whole(self, text: str) -> Json:
        """Body of a choice of an unstreamed answer."""
        ...


@dataclass(frozen=True, slots=True)
class ChatShape:
    """`delta` and `message`."""

    codec: TextCodec
    with_logprobs: bool
    id_prefix: str = "chatcmpl"
    chunk_object: str = "chat.completion.chunk"
    body_object: str = "chat.completion"

    def logprobs(self) -> Logprobs | None:
        """A fresh one for each choice."""
        return ChatLogprobs(self.codec) if self.with_logprobs else None

    def opening(self) -> str | None:
        """The role comes first."""
        return '"delta":{"role":"assistant","content":""}'

    def piece(self, text: str) -> str:
        """Content."""
        return f'"delta":{{"content":{quoted(text)}}}'

    def closing(self) -> str:
        """An empty delta."""
        return '"delta":{}'

    def whole(self, text: str) -> Json:
        """The message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """`text`."""

    codec: TextCodec
    with_logprobs: bool
    id_prefix: str = "cmpl"
    chunk_object: str = "text_completion"
    body_object: str = "text_completion"

    def logprobs(self) -> Logprobs | None:
        """A fresh one for each choice."""
        return CompletionLogprobs(self.codec) if self.with_logprobs else None

    def opening(self) -> str | None:
        """Nothing comes before the text."""
        return None

    def piece(self, text: str) -> str:
        """Text."""
        return f'"text":{quoted(text)}'

    def closing(self) -> str:
        """No more text."""
        return '"text":""'

    def whole(self, text: str) -> Json:
        """All of the text."""
        return {"text": text}
