"""Answers that must look like something, without a server."""

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headway.cli import main
from headway.errors import InvalidRequestError
from headway.llm import LLM
from headway.models.grammars import GrammarCompiler
from headway.models.quant import Encoding
from headway.runfile import Defaults, run_lines
from headway.sampling import SamplingParams
from headway.testing import make_capacity
from headway.testing.text import ByteTokenizer
from tests.batches.rig import make_engine
from tests.engine.helpers import EOS, make_rig
from tests.models.writers import TINY_WIDE, tiny_gguf

VOCAB = 300
CHAT: list[Mapping[str, str]] = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"enum": ["a"]}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


class Thinker:
    """A template of a model that thinks, and has begun to."""

    source = "{{ messages }}<think></think>"

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        return f"{messages[-1]['content']}<think>\n"


WORDS = ByteTokenizer({token: b"</think>" for token in range(256, VOCAB) if token != EOS})
"""Thoughts have an end."""


@pytest.fixture
def llm() -> Iterator[LLM]:
    # Random tokens: what is right is the grammar's doing.
    rig = make_engine(make_capacity(vocab_size=VOCAB), words=WORDS)
    with LLM.around(rig.engine, WORDS, Thinker(), GrammarCompiler(WORDS, VOCAB, {EOS})) as llm:
        yield llm


@pytest.mark.parametrize(
    "form",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_json_fits_its_schema(llm: LLM, form: Any) -> None:
    params = SamplingParams(max_tokens=200, seed=1, n=2, **form)
    prompts: list[str | list[int]] = ["one", [5, 6]]
    for result in llm.generate(prompts, params):
        for choice in result.choices:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.text), SCHEMA)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[ab]{3,5}"}, "[ab]{3,5}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "x" NUMBER\nNUMBER: /[0-9]{2}/'}, "x[0-9]{2}"),
    ],
)
def test_regular_expressions_choices_and_grammars(llm: LLM, form: Any, pattern: str) -> None:
    params = SamplingParams(structured_outputs=form)
    assert re.fullmatch(pattern, llm.generate("one", params)[0].text)


def test_a_model_that_thinks_does_so_before(llm: LLM) -> None:
    params = SamplingParams(max_tokens=200, seed=3, structured_outputs={"regex": "[ab]{3}"})
    (thought,) = llm.chat(CHAT, params).choices
    assert re.fullmatch("[ab]{3}", thought.text)
    assert thought.reasoning and "</think>" not in thought.reasoning
    # A prompt that isn't a conversation leaves no room for it.
    (plain,) = llm.generate("hi<think>\n", params)[0].choices
    assert re.fullmatch("[ab]{3}", plain.text) and not plain.reasoning
    # Neither does it get lost where nothing is asked of the answer.
    (free,) = llm.chat(CHAT, SamplingParams(max_tokens=200, seed=3)).choices
    assert free.reasoning and free.text


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"structured_outputs": {"regex": "("}}, "regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "needs one of"),
        ({"structured_outputs": {"pattern": "a"}}, "'structured_outputs.pattern'"),
        ({"structured_outputs": {"regex": {1, 2}}}, "not JSON"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "exclude each other",
        ),
    ],
)
def test_what_is_wrong_is_named(llm: LLM, form: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(reason)):
        llm.generate("one", SamplingParams(**form))


def test_without_a_compiler_it_is_refused() -> None:
    params = SamplingParams(structured_outputs={"regex": "a"})
    with (
        LLM.around(make_rig().engine, ByteTokenizer()) as llm,
        pytest.raises(InvalidRequestError, match="not supported with this model"),
    ):
        llm.generate("one", params)


def test_a_line_has_a_form_of_its_own(llm: LLM) -> None:
    lines = [
        '"one"',
        '{"prompt": "one", "structured_outputs": {"choice": ["yes", "no"]}}',
        json.dumps({"prompt": "one", "response_format": {"type": "json_object"}}),
        '{"prompt": "one", "response_format": {"type": "text"}}',
        '{"prompt": "one", "structured_outputs": {"regex": "["}}',
        json.dumps({"messages": CHAT, "structured_outputs": {"regex": "[ab]{3}"}}),
    ]
    params = SamplingParams(max_tokens=200, seed=5, structured_outputs={"json": SCHEMA})
    sink = io.StringIO()
    run_lines(llm, lines, sink, Defaults(params), progress=False)
    first, choice, free, text, wrong, chat = map(json.loads, sink.getvalue().splitlines())
    jsonschema.validate(json.loads(first["text"]), SCHEMA)
    assert choice["text"] in ("yes", "no")
    assert free["text"].startswith("{") and text["finish_reason"]
    assert "structured_outputs.regex" in wrong["error"]
    assert re.fullmatch("[ab]{3}", chat["text"]) and chat["reasoning"]


def test_a_schema_for_a_whole_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_gguf(tmp_path / "tiny.gguf", TINY_WIDE, Encoding.Q8_0))
    prompts, answers, schema = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "s.json"))
    prompts.write_text('"hello"\n{"prompt": "hello", "temperature": 1, "seed": 4}\n')
    one_of = {"enum": ["yes", 12, [None]]}
    schema.write_text(json.dumps(one_of))
    line = ["run", str(prompts), "-o", str(answers), "--model", model, "--kv-blocks", "64"]
    assert main([*line, "--json-schema", str(schema)]) == 0
    for answer in map(json.loads, answers.read_text().splitlines()):
        assert json.loads(answer["text"]) in one_of["enum"]
    capsys.readouterr()
    for content in ("[", "[]", None):
        schema.write_text(content) if content else schema.unlink()
        assert main([*line, "--json-schema", str(schema)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "--json-schema" in err
