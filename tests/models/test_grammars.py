"""Grammars compiled for the embedded model's vocabulary, and for one of bytes."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from headway.errors import InvalidRequestError
from headway.models.grammars import (
    MAX_SOURCE_CHARS,
    Grammar,
    GrammarCompiler,
    GrammarPart,
    choice_part,
    either_source,
    json_part,
    lark_part,
    regex_part,
    source_of,
)
from headway.models.loader import LoadedModel, load_model
from headway.models.schemas import GrammarError
from headway.testing.text import ByteTokenizer

EOS = 0
BYTES = GrammarCompiler(ByteTokenizer(), 300, {EOS})


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LoadedModel:
    return load_model(smollm2_path)


def allows(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)


def taken(grammar: Grammar, text: str) -> int:
    """How many leading bytes of a text its masks allow."""
    state = grammar.start()
    for count, byte in enumerate(text.encode()):
        if state.complete or not allows(state.mask(), byte):
            return count
        state.accept(byte)
    return len(text)


def test_a_schema_in_the_models_own_tokens(model: LoadedModel) -> None:
    compiler = GrammarCompiler(model.tokenizer, model.weights.config.vocab, model.stop_ids)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    grammar = compiler.compile(source_of(json_part(schema)), "schema")
    state, seen = grammar.start(), []
    for token in model.tokenizer.encode('{"name": "Zoë", "age": 31}', add_special=False):
        mask = state.mask()
        assert allows(mask, token)
        seen.append([stop for stop in model.stop_ids if allows(mask, stop)])
        state.accept(token)
    assert not any(seen), "an answer may not end before it is complete"
    assert state.complete
    assert compiler.compile(source_of(json_part(schema)), "schema") is grammar
    assert grammar.first_mask == grammar.start().mask()
    assert len(grammar.first_mask) * 8 >= model.weights.config.vocab


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, ['{"a": [1, {"b": null}]}'], ["[1]", "3"]),
        ({"enum": ["x", 3]}, ['"x"', "3"], ['"y"']),
        ({"type": "string", "pattern": "^[a-c]{2}$"}, ['"ab"'], ['"ad"', '"abc"']),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, ["null", "true"], ["1"]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, ["12"], ['"a"']),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            ["[1, 2]", "[7]"],
            ["[]", "[1, 2, 3]"],
        ),
    ],
)
def test_schemas(schema: Mapping[str, object], good: list[str], bad: list[str]) -> None:
    grammar = BYTES.compile(source_of(json_part(schema)), "schema")
    for text in good:
        assert taken(grammar, text) == len(text)
    for text in bad:
        assert taken(grammar, text) < len(text)


@pytest.mark.parametrize(
    "part", [regex_part("[a-c]+"), choice_part(["ab", "abc"]), lark_part('start: "a" /[bc]+/')]
)
def test_every_kind_of_grammar_fits_into_a_frame_and_beside_another(part: GrammarPart) -> None:
    framed = BYTES.compile(source_of(part, 'start: "<" @answer ">"'), "field")
    assert taken(framed, "<abc>") == 5 and taken(framed, "<abd>") == 3
    other = lark_part('start: "call " /[0-9]/')
    either = BYTES.compile(either_source({"content": part, "calls": other}), "field")
    assert taken(either, "abc") == 3 and taken(either, "call 7") == 6


@pytest.mark.parametrize("lark", ["start: start", r"start: /[^\s\S]/", "start: a\na: b\nb: a"])
def test_a_grammar_of_nothing_says_so(lark: str) -> None:
    with pytest.raises(InvalidRequestError, match="allows no text at all"):
        BYTES.compile(source_of(lark_part(lark)), "grammar")


def test_lark_and_regular_expressions() -> None:
    assert taken(BYTES.compile(source_of(regex_part("[0-9]+!")), "regex"), "2024!") == 5
    lark = 'start: greeting " " NAME\ngreeting: "hello" | "bye"\nNAME: /[A-Z][a-z]+/'
    assert taken(BYTES.compile(lark, "grammar"), "bye Ann") == 7
    assert taken(BYTES.compile(lark, "grammar"), "bye ann") == 4


def in_time(part: GrammarPart) -> str:
    """What came of compiling a grammar and of its first masks, in a thread that may be lost."""
    outcome: list[str] = []

    def work() -> None:
        try:
            state = BYTES.compile(source_of(part), "field").start()
            for byte in b"xaa":
                if allows(state.mask(), byte):
                    state.accept(byte)
            outcome.append("compiled")
        except InvalidRequestError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return outcome[0] if outcome else "still at it"


@pytest.mark.parametrize(
    "part",
    [
        lark_part("start: /a+/ /a+/"),  # the first swallows all that the second might match
        lark_part('start: ("x" | "y") /a+/ /a+/'),
        lark_part('%llguidance {"no_forcing": false}\nstart: /a+/ /a+/'),
        regex_part("a{1000000000}"),
        json_part({"type": "string", "pattern": "^a{500000000}$"}),
    ],
)
def test_only_one_way_to_go_on_and_no_end_to_it(part: GrammarPart) -> None:
    assert in_time(part) == "compiled"


def patterns(count: int) -> list[dict[str, object]]:
    return [{"type": "string", "pattern": rf"(x|y{i}\w)+"} for i in range(count)]


def chain(count: int) -> dict[str, object]:
    """Each refers to the next and has a pattern of its own."""
    named = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}", **p} for i, p in enumerate(patterns(count))}
    return {"$ref": "#/$defs/n0", "$defs": {**named, f"n{count}": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": patterns(60)},
        {"allOf": [{"properties": {"a": p}} for p in patterns(60)]},
        {"allOf": [{"anyOf": [p, {"type": "integer"}]} for p in patterns(60)]},
        {"properties": {"a": {"items": {"allOf": [{"allOf": patterns(6)}] * 4}}}},
        chain(60),
    ],
)
def test_patterns_without_end_are_refused_at_once(schema: Mapping[str, object]) -> None:
    for make in (json_part, lambda it: lark_part(f"start: %json {json.dumps(it)}")):
        with pytest.raises(GrammarError, match="combines more than 10 patterns"):
            make(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 999_983},
        {"type": "number", "multipleOf": 0.000999983},
        {"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]},
        {"type": "integer", "multipleOf": 10**5000 + 1},
    ],
)
def test_a_divisor_of_any_size_is_refused(schema: Mapping[str, object]) -> None:
    with pytest.raises(GrammarError, match="'multipleOf' comes to more than 10,000"):
        json_part(schema)


@pytest.mark.parametrize("divisor", [0.25, 60, 9973, 1_000_000, 1e-9])
def test_sensible_divisors(divisor: float) -> None:
    assert in_time(json_part({"type": "number", "multipleOf": divisor})) == "compiled"


def test_some_patterns_may_be_combined() -> None:
    schema = {"allOf": [{"type": "string", "pattern": f"^[a-c]{{{i},9}}$"} for i in range(8)]}
    grammar = BYTES.compile(source_of(json_part(schema)), "schema")
    assert taken(grammar, '"abcabca"') == 9 and taken(grammar, '"abc"') == 4
    each = {f"p{i}": pattern for i, pattern in enumerate(patterns(60))}
    json_part({"properties": each, "anyOf": [{"required": ["p1"]}]})
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "at": {"format": "date"}}}
    assert in_time(json_part(tree)) == "compiled"
    assert in_time(json_part({"allOf": patterns(10)})) != "still at it"


def test_ever_new_grammars_are_not_all_kept() -> None:
    compiler = GrammarCompiler(ByteTokenizer(), 300, {EOS})

    def compiled(number: int, length: int) -> Grammar:
        text = f"{number} " + "x" * length
        return compiler.compile(source_of(choice_part([text])), "choice")

    small = compiled(0, 10)
    for number in range(1, 40):
        compiled(number, 100_000)
        assert compiler.kept_chars < 3 * MAX_SOURCE_CHARS
    assert compiled(0, 10) is not small
    last = compiled(39, 100_000)
    assert compiled(39, 100_000) is last
    for number in range(100, 300):
        compiled(number, 10)
    assert compiler.kept_chars < 64 * 200
    assert compiled(39, 100_000) is not last


def test_white_space_in_json_has_an_end() -> None:
    grammar = BYTES.compile(source_of(json_part({})), "schema")
    assert taken(grammar, "{" + "\n" * 100) < 30


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "the keyword 'uniqueItems' is not supported"),
        ({"if": {}, "then": {}}, "the keywords 'if', 'then' are not supported"),
        (
            {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
            "the keyword 'oneOf' is supported only where no two of its schemas can fit at once",
        ),
        ({"$ref": "http://x.org/y"}, "the reference 'http://x.org/y' leads out of the schema"),
    ],
)
def test_what_a_schema_may_not_have_is_named(schema: Mapping[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BYTES.compile(source_of(json_part(schema), ""), "field")
    assert str(caught.value) == f"'field' can't be compiled: {reason}."


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("start: nothing", "nothing"),
        ("start: /(/", "unclosed group"),
        ("", "compiled"),
        ("x" * (MAX_SOURCE_CHARS + 1), "longer"),
        (json.dumps({"grammars": [{"json_schema": {"type": "objec"}}]}), "objec"),
        (json.dumps({"grammars": [{"json_schema": {"$ref": "http://x.org/y"}}]}), "x.org"),
        (json.dumps({"grammars": [{"json_schema": {"not": {}}}]}), "not"),
    ],
)
def test_what_cant_be_compiled_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        BYTES.compile(source, "field")
    assert caught.value.param == "field" and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("depth", [400, 100_000])
def test_a_schema_nested_without_end_is_refused(depth: int) -> None:
    schema: dict[str, object] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    with pytest.raises(InvalidRequestError):
        BYTES.compile(source_of(json_part(schema)), "schema")


def test_a_token_outside_the_grammar_is_an_error() -> None:
    state = BYTES.compile(source_of(regex_part("[0-9]+")), "regex").start()
    state.accept(ord("7"))
    with pytest.raises(GrammarError, match="grammar"):
        state.accept(ord("x"))
