"""The `headway` command. Each subcommand imports what it needs when it runs, so that `--help` and
`--version` are quick and a server doesn't load what only other commands use."""

import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from headway.cli.interrupts import kept_interrupts
from headway.errors import HeadwayError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (`sys.argv` by default); the exit status: 0, 2 for a wrong setting, file
    or input, 130 for ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        # Where a terminal's or pipe's encoding lacks a letter, `…` for one, it is written escaped.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with kept_interrupts():
            # Importing takes most of a command's start, so ctrl-C may come then too.
            grammar = import_module("headway.cli.arguments")
            settings = grammar.parse(sys.argv[1:] if arguments is None else arguments)
            command = import_module(f"headway.cli.{settings.command}")
            status: int = command.run(settings)
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status
