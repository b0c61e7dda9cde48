"""`headway run`."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, TextIO

from headway.cli.loading import engine_options, load
from headway.errors import ConfigError
from headway.llm import LLM, SamplingParams
from headway.runfile import Defaults, run_lines


def run(settings: argparse.Namespace) -> int:
    """Answer a file of prompts; 1 if a line failed. Raises ConfigError, ModelError."""
    options = engine_options(settings)
    params = SamplingParams(
        max_tokens=settings.max_tokens, temperature=settings.temperature, seed=settings.seed
    )
    with ExitStack() as stack:
        source = _opened(stack, settings.prompts, "r", sys.stdin)
        total = _count_lines(source)
        sink = _opened(stack, settings.output, "w", sys.stdout)
        loaded = load(settings.model, options)
        llm = LLM.around(loaded.engine, loaded.model.tokenizer, loaded.model.chat_template)
        stack.enter_context(llm)
        summary = run_lines(llm, source, sink, Defaults(params, settings.service_tier), total)
    print(
        f"headway: {summary.answered:,} answered, {summary.failed:,} failed, "
        f"{summary.generated_tokens:,} tokens",
        file=sys.stderr,
    )
    return 1 if summary.failed else 0


def _opened(stack: ExitStack, name: str, mode: Literal["r", "w"], standard: TextIO) -> TextIO:
    """A text file, or the standard stream for `-`. Raises ConfigError."""
    if name == "-":
        return standard
    try:
        return stack.enter_context(Path(name).open(mode, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from error


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
