"""`headway vllm`: what vLLM's own command line becomes, and what is refused."""

import argparse
import json
from collections.abc import Sequence

import pytest

from headway.cli.arguments import parse
from headway.core.config import Reserve
from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway_vllm.cli import ServeOptions, vllm_arguments
from headway_vllm.contract import digest
from headway_vllm.settings import Settings
from headway_vllm.versions import SUPPORTED


def options(rest: Sequence[str] = (), names: Sequence[str] = ()) -> ServeOptions:
    return ServeOptions("org/model", tuple(names), ServiceClass.BATCH, Settings(), tuple(rest))


def test_ours_and_vllms_options_stand_beside_each_other() -> None:
    line = "vllm serve org/model --max-num-seqs 8 --host-kv-gib 2 --host 10.0.0.1 --enforce-eager"
    settings = parse(line.split())
    assert settings.host_kv_gib == 2.0
    assert settings.unknown == ["--max-num-seqs", "8", "--host", "10.0.0.1", "--enforce-eager"]


def test_only_this_command_hands_on_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["vllm", "check", "--max-num-seqs", "8"])
    assert "--max-num-seqs" in capsys.readouterr().err


def made_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The part of vLLM's grammar that is ours to fill."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--served-model-name", nargs="+")
    for name in ("--scheduling-policy", "--scheduler-cls", "--kv-transfer-config", "--host"):
        parser.add_argument(name)
    parser.add_argument("--middleware", action="append")
    parser.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction)
    parser.add_argument("--port")
    return parser.parse_args(list(arguments))


def test_the_server_gets_scheduler_connector_front_and_aliases() -> None:
    made = made_of(vllm_arguments(options(["--port", "9"], names=["small"])))
    assert (made.model, made.port, made.host) == ("org/model", "9", "127.0.0.1")
    assert made.served_model_name == ["small", "small:realtime", "small:standard", "small:batch"]
    assert made.scheduling_policy == "priority"
    assert made.scheduler_cls == "headway_vllm.scheduler.HeadwayScheduler"
    assert made.async_scheduling is False
    assert made.middleware == ["headway_vllm.front.BatchByDefault"]
    transfer = json.loads(made.kv_transfer_config)
    assert transfer["kv_connector"] == "HeadwaySwap"
    assert Settings.of(transfer["kv_connector_extra_config"]) == Settings()


def test_a_host_and_async_scheduling_that_are_given_stand() -> None:
    made = made_of(vllm_arguments(options(["--host=::1", "--async-scheduling"])))
    assert made.host == "::1"
    assert made.async_scheduling is True
    assert made.scheduler_cls == "headway_vllm.scheduler.HeadwayAsyncScheduler"


@pytest.mark.parametrize(
    "word", ["--scheduler-cls=x", "--kv_transfer_config", "--scheduling-policy"]
)
def test_what_we_set_cannot_be_given(word: str) -> None:
    with pytest.raises(ConfigError, match="set by headway vllm serve"):
        vllm_arguments(options([word]))


def test_settings_travel_as_plain_values() -> None:
    settings = Settings(1.5, Reserve(0.1, 2, 5.0, 4), 0.5, frozenset({"async-scheduling"}))
    assert Settings.of(json.loads(json.dumps(settings.to_extra()))) == settings
    assert Settings.of({}) == Settings()


@pytest.mark.parametrize(
    "extra",
    [{"host_gib": -1}, {"pass_s": -1}, {"speed": 9}, {"allowed": ["lora"]}, {"reserve": {"x": 1}}],
)
def test_settings_that_are_wrong_are_named(extra: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.of(extra)
    assert "\n" not in str(caught.value)


def test_a_fingerprint_sees_code_and_nothing_else() -> None:
    source = 'def f(a):\n    """One."""\n    return a  # why\n'
    same = '  def f(a):\n      """Other\n      words."""\n      return (\n  a)\n'
    assert digest(source) == digest(same.replace("(\n  a)", "a"))
    assert digest(source) != digest(source.replace("return a", "return -a"))


def test_each_supported_version_has_its_fingerprints() -> None:
    from headway_vllm.contract import LEANED_ON

    assert SUPPORTED
    for version in SUPPORTED:
        assert version.tested.startswith(version.minor + ".")
        assert len(version.fingerprints) == len(LEANED_ON)
        assert "missing" not in version.fingerprints
