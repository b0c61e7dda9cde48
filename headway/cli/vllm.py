"""`headway vllm`: the policy inside vLLM, from the distribution headway-vllm."""

import argparse
from importlib import import_module
from importlib.util import find_spec

from headway.core.config import Reserve
from headway.core.types import ServiceClass
from headway.errors import ConfigError


def run(settings: argparse.Namespace) -> int:
    """Serve or check; the exit status. Raises ConfigError."""
    if find_spec("headway_vllm") is None:
        raise ConfigError(
            "headway vllm needs the distribution headway-vllm (pip install integrations/vllm)"
        )
    # By name: the distribution depends on this one, not the other way round.
    cli = import_module("headway_vllm.cli")
    if settings.verb == "check":
        status: int = cli.check(settings.fingerprints)
        return status
    reserve = Reserve(
        share=settings.reserve_share,
        guard_s=settings.guard_time,
        preemptions=settings.preemptions,
    )
    options = cli.ServeOptions(
        model=settings.model,
        names=cli.names_of(settings.served_model_name),
        default_class=ServiceClass[settings.default_class.upper()],
        settings=cli.Settings(
            host_gib=settings.host_kv_gib,
            reserve=reserve,
            allowed=frozenset(settings.allow_untested),
        ),
        rest=tuple(settings.unknown),
    )
    served: int = cli.serve(options)
    return served
