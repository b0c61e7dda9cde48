"""Starts vLLM's OpenAI server on a command line of its own grammar."""

import asyncio
from collections.abc import Sequence

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.utils.argparse_utils import FlexibleArgumentParser

from headway.errors import ConfigError
from headway_vllm.guards import refuse, unsupported_config, unsupported_server


def launch(arguments: Sequence[str]) -> None:
    """Serve until stopped. Raises ConfigError for what is refused, before anything is loaded."""
    cli_env_setup()
    parser = make_arg_parser(FlexibleArgumentParser(prog="headway vllm serve"))
    args = parser.parse_args(list(arguments))
    # As vLLM's own command does: the model is given by position.
    args.model = args.model_tag
    validate_parsed_serve_args(args)
    refuse(unsupported_server(args))
    try:
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    except (ValueError, OSError) as error:
        raise ConfigError(f"vLLM: {str(error).strip().splitlines()[-1]}") from error
    refuse(unsupported_config(config))
    asyncio.run(run_server(args))
