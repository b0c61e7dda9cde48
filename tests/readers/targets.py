"""The readers, each with valid seeds and the only errors that it may raise."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from headway.batches.lines import read_lines, read_results
from headway.errors import InvalidRequestError, ModelError
from headway.models.chat import ChatTemplate
from headway.models.loader import LoadedModel, load_model
from headway.models.quant import Encoding
from tests.models.template_files import FAMILIES, family
from tests.models.writers import TEMPLATE, TINY, TINY_WIDE, tiny_folder, tiny_gguf
from tests.readers.mutate import mutated

Case = Callable[[random.Random], str]
"""Makes one broken input from the generator, reads it, and returns how that went. Any exception
that it lets out is a fault of the reader."""

_TALK: list[Mapping[str, object]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "hello ü"},
    {"role": "assistant", "content": None, "tool_calls": []},
]
_WORDS = [
    *(b"null", b"[]", b"{}", b'""', b"-1", b"1e999", b"NaN", b'"\\ud800"', b"true", b"\xff\xfe"),
    *(b"[" * 2000, b'{"a":' * 700, b"\0" * 16, b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xf0\x9f"),
]
_TEMPLATE_WORDS = [
    *(b"{{", b"}}", b"{%", b"%}", b"{% endfor %}", b"{% for a in range(999999999) %}", b"{#"),
    *(b"{{ messages * 99999999 }}", b"{{ ''.__class__ }}", b"{% set x = x ~ x %}", b"|tojson"),
    *(b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", b"|join", b"[::-1]", b"**99", b"loop"),
    *(b"{{ namespace(a=1) }}", b"(" * 300, b"|replace('','x')", b"{{ raise_exception(1) }}"),
]
_LINE = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"model": "m", "prompt": "hello", "max_tokens": 5},
}
_LIMIT_BYTES = 4096


def gguf(folder: Path) -> Case:
    """Whole models in GGUF, and a prompt through what loads."""
    names = (Encoding.F32, Encoding.F16, Encoding.Q4_0, Encoding.Q4_1, Encoding.Q8_0)
    paths = [tiny_gguf(folder / f"{e.name}.gguf", matrices=e) for e in names]
    paths += [
        tiny_gguf(folder / f"{e.name}.gguf", TINY_WIDE, e) for e in (Encoding.Q4_K, Encoding.Q6_K)
    ]
    seeds = [path.read_bytes() for path in paths]
    path = folder / "broken.gguf"

    def case(rng: random.Random) -> str:
        path.write_bytes(mutated(seeds, _WORDS, rng))
        return _load(path, rng)

    return case


def safetensors(folder: Path) -> Case:
    """Whole Hugging Face folders, one or two of their files broken."""
    family_of = {"llama": TINY, "qwen3": replace(TINY, architecture="qwen3")}
    good = [
        {
            path.name: path.read_bytes()
            for path in tiny_folder(folder / name, config, dtype=dtype).iterdir()
        }
        for (name, config), dtype in zip(
            family_of.items(), (Encoding.F32, Encoding.BF16), strict=True
        )
    ]
    names = sorted(good[0])
    place = folder / "broken"
    place.mkdir()

    def case(rng: random.Random) -> str:
        files = dict(rng.choice(good))
        for name in rng.choices(names, k=rng.choice((1, 1, 2))):
            files[name] = mutated([one[name] for one in good], _WORDS, rng)
        for name, data in files.items():
            (place / name).write_bytes(data)
        return _load(place, rng, rng.choice(("int8", "4bit", "none")))

    return case


def _load(path: Path, rng: random.Random, quantize: str = "int8") -> str:
    try:
        model = load_model(path, quantize)
    except ModelError as error:
        if "\n" in str(error):
            raise ValueError(f"an error of several lines: {error}") from error
        return "refused"
    _use(model, rng)
    return "loaded"


def _use(model: LoadedModel, rng: random.Random) -> None:
    """What a server does with a model first."""
    ids = model.tokenizer.encode("hello world <|im_end|> ü\n", rng.random() < 0.5)
    model.tokenizer.decode(ids)
    if model.chat_template is not None:
        _render(model.chat_template)


def templates(folder: Path) -> Case:
    """Chat templates, compiled and rendered."""
    seeds = [family(name).source.encode() for name in FAMILIES] + [TEMPLATE.encode()]

    def case(rng: random.Random) -> str:
        source = mutated(seeds, _TEMPLATE_WORDS, rng).decode(errors="replace")
        try:
            template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
        except ModelError:
            return "refused"
        return _render(template)

    return case


def _render(template: ChatTemplate) -> str:
    try:
        template.render(_TALK, enable_thinking=False)
    except InvalidRequestError:
        return "failed"
    return "rendered"


def jsonl(folder: Path) -> Case:
    """Input files of Batch jobs, and the result files that a start reads."""
    lines = [json.dumps(_LINE | {"custom_id": f"line-{i}"}) for i in range(6)]
    results = [
        json.dumps({"id": f"batch_req_x_{i}", "custom_id": "a", "response": {"body": {}}})
        for i in range(6)
    ]
    seeds = ["\n".join(lines).encode(), ("\r\n".join(lines) + "\r\n").encode()]
    result_seeds = [("\n".join(results) + "\n").encode()]
    path = folder / "broken.jsonl"

    def case(rng: random.Random) -> str:
        if rng.random() < 0.25:
            path.write_bytes(mutated(result_seeds, _WORDS, rng))
            ends = [result.end for result in read_results(path)]
            if ends != sorted(ends) or (ends and ends[-1] > path.stat().st_size):
                raise ValueError(f"results end at {ends}")
            return "results" if ends else "no results"
        data = mutated(seeds, _WORDS, rng)
        path.write_bytes(data)
        read = list(read_lines(path, "/v1/completions", _LIMIT_BYTES))
        for line in read:
            if (line.problem is None) != isinstance(json.loads(line.body or "null"), dict):
                raise ValueError(f"neither request nor problem: {line}")
        _check_numbers([line.number for line in read], data)
        return "good" if all(line.problem is None for line in read) else "problems"

    return case


def _check_numbers(numbers: list[int], data: bytes) -> None:
    """Every line with something in it has its result, in order."""
    raw = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    due = [
        number
        for number, line in enumerate(raw, 1)
        if line.strip() or len(line.rstrip(b"\r\n")) > _LIMIT_BYTES
    ]
    if numbers != due:
        raise ValueError(f"lines {numbers} were read, {due} are there")


READERS: Mapping[str, Callable[[Path], Case]] = {
    "gguf": gguf,
    "safetensors": safetensors,
    "template": templates,
    "jsonl": jsonl,
}
