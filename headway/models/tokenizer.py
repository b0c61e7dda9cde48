"""Text to token ids and back.

Encoding is the `tokenizers` library's. Decoding is our own: a token stands for bytes, a text for
the concatenation of its tokens' bytes read as UTF-8. So what a stream has emitted is at every
moment a prefix of what `decode` gives for all tokens, and log probabilities can name the bytes.
An answer continues a prompt, so the space that SentencePiece puts before a text is not removed.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

import tokenizers

from headway.errors import InvalidRequestError, ModelError
from headway.models.contents import MARK, marked, name_pattern

_Made = TypeVar("_Made")

_MAX_JSON_BYTES = 1 << 27


class Spelling(Enum):
    """How a vocabulary writes bytes.

    BYTE_LEVEL: each byte is one printable character (GPT-2).
    SENTENCEPIECE: text with U+2581 for a space, and <0xAB> for single bytes.
    """

    BYTE_LEVEL = "byte level"
    SENTENCEPIECE = "sentencepiece"


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a meaning, None where a model has none. `stop` end an answer."""

    bos: int | None = None
    eos: int | None = None
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SpecialNames:
    """What stands beside a tokenizer.json: names of tokens, and ids that end an answer."""

    bos: str | None
    eos: str | None
    stop: Set[int]


class Tokenizer:
    """A model's vocabulary. Immutable; all methods may be called from any thread."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        spelling: Spelling,
        special: SpecialIds,
        vocab_size: int,
    ) -> None:
        self.special = special
        self.vocab_size = vocab_size
        """One more than the largest id; a model's embedding may have more rows."""
        self._core = core
        self._literal: tokenizers.Tokenizer | None = None
        self._added = core.get_added_tokens_decoder()
        self._control = name_pattern([t.content for t in self._added.values() if t.special])
        self._to_bytes = _SPELLERS[spelling]
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, add_special: bool, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        add_special: put beginning of sequence first, if the model is used so.
        parse_special: read the names of control tokens, as a chat template writes them, as these
            tokens, but for those that `shield` has marked; otherwise they are plain text.
        Raises InvalidRequestError for text that is not valid Unicode. Bytes that a vocabulary has
        no token for are left out (SmolLM2's lacks a few that UTF-8 hardly uses).
        """
        if not parse_special:
            return _encoded(self._plain(), text, add_special)
        if MARK not in text or self._control is None:
            return _encoded(self._core, text, add_special)
        ids: list[int] = []
        for run, plain in _runs(self._control.split(text)):
            core = self._plain() if plain else self._core
            ids += _encoded(core, run, add_special and not ids)
        return ids

    def shield(self, text: str) -> str:
        """The text with a mark in each name of a control token, for `encode` to read it as plain
        text even where it stands between names that are to be read as tokens.

        Raises InvalidRequestError for text with such a mark, which is not valid Unicode.
        """
        if MARK in text:
            raise _half_a_pair()
        return marked(text, self._control)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        skip = self.is_special if skip_special else None
        data = b"".join(self.token_bytes(i) for i in ids if not (skip and skip(i)))
        return data.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for, a control token's being its name; b"" for an id that the
        vocabulary leaves out."""
        known = self._bytes.get(token)
        if known is None:
            known = self._spell(token)
            if known:  # of ids without a token there are billions, and clients send any
                self._bytes[token] = known
        return known

    def token_text(self, token: int) -> str:
        """`token_bytes` as text; half characters become U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def is_special(self, token: int) -> bool:
        """Whether a token is for control and has no place in a text."""
        added = self._added.get(token)
        return added is not None and added.special

    def token_id(self, name: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        found: int | None = self._core.token_to_id(name)
        return found

    def stream(self, shown: Set[int] = frozenset()) -> "StreamDecoder":
        """A decoder for tokens that come one by one. Control tokens have no text, but for those in
        `shown`, whose names it is."""
        return StreamDecoder(self, shown)

    def _spell(self, token: int) -> bytes:
        if token < 0 or token >= 1 << 32:
            return b""
        added = self._added.get(token)
        if added is not None:
            content: str = added.content
            return content.encode()
        piece: str | None = self._core.id_to_token(token)
        return b"" if piece is None else self._to_bytes(piece)

    def _plain(self) -> tokenizers.Tokenizer:
        # A copy, because whether names are read is a switch on the whole object.
        if self._literal is None:
            literal = tokenizers.Tokenizer.from_str(self._core.to_str())
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal


def _encoded(core: tokenizers.Tokenizer, text: str, add_special: bool) -> list[int]:
    try:
        ids: list[int] = core.encode(text, add_special_tokens=add_special).ids
    except (UnicodeEncodeError, TypeError) as e:
        # The library can't take such a string, and calls it no string at all.
        raise _half_a_pair() from e
    return ids


def _half_a_pair() -> InvalidRequestError:
    return InvalidRequestError("the text holds half of a surrogate pair")


def _runs(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Runs of text to encode by themselves, and whether as plain text: what has marks, without
    them, reaches from one control token to the next, where encoding starts anew anyway."""
    held = ""
    for piece in pieces:
        if MARK not in piece:
            held += piece
            continue
        if held:
            yield held, False
        yield piece.replace(MARK, ""), True
        held = ""
    if held:
        yield held, False


class StreamDecoder:
    """Text of tokens as they come. The pieces put together equal `Tokenizer.decode` of all."""

    def __init__(self, tokenizer: Tokenizer, shown: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """New text, whole characters only; may be empty."""
        if self._tokenizer.is_special(token) and token not in self._shown:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is held back at the end: U+FFFD for half a character, or nothing."""
        return self._utf8.decode(b"", final=True)


def load_tokenizer_json(path: Path, names: SpecialNames) -> Tokenizer:
    """A Hugging Face `tokenizer.json`: byte-level or SentencePiece BPE.

    Raises ModelError for other kinds, by name, and for files that can't be read.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(f"{path}: larger than any tokenizer")
        text = path.read_text("utf-8")
        spelling = _spelling(json.loads(text))
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{path}: can't be read: {e}") from e
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e
    core = guarded(partial(tokenizers.Tokenizer.from_str, text), str(path))
    core.no_truncation()
    core.no_padding()
    bos, eos = (core.token_to_id(name) if name else None for name in (names.bos, names.eos))
    stop = frozenset(names.stop) if eos is None else frozenset(names.stop) | {eos}
    vocab_size = 1 + max(core.get_vocab(with_added_tokens=True).values(), default=-1)
    return Tokenizer(core, spelling, SpecialIds(bos, eos, stop), vocab_size)


def guarded(make: Callable[[], _Made], what: str) -> _Made:
    """The result of `make`, a constructor of the `tokenizers` library; its every failure on bad
    tables becomes a ModelError. It panics on some, which is no `Exception` in Python."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        reason = " ".join(str(e).split())[:200]
        raise ModelError(f"{what}: {reason}") from e


def _spelling(tree: object) -> Spelling:
    """How a tokenizer.json spells bytes, from its model and its decoder."""
    if not isinstance(tree, dict):
        raise ModelError("not a tokenizer")
    model, decoder = tree.get("model"), tree.get("decoder")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind != "BPE":
        raise ModelError(f"tokenizer model {str(kind)[:64]!r} is not supported (BPE is)")
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {step.get("type") for step in steps if isinstance(step, dict)}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if kinds & {"ByteFallback", "Metaspace"}:
        return Spelling.SENTENCEPIECE
    raise ModelError(f"tokenizer decoder {str(sorted(map(str, kinds)))[:128]} is not supported")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself where it prints, else 256, 257, …"""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in piece])
    except KeyError:
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace("\u2581", " ").encode()


_SPELLERS = {Spelling.BYTE_LEVEL: _byte_level, Spelling.SENTENCEPIECE: _sentencepiece}
