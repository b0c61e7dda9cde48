"""What the server needs to know of the model it serves: names, and text to tokens and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.errors import NeverFitsError
from headway.server.errors import bad_request
from headway.server.tiers import ModelNames

_MAX_CHARS_PER_TOKEN = 128
"""Far beyond what text of any kind comes to on average."""


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
    max_model_len: int
    created: int

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text prompt. Raises ApiError (400) if there are none, and
        NeverFitsError."""
        ids = self._tokens(text, add_special=True)
        if not ids:
            raise bad_request("A prompt has no tokens.", "prompt")
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> Sequence[int]:
        """Token ids of a conversation. Raises ApiError (400) or InvalidRequestError."""
        if self.chat is None:
            raise bad_request("This model has no chat template; use /v1/completions.", "messages")
        return self._tokens(self.chat.render(messages), add_special=False)

    def _tokens(self, text: str, add_special: bool) -> Sequence[int]:
        # Megabytes that can't fit would take seconds and gigabytes to encode.
        if len(text) > self.max_model_len * _MAX_CHARS_PER_TOKEN:
            raise NeverFitsError(
                f"A prompt of {len(text):,} characters is longer than any that fits.", "prompt"
            )
        return self.codec.encode(text, add_special)
