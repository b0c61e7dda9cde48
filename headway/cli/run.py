"""`headway run`."""

import argparse
import json
import sys
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import Literal, TextIO

from headway.cli.loading import flag_options, load
from headway.errors import ConfigError
from headway.llm import LLM
from headway.runfile import Defaults, Summary, run_lines
from headway.sampling import SamplingParams


def run(settings: argparse.Namespace) -> int:
    """Answer a file of prompts; 1 if a line failed. Raises ConfigError (also for a full disk),
    ModelError."""
    try:
        summary = _answer(settings)
    except OSError as error:
        raise ConfigError(f"{settings.output}: {error.strerror or error}") from error
    print(
        f"headway: {summary.answered:,} answered, {summary.failed:,} failed, "
        f"{summary.generated_tokens:,} tokens",
        file=sys.stderr,
    )
    return 1 if summary.failed else 0


def _answer(settings: argparse.Namespace) -> Summary:
    options = flag_options(settings)
    schema = settings.json_schema
    params = SamplingParams(
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        structured_outputs=None if schema is None else {"json": _read_schema(schema)},
    )
    with ExitStack() as stack:
        source = _opened(stack, settings.prompts, "r", sys.stdin)
        total = _count_lines(source)
        _check_apart(settings.prompts, settings.output)
        loaded = load(settings.model, options)
        model = loaded.model
        llm = LLM.around(loaded.engine, model.tokenizer, model.chat_template, model.grammars())
        stack.enter_context(llm)
        # Last, since it empties the file: a mistyped model must not cost yesterday's answers.
        sink = _opened(stack, settings.output, "w", sys.stdout)
        return run_lines(llm, source, sink, Defaults(params, settings.service_tier), total)


def _opened(stack: ExitStack, name: str, mode: Literal["r", "w"], standard: TextIO) -> TextIO:
    """A text file, or the standard stream for `-`, in UTF-8 as JSON is. Written line by line: a run
    that is killed keeps the answers it has given. Raises ConfigError."""
    if name == "-":
        if isinstance(standard, TextIOWrapper):
            standard.reconfigure(encoding="utf-8", line_buffering=True)
        return standard
    try:
        return stack.enter_context(Path(name).open(mode, buffering=1, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error


def _read_schema(path: str) -> dict[str, object]:
    """Raises ConfigError."""
    try:
        schema = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"--json-schema {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--json-schema {path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"--json-schema {path} is not an object")
    return schema


def _check_apart(prompts: str, output: str) -> None:
    """Raises ConfigError where opening the output would empty the prompts' file."""
    source, sink = Path(prompts), Path(output)
    if "-" not in (prompts, output) and sink.is_file() and sink.samefile(source):
        raise ConfigError(f"{output}: the answers would overwrite the prompts")


def _count_lines(source: TextIO) -> int | None:
    """Lines that aren't blank; None where a stream can be read once only. Raises ConfigError."""
    if not source.seekable():
        return None
    try:
        total = sum(1 for line in source if line.strip())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source.name} is not UTF-8: {error}") from error
    source.seek(0)
    return total
