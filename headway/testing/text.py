"""A tokenizer without a vocabulary file, for tests of text."""

import codecs
from collections.abc import Mapping, Set


class ByteTokenizer:
    """Tokens 0 to 255 are single bytes; a larger id is ` w<id>` unless `words` spells it.

    So any text is a list of byte tokens, and characters can be cut between tokens.

    words: what larger ids stand for. special: those of them that are control tokens.
    """

    def __init__(
        self, words: Mapping[int, bytes] | None = None, special: Set[int] = frozenset()
    ) -> None:
        self._words = dict(words or {})
        self._special = special

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """One token for each byte."""
        return list(text.encode())

    def shield(self, text: str) -> str:
        """The text itself: no name in it is ever read as a token."""
        return text

    def is_special(self, token: int) -> bool:
        """Whether a token is for control."""
        return token in self._special

    def token_id(self, name: str) -> int | None:
        """The id of a word."""
        found = [token for token, word in self._words.items() if word == name.encode()]
        return found[0] if found else None

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for."""
        if token in self._words:
            return self._words[token]
        return bytes([token]) if token < 256 else f" w{token}".encode()

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def stream(self, shown: Set[int] = frozenset()) -> "ByteStream":
        """A decoder for one answer."""
        return ByteStream(self, self._special - shown)


class ByteStream:
    """Decodes tokens one by one, whole characters only."""

    def __init__(self, tokenizer: ByteTokenizer, silent: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._silent = silent
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Characters complete now."""
        if token in self._silent:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """U+FFFD for a character cut off by the end."""
        return self._decoder.decode(b"", final=True)
