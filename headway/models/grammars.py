"""Grammars: what an answer may be, compiled for a model's vocabulary by llguidance.

A source is llguidance's own: a Lark grammar in its dialect, or the JSON that `json_source` and
`regex_source` give.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

import llguidance

from headway.errors import InvalidRequestError

MAX_SOURCE_CHARS = 256 * 1024
"""Longest source; a schema of a thousand properties has a fifth of that."""

_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=20_000,
    initial_lexer_fuel=1_000_000,  # 20 ms of compiling regular expressions
    step_lexer_fuel=100_000,  # 7 ms a token
    step_max_items=25_000,  # 1 ms a token
    max_lexer_states=50_000,  # 100 MB at the very most
    max_grammar_size=100_000,
    verbose_errors=False,
)

_KEPT = 64
"""Grammars kept compiled: a job of many lines has one schema."""

# Without a bound, a small model may go on with white space until its length is used up.
_WHITE_SPACE = r"[ \n\r\t]{1,20}"


class GrammarError(InvalidRequestError):
    """A grammar can't be followed any further, or a token broke it."""


def json_source(schema: Mapping[str, object] | bool) -> str:
    """Source of the JSON texts that fit a schema."""
    whole = {"type": "object"} if schema is True else schema
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(whole), overrides={"whitespace_pattern": _WHITE_SPACE}
        )
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema can't be read: {_one_line(str(error))}") from error


def regex_source(pattern: str) -> str:
    """Source of the texts that a regular expression matches as a whole."""
    return llguidance.LLMatcher.grammar_from_regex(pattern)


class Vocabulary(Protocol):
    """A model's tokens."""

    def token_bytes(self, token: int) -> bytes: ...

    def is_special(self, token: int) -> bool: ...

    def encode(self, text: str, add_special: bool, parse_special: bool) -> Sequence[int]: ...


class GrammarState:
    """Where one answer stands: a function of its tokens. For one thread at a time."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._matcher.is_stopped()

    def mask(self) -> bytes:
        """The tokens that may come next; bit i of byte i // 8 allows token i. End of sequence is
        among them only where the answer may end. Raises GrammarError where that takes too much."""
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def accept(self, token: int) -> None:
        """Go on by a token. Raises GrammarError for one that the mask doesn't allow."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar: {_one_line(self._matcher.get_error())}")


class Grammar:
    """A compiled grammar; immutable, shared by any number of answers.

    first_mask: what `mask` of a fresh state gives.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self.first_mask = GrammarState(matcher.deep_copy()).mask()

    def start(self) -> GrammarState:
        """The state of an answer without tokens."""
        return GrammarState(self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles for one vocabulary; from any thread. The first use takes a third of a second, a
    grammar a few milliseconds."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, stop_ids: Collection[int]) -> None:
        """vocab_size: rows of the model's embedding. stop_ids: tokens that end an answer."""
        self._make = partial(_tokenizer, vocabulary, vocab_size, sorted(stop_ids))
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Grammar] = OrderedDict()

    def compile(self, source: str, param: str) -> Grammar:
        """Raises InvalidRequestError, about the field `param`, for what can't be compiled."""
        with self._lock:
            kept = self._kept.get(source)
            if kept is not None:
                self._kept.move_to_end(source)
                return kept
            if self._tokenizer is None:
                self._tokenizer = self._make()
        grammar = _compiled(self._tokenizer, source, param)
        with self._lock:
            self._kept[source] = grammar
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return grammar


def _compiled(tokenizer: llguidance.LLTokenizer, source: str, param: str) -> Grammar:
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidRequestError(
            f"'{param}' is longer than {MAX_SOURCE_CHARS:,} characters.", param
        )
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        reason = _one_line(matcher.get_error())
        raise InvalidRequestError(f"'{param}' can't be compiled: {reason}.", param)
    try:
        return Grammar(matcher)
    except GrammarError as error:
        raise InvalidRequestError(f"'{param}' is too complex: {error}.", param) from error


class _Wrapped:
    """A vocabulary as llguidance wants it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self.eos_token_id = stop_ids[0]
        self.tokens = [vocabulary.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids = [t for t in range(vocab_size) if vocabulary.is_special(t)]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        # Where only one text may follow, only the tokens that the model was trained on for it may.
        return list(self._encode(text, add_special=False, parse_special=False))


def _tokenizer(
    vocabulary: Vocabulary, vocab_size: int, stop_ids: Sequence[int]
) -> llguidance.LLTokenizer:
    if not stop_ids:
        raise InvalidRequestError("this model has no token that ends an answer")
    wrapped = llguidance.TokenizerWrapper(_Wrapped(vocabulary, vocab_size, stop_ids))
    return llguidance.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=list(stop_ids))


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300].rstrip(".")
