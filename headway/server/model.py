"""What the server needs to know of the model it serves: names, and text to tokens and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.server.errors import bad_request
from headway.server.tiers import ModelNames


class TextCodec(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str, add_special: bool) -> Sequence[int]:
        """Token ids; `add_special` puts beginning of sequence first if the model is used so.
        Names of control tokens in the text are these tokens."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; may be part of a character."""
        ...


class ChatFormat(Protocol):
    """A conversation as one text, ready for the assistant's answer."""

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Raises InvalidRequestError for a conversation the template refuses."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model under one name. `chat` is None where the model has no chat template."""

    names: ModelNames
    codec: TextCodec
    chat: ChatFormat | None
    created: int

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text prompt. Raises ApiError (400) if there are none."""
        ids = self.codec.encode(text, add_special=True)
        if not ids:
            raise bad_request("A prompt has no tokens.", "prompt")
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> Sequence[int]:
        """Token ids of a conversation. Raises ApiError (400) or InvalidRequestError."""
        if self.chat is None:
            raise bad_request("This model has no chat template; use /v1/completions.", "messages")
        return self.codec.encode(self.chat.render(messages), add_special=False)
