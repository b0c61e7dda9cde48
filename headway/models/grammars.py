"""Grammars: what an answer may be, compiled for a model's vocabulary by llguidance.

A source is llguidance's own JSON: a list of grammars, the first of which may name others.
"""

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Protocol

import llguidance

from headway.errors import InvalidRequestError
from headway.models.schemas import GrammarError, check_schema

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

_NO_TEXT = "NoExtensionBias"
"""llguidance's word for a grammar where nothing may follow, and which isn't complete."""

_KEPT = 64
"""Grammars kept compiled: a job of many lines has one schema."""

_KEPT_CHARS = 2 * MAX_SOURCE_CHARS
"""Most characters that their sources have together: one takes up to 100 bytes compiled, beside up
to 600 KB for each grammar."""

_NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Where only one text may follow, llguidance would look for its end before it gives a mask. Some
have none (`/a+/ /a+/`, of which the first swallows all), or one beyond any memory."""

_SCHEMA_WITHIN = re.compile(r"%json\s*")

_REMEMBERED = 256
"""Refusals remembered: a job of many lines has one schema, right or wrong."""

GrammarPart = Mapping[str, object]
"""One grammar of a source."""


def json_part(schema: Mapping[str, object]) -> GrammarPart:
    """JSON texts that fit a schema. Raises GrammarError as `bounded_space` does."""
    return {"json_schema": bounded_space(schema)}


def bounded_space(schema: Mapping[str, object]) -> Mapping[str, object]:
    """The schema with an end to white space, where a small model would go on until its length is
    used up. Raises GrammarError for one that would take too long to compile."""
    check_schema(schema)
    return {**schema, "x-guidance": {"whitespace_pattern": r"[ \n\r\t]{1,20}"}}


def regex_part(pattern: str) -> GrammarPart:
    """Texts that a regular expression matches as a whole."""
    part: GrammarPart = json.loads(llguidance.LLMatcher.grammar_from_regex(pattern))["grammars"][0]
    return part


def choice_part(choices: Sequence[str]) -> GrammarPart:
    """One of these texts."""
    return lark_part("start: " + " | ".join(map(quoted, choices)))


def lark_part(grammar: str) -> GrammarPart:
    """Texts of a grammar in llguidance's dialect of Lark, whose rules begin with `start`. Raises
    GrammarError for a schema within it as `bounded_space` does."""
    for within in _SCHEMA_WITHIN.finditer(grammar):
        with suppress(ValueError):  # llguidance says it better
            check_schema(json.JSONDecoder().raw_decode(grammar, within.end())[0])
    return {"lark_grammar": grammar}


def either_source(parts: Mapping[str, GrammarPart], frame: str = "") -> str:
    """The source of a grammar that is one of several, by name; see `source_of`."""
    choice = lark_part("start: " + " | ".join(f"@{name}" for name in parts))
    return source_of(choice, frame, parts)


def source_of(
    part: GrammarPart, frame: str = "", others: Mapping[str, GrammarPart] = MappingProxyType({})
) -> str:
    """The source of a grammar.

    frame: a Lark grammar around it, which calls it `@answer`; it alone by default. others:
        grammars that it calls by their names.
    Raises GrammarError for what JSON can't hold.
    """
    framed = [lark_part(_NO_FORCING + (frame or "start: @answer")), {**part, "name": "answer"}]
    named = [{**other, "name": name} for name, other in others.items()]
    try:
        return json.dumps({"grammars": [*framed, *named]})
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema can't be read: {_one_line(str(error))}") from error


def quoted(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text)


class Names(Protocol):
    """Control tokens by name."""

    def token_id(self, name: str) -> int | None: ...

    def is_special(self, token: int) -> bool: ...


class Vocabulary(Names, Protocol):
    """A model's tokens."""

    def token_bytes(self, token: int) -> bytes: ...

    def encode(self, text: str, add_special: bool, parse_special: bool) -> Sequence[int]: ...


def marker_term(vocabulary: Names, marker: str) -> str:
    """A marker as Lark writes it: a control token by its id, other text as text."""
    token = vocabulary.token_id(marker)
    return quoted(marker) if token is None or not vocabulary.is_special(token) else f"<[{token}]>"


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


class Trial(Protocol):
    """Finds out whether a source can be compiled at all; see `grammar_trial`."""

    def check(self, source: str, param: str) -> None:
        """Raises InvalidRequestError, about the field `param`, for one that can't."""
        ...

    def close(self) -> None: ...


class GrammarCompiler:
    """Compiles for one vocabulary; from any thread. The first use takes a third of a second, a
    grammar a few milliseconds."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        stop_ids: Collection[int],
        trial: Trial | None = None,
    ) -> None:
        """vocab_size: rows of the model's embedding. stop_ids: tokens that end an answer; one at
        least. trial: what sources have to pass first, where strangers write them."""
        self._make = partial(tokenizer_of, vocabulary, vocab_size, sorted(stop_ids))
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._trial = trial
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._kept_chars = 0
        self._refused: OrderedDict[bytes, str] = OrderedDict()

    def compile(self, source: str, param: str) -> Grammar:
        """Raises InvalidRequestError, about the field `param`, for what can't be compiled."""
        with self._lock:
            kept = self._kept.get(source)
            if kept is not None:
                self._kept.move_to_end(source)
                return kept
            if self._tokenizer is None:
                self._tokenizer = self._make()
        if self._trial is not None:
            self._try(self._trial, source, param)
        grammar = compiled(self._tokenizer, source, param)
        with self._lock:
            if self._kept.setdefault(source, grammar) is grammar:
                self._kept_chars += len(source)
            while len(self._kept) > _KEPT or self._kept_chars > _KEPT_CHARS:
                self._kept_chars -= len(self._kept.popitem(last=False)[0])
        return grammar

    @property
    def kept_chars(self) -> int:
        """Characters of the sources whose grammars are kept compiled."""
        return self._kept_chars

    def close(self) -> None:
        """Let go of what the trial needs."""
        if self._trial is not None:
            self._trial.close()

    def _try(self, trial: Trial, source: str, param: str) -> None:
        digest = hashlib.sha256(f"{param} {source}".encode(errors="surrogatepass")).digest()
        with self._lock:
            refusal = self._refused.get(digest)
        if refusal is not None:
            raise InvalidRequestError(refusal, param)
        try:
            trial.check(source, param)
        except InvalidRequestError as error:
            with self._lock:
                self._refused[digest] = str(error)
                while len(self._refused) > _REMEMBERED:
                    self._refused.popitem(last=False)
            raise


def compiled(tokenizer: llguidance.LLTokenizer, source: str, param: str) -> Grammar:
    """A source compiled. Raises InvalidRequestError, about the field `param`."""
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidRequestError(
            f"'{param}' is longer than {MAX_SOURCE_CHARS:,} characters.", param
        )
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        reason = _in_our_words(_one_line(matcher.get_error()))
        raise InvalidRequestError(f"'{param}' can't be compiled: {reason}.", param)
    try:
        return Grammar(matcher)
    except GrammarError as error:
        if _NO_TEXT in str(error):
            raise InvalidRequestError(f"'{param}' allows no text at all.", param) from error
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
        return list(self._encode(text, add_special=False, parse_special=False))


def tokenizer_of(
    vocabulary: Vocabulary, vocab_size: int, stop_ids: Sequence[int]
) -> llguidance.LLTokenizer:
    """A vocabulary in llguidance's form; see `GrammarCompiler`."""
    wrapped = llguidance.TokenizerWrapper(_Wrapped(vocabulary, vocab_size, stop_ids))
    return llguidance.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=list(stop_ids))


def _in_our_words(reason: str) -> str:
    """The library's reason without options and words that are its own."""
    if reason.startswith("oneOf constraints"):
        return "the keyword 'oneOf' is supported only where no two of its schemas can fit at once"
    if found := _UNKNOWN_KEYS.match(reason):
        keys = found[1].replace('"', "'")
        several = "," in keys
        return f"the keyword{'s' * several} {keys} {'are' if several else 'is'} not supported"
    if found := _ELSEWHERE.match(reason):
        return f"the reference {found[1]} leads out of the schema"
    return reason


_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
_ELSEWHERE = re.compile(r"Resource ('.*') is not present")


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300].rstrip(".")
