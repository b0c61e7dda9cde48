"""Calls of functions in scripted token streams, whole and in pieces of every size."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.models.answers import Part, PartKind, PlainReader
from headway.models.reasoning import ReasoningMeter, ReasoningReader, Thinking, thinking_of
from headway.models.tool_calls import (
    HERMES,
    LLAMA3,
    MISTRAL,
    ToolFormat,
    ToolReader,
    format_of,
)

NAMES = ("get_weather", "get_time")
OSLO = '{"city": "Oslo", "deep": {"a": [1, "}\\"{"]}}'


def read(
    form: ToolFormat, pieces: Sequence[str], many: bool = True
) -> tuple[str, list[tuple[str, str]]]:
    """The content and the calls of an answer that comes in these pieces."""
    reader = ToolReader(form, NAMES, many)
    parts: list[Part] = []
    for piece in pieces:
        parts += reader.push(piece)
    parts += reader.finish()
    content, calls = "", [["", ""] for p in parts if p.kind is PartKind.CALL]
    for part in parts:
        if part.kind is PartKind.CONTENT:
            content += part.text
        else:
            calls[part.call][part.kind is PartKind.ARGUMENTS] += part.text
    return content, [(name, arguments) for name, arguments in calls]


def in_all_cuts(form: ToolFormat, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The same, which no cut may change."""
    whole = read(form, [text])
    for size in (1, 2, 3, 7, 11):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(form, pieces) == whole, size
    return whole


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CASES = [
    (HERMES, hermes("get_weather", OSLO), "", [("get_weather", OSLO)]),
    (
        HERMES,
        f"Let me see.\n{hermes('get_weather', OSLO)}\n{hermes('get_time', '{}')}\n",
        "Let me see.",
        [("get_weather", OSLO), ("get_time", "{}")],
    ),
    (HERMES, '<tool_call>{"name":"get_time"}</tool_call>', "", [("get_time", "{}")]),
    (
        HERMES,
        '<tool_call>{"arguments": {"z": 1}, "id": 7, "name": "get_time"}</tool_call> Done.',
        " Done.",
        [("get_time", '{"z": 1}')],
    ),
    (LLAMA3, f'{{"name": "get_weather", "parameters": {OSLO}}}', "", [("get_weather", OSLO)]),
    (
        LLAMA3,
        '<|python_tag|>{"name": "get_time", "parameters": {}}; '
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}',
        "",
        [("get_time", "{}"), ("get_weather", '{"city": "Rome"}')],
    ),
    (
        MISTRAL,
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {OSLO}, "id": "abc"}}, '
        '{"name": "get_time", "arguments": {}}]',
        "",
        [("get_weather", OSLO), ("get_time", "{}")],
    ),
    (
        MISTRAL,
        f"Hm. [TOOL_CALLS]get_weather[ARGS]{OSLO}[TOOL_CALLS]get_time{{}}",
        "Hm.",
        [("get_weather", OSLO), ("get_time", "{}")],
    ),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
def test_calls_and_content_however_the_text_is_cut(
    form: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert in_all_cuts(form, text) == (content, calls)
    for _, arguments in calls:
        json.loads(arguments)


PLAIN = [
    (HERMES, " A plain answer with <b>tags</b>, {braces} and space at the end. \n"),
    (HERMES, hermes("launch_missiles", "{}")),
    (HERMES, "<tool_call>\nnot JSON at all\n</tool_call>"),
    (HERMES, '<tool_call>{"name": "get_time", "arguments": "none"}</tool_call>'),
    (HERMES, "It ends in <tool_ca"),
    (HERMES, '<tool_call>{"name": "get_ti'),
    (LLAMA3, '{"answer": 42, "name": "get_time"'),
    (LLAMA3, ' \n{"temperature": 3}'),
    (LLAMA3, "Two words."),
    (LLAMA3, "<|python"),
    (MISTRAL, "[TOOL_CALLS]"),
    (MISTRAL, "[TOOL_CALLS]launch{}"),
    (MISTRAL, "[TOOL_CALLS]" + "x" * 200),
    (MISTRAL, "[1, 2] is a list"),
]


@pytest.mark.parametrize(("form", "text"), PLAIN)
def test_what_is_no_call_of_an_offered_function_stays_content(form: ToolFormat, text: str) -> None:
    assert in_all_cuts(form, text) == (text, [])


def test_a_call_that_is_cut_gives_what_there_was() -> None:
    cut = hermes("get_weather", OSLO)[:60]
    content, calls = in_all_cuts(HERMES, cut)
    assert content == "" and calls == [("get_weather", OSLO[: len(calls[0][1])])]
    assert len(calls[0][1]) > 5


def test_arguments_stream_as_they_come() -> None:
    reader = ToolReader(HERMES, NAMES)
    head = reader.push('<tool_call>{"name": "get_weather", "arguments": {"ci')
    assert [(part.kind, part.text) for part in head] == [
        (PartKind.CALL, "get_weather"),
        (PartKind.ARGUMENTS, '{"ci'),
    ]
    assert [part.text for part in reader.push('ty": "Os')] == ['ty": "Os']


def test_one_call_alone_where_several_are_not_wanted() -> None:
    text = hermes("get_weather", "{}") + hermes("get_time", "{}")
    assert read(HERMES, [text], many=False) == ("", [("get_weather", "{}")])
    assert read(HERMES, list(text), many=False) == ("", [("get_weather", "{}")])


SOUP = [
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    '"name"',
    ":",
    '"get_time"',
    ",",
    "[",
    "]",
    "x",
    '"arguments"',
    "\\",
    ";",
    "<think>",
]


@given(st.lists(st.sampled_from([*SOUP, " ", "\n"])))
def test_any_soup_is_read_alike_in_pieces(pieces: list[str]) -> None:
    for form in (HERMES, LLAMA3, MISTRAL):
        text = "".join(pieces).replace("<tool_call>", form.opens)
        assert read(form, [text]) == read(form, list(text))


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tools></tools> in <tool_call> tags", HERMES),
        ('{"name": function name, "parameters": {}}', LLAMA3),
        ("[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS]", MISTRAL),
        ("{{ messages }}", HERMES),
    ],
)
def test_a_template_says_its_format(template: str, form: ToolFormat) -> None:
    assert format_of(template) is form


THINKS = "{% if x %}<think>{% endif %}</think>"


@pytest.mark.parametrize(
    ("template", "prompt", "thinking"),
    [
        ("{{ messages }}", "assistant:<think>\n", Thinking.NEVER),
        (THINKS, "<|im_start|>assistant\n", Thinking.MAYBE),
        (THINKS, "<|im_start|>assistant\n<think>\n", Thinking.BEGUN),
        (THINKS, "<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking.NEVER),
    ],
)
def test_how_an_answer_begins(template: str, prompt: str, thinking: Thinking) -> None:
    assert thinking_of(template, prompt) is thinking


REASONED = [
    (Thinking.MAYBE, "<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", "Hm.\n\nSo.", "Yes.\n"),
    (Thinking.MAYBE, " \n<think></think>Yes", "", "Yes"),
    (Thinking.MAYBE, "Yes <think>no</think>", "", "Yes <think>no</think>"),
    (Thinking.MAYBE, "<thi", "", "<thi"),
    (Thinking.BEGUN, "Hm.\n</think>\nYes", "Hm.", "Yes"),
    (Thinking.BEGUN, "Hm, and cut </thi", "Hm, and cut </thi", ""),
]


@pytest.mark.parametrize(("thinking", "text", "reasoning", "content"), REASONED)
def test_reasoning_however_the_text_is_cut(
    thinking: Thinking, text: str, reasoning: str, content: str
) -> None:
    for size in (1, 2, 3, 5, 100):
        reader = ReasoningReader(thinking, PlainReader())
        parts: list[Part] = []
        for at in range(0, len(text), size):
            parts += reader.push(text[at : at + size])
        parts += reader.finish()
        read = {kind: "".join(p.text for p in parts if p.kind is kind) for kind in PartKind}
        assert (read[PartKind.REASONING], read[PartKind.CONTENT]) == (reasoning, content), size


def test_calls_come_after_reasoning() -> None:
    reader = ReasoningReader(Thinking.MAYBE, ToolReader(HERMES, NAMES))
    text = f"<think>\nThe weather: <tool_call>?\n</think>\n\n{hermes('get_time', '{}')}"
    parts = [*reader.push(text), *reader.finish()]
    assert [part.kind for part in parts] == [
        PartKind.REASONING,
        PartKind.CALL,
        PartKind.ARGUMENTS,
    ]


@pytest.mark.parametrize(
    ("thinking", "tokens", "count"),
    [
        (Thinking.MAYBE, ["<think>", "\n", "Hm", "</think>", "\n", "Yes"], 4),
        (Thinking.MAYBE, [" ", "<th", "ink>", "a", "</", "think", ">b", "c"], 7),
        (Thinking.MAYBE, ["Yes", "<think>", "</think>"], 0),
        (Thinking.BEGUN, ["Hm", "</think>", "Yes"], 2),
        (Thinking.BEGUN, ["Hm", "Hm"], 2),
        (Thinking.NEVER, ["<think>", "</think>"], 0),
    ],
)
def test_tokens_of_reasoning(thinking: Thinking, tokens: list[str], count: int) -> None:
    meter = ReasoningMeter(thinking)
    for token in tokens:
        meter.push(token.encode())
    assert meter.tokens == count


def test_a_reader_knows_whether_its_last_call_is_complete() -> None:
    whole = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    cut = '<tool_call>{"name": "f", "arguments": {"a": '
    for many, text, mid_call in (
        (True, whole, False),
        (True, cut, True),
        (True, whole + cut, True),
        (False, whole + cut, False),
        (True, "none", False),
    ):
        reader = ToolReader(HERMES, ["f"], many)
        reader.push(text)
        reader.finish()
        assert reader.mid_call is mid_call
