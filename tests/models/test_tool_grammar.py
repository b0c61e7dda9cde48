"""Random answers under grammars of calls: what they bind is what readers of answers read."""

import json
import random
from collections.abc import Callable, Sequence

import jsonschema
import pytest

from headway.models.answers import Part, PartKind
from headway.models.grammars import GrammarCompiler, GrammarPart, json_part, marker_term, source_of
from headway.models.reasoning import ReasoningReader, Thinking, reasoning_frame
from headway.models.tool_calls import HERMES, LLAMA3, MARKERS, MISTRAL, ToolFormat, ToolReader
from headway.models.tool_grammar import Function, calls_part, free_part
from headway.testing.text import ByteTokenizer

EOS = 0
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "on": {"type": "boolean"}},
    "required": ["n", "on"],
    "additionalProperties": False,
}
FUNCTIONS = (Function("set", SCHEMA), Function("stop", {"additionalProperties": False}))
NAMES = [function.name for function in FUNCTIONS]
WORDS = {256 + i: word.encode() for i, word in enumerate((*MARKERS, "<think>", "</think>"))}
PLAIN = ByteTokenizer()
CONTROL = ByteTokenizer(WORDS, special=frozenset(WORDS))
COMPILERS = {words: GrammarCompiler(words, 300, {EOS}) for words in (PLAIN, CONTROL)}
FORMS = pytest.mark.parametrize("form", [HERMES, LLAMA3, MISTRAL])
VOCABULARIES = pytest.mark.parametrize("words", [PLAIN, CONTROL], ids=["text", "control tokens"])


def term_of(words: ByteTokenizer) -> Callable[[str], str]:
    return lambda marker: marker_term(words, marker)


PREFERRED = {*b'}"]\n0', EOS, *WORDS}
"""Tokens that close something; without them numbers would never end."""


def tokens_of(words: ByteTokenizer, text: str) -> list[int]:
    """A text's tokens; a marker that is a control token is one."""
    known = words.token_id(text)
    return list(text.encode()) if known is None else [known]


def sample(words: ByteTokenizer, source: str, seed: int, start: Sequence[int] = ()) -> str | None:
    """A random answer that starts like this; None if it is not complete after 300 tokens."""
    state, rng, out = COMPILERS[words].compile(source, "x").start(), random.Random(seed), b""
    for place in range(300):
        mask = state.mask()
        allowed = [t for t in range(300) if mask[t // 8] >> t % 8 & 1]
        likely = [t for t in allowed if t in PREFERRED]
        token = rng.choice(likely if likely and rng.random() < 0.7 else allowed)
        if place < len(start):
            token = start[place]
            assert token in allowed
        if token == EOS:
            return out.decode(errors="replace")
        state.accept(token)
        out += words.token_bytes(token)
        if state.complete:
            return out.decode(errors="replace")
    return None


def read(form: ToolFormat, text: str) -> tuple[str, list[tuple[str, object]]]:
    reader = ToolReader(form, NAMES)
    parts: list[Part] = [*reader.push(text), *reader.finish()]
    names = [part.text for part in parts if part.kind is PartKind.CALL]
    arguments = [""] * len(names)
    for part in parts:
        if part.kind is PartKind.ARGUMENTS:
            arguments[part.call] += part.text
    content = "".join(part.text for part in parts if part.kind is PartKind.CONTENT)
    return content, list(zip(names, map(json.loads, arguments), strict=True))


@FORMS
@VOCABULARIES
@pytest.mark.parametrize("many", [False, True])
def test_forced_calls_are_read_and_fit(form: ToolFormat, words: ByteTokenizer, many: bool) -> None:
    source = source_of(calls_part(form, FUNCTIONS, many, term_of(words)))
    counts = set()
    for seed in range(12):
        text = sample(words, source, seed)
        if text is None:
            continue
        content, calls = read(form, text)
        assert calls and not content
        counts.add(len(calls))
        for name, arguments in calls:
            assert name in NAMES
            if name == "set":
                jsonschema.validate(arguments, SCHEMA)
    assert (max(counts) > 1) is many


@FORMS
@VOCABULARIES
def test_free_text_or_calls_that_fit(form: ToolFormat, words: ByteTokenizer) -> None:
    part: GrammarPart = free_part(form, FUNCTIONS, True, term_of(words))
    grammar = COMPILERS[words].compile(source_of(part), "x")
    state = grammar.start()
    for byte in b"Any text <b> at all.":
        state.accept(byte)
    assert state.mask()[0] & 1, "it may end"
    opens = words.token_id(form.opens)
    head = [] if form.bare else list(form.opens.encode()) if opens is None else [opens]
    state = grammar.start()
    body = {HERMES: "\n", LLAMA3: "", MISTRAL: "["}[form]
    for token in [*head, *f'{body}{{"name": "s'.encode()]:
        assert state.mask()[token // 8] >> token % 8 & 1
        state.accept(token)
    allowed = [t for t in range(1, 300) if state.mask()[t // 8] >> t % 8 & 1]
    assert bytes(t for t in allowed if t < 256) in (b"et", b"e", b"t")


@VOCABULARIES
@pytest.mark.parametrize("thinking", [Thinking.MAYBE, Thinking.BEGUN])
def test_reasoning_is_free_and_the_answer_is_not(words: ByteTokenizer, thinking: Thinking) -> None:
    frame = reasoning_frame(thinking, term_of(words))
    source = source_of(json_part(SCHEMA), frame)
    opens = tokens_of(words, "<think>") if thinking is Thinking.MAYBE else []
    thought = [*opens, *b'Hm, {"n": ', *tokens_of(words, "</think>")]
    for seed in range(6):
        for start, reasoning in ((thought, 'Hm, {"n": '), ([], "")):
            if thinking is Thinking.BEGUN and not start:
                continue
            text = sample(words, source, seed, start or [ord("{")])
            if text is None:
                continue
            reader = ReasoningReader(thinking, ToolReader(HERMES, ()))
            parts = [*reader.push(text), *reader.finish()]
            found = {k: "".join(p.text for p in parts if p.kind is k) for k in PartKind}
            jsonschema.validate(json.loads(found[PartKind.CONTENT]), SCHEMA)
            assert found[PartKind.REASONING] == reasoning


def test_no_reasoning_no_frame() -> None:
    assert reasoning_frame(Thinking.NEVER, term_of(PLAIN)) == ""
