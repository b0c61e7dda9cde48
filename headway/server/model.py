"""What the server needs to know of the model it serves: names, and text to tokens and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.errors import NeverFitsError
from headway.models.grammars import Grammar, GrammarCompiler, marker_term
from headway.server.errors import bad_request
from headway.server.tiers import ModelNames

_MAX_CHARS_PER_TOKEN = 128
"""Far beyond what text of any kind comes to on average."""


class TextCodec(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str, add_special: bool) -> Sequence[int]:
        """Token ids; `add_special` puts beginning of sequence first if the model is used so.
        Names of control tokens in the text are these tokens, unless `shield` has marked them."""
        ...

    def shield(self, text: str) -> str:
        """The text, marked so that no name in it is read as a control token."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; may be part of a character."""
        ...

    def token_id(self, name: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether a token is for control and has no place in a text."""
        ...


class ChatFormat(Protocol):
    """A conversation as one text, ready for the assistant's answer."""

    @property
    def source(self) -> str:
        """The template itself, which says how its model calls functions and whether it thinks."""
        ...

    @property
    def takes_tools(self) -> bool:
        """Whether it writes tools into the prompt."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        /,
        **variables: object,
    ) -> str:
        """Raises InvalidRequestError for a conversation the template refuses."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model under one name.

    chat: None where the model has no chat template.
    grammars: compiles what answers may be; None where answers are always free.
    """

    names: ModelNames
    codec: TextCodec
    chat: ChatFormat | None
    max_model_len: int
    created: int
    grammars: GrammarCompiler | None = None

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text prompt. Raises ApiError (400) if there are none, and
        NeverFitsError."""
        ids = self.tokens(text, add_special=True)
        if not ids:
            raise bad_request("A prompt has no tokens.", "prompt")
        return ids

    def chat_format(self) -> ChatFormat:
        """The chat template. Raises ApiError (400) where there is none."""
        if self.chat is None:
            raise bad_request("This model has no chat template; use /v1/completions.", "messages")
        return self.chat

    def tool_format(self) -> ChatFormat:
        """The chat template, of a request with tools. Raises ApiError (400) where there is none, or
        one without a place for them."""
        chat = self.chat_format()
        if not chat.takes_tools:
            raise bad_request(
                "This model's chat template has no place for tools.", "tools", "unsupported_field"
            )
        return chat

    def chat_tokens(self, text: str) -> Sequence[int]:
        """Token ids of a rendered conversation. Raises NeverFitsError that names the messages,
        which is what the client sent."""
        ids = self.tokens(text, add_special=False, param="messages")
        if len(ids) >= self.max_model_len:
            raise NeverFitsError(
                f"The conversation has {len(ids):,} tokens; with room for one more, at most "
                f"{self.max_model_len - 1:,} fit.",
                "messages",
            )
        return ids

    def tokens(self, text: str, add_special: bool, param: str = "prompt") -> Sequence[int]:
        """Token ids of a text. Raises NeverFitsError that names `param`."""
        # Megabytes that can't fit would take seconds and gigabytes to encode.
        if len(text) > self.max_model_len * _MAX_CHARS_PER_TOKEN:
            raise NeverFitsError(
                f"A prompt of {len(text):,} characters is longer than any that fits.", param
            )
        return self.codec.encode(text, add_special)

    def term(self, marker: str) -> str:
        """A marker of calls or reasoning as grammars write it."""
        return marker_term(self.codec, marker)

    def compile(self, source: str, param: str) -> Grammar:
        """A grammar. Raises ApiError (400) or InvalidRequestError."""
        if self.grammars is None:
            raise bad_request(f"{param!r} is not supported with this model.", param)
        return self.grammars.compile(source, param)
