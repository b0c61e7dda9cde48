"""What `make` runs, and in which order."""

import os
import subprocess

import pytest

from tests.packaging.project import ROOT


def dry_run(*arguments: str) -> str:
    """The commands that make would run, as if nothing were installed yet."""
    # An outer make (these tests run under `make test`) must not pass its flags on.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    run = subprocess.run(
        ["make", "-n", "VENV=no-such-venv", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout


@pytest.mark.parametrize("target", ["serve", "test", "check", "bench"])
def test_preflight_comes_first(target: str) -> None:
    assert dry_run(target).startswith("sh scripts/preflight")


@pytest.mark.parametrize("target", ["serve", "test", "check", "bench"])
def test_the_native_module_is_built_before_use(target: str) -> None:
    commands = dry_run(target)
    assert "scripts/venv make no-such-venv" in commands
    assert "scripts/venv install no-such-venv --no-build-isolation --editable ." in commands


def test_the_checks_run_before_the_tests() -> None:
    commands = dry_run("test")
    order = ["ruff check .", "ruff format --check .", "bin/mypy", "bin/lint-imports", "-m pytest"]
    places = [commands.index(command) for command in order]
    assert places == sorted(places)


def test_sanitizers_run_with_all_the_tests_and_not_with_some() -> None:
    assert "scripts/sanitize no-such-venv address,undefined tests/native" in dry_run("test")
    assert "scripts/sanitize" not in dry_run("test", "TESTS=tests/core")


def test_all_tests_are_spread_over_the_cores_and_some_are_not() -> None:
    assert "-m pytest -n logical" in dry_run("test")
    assert "-m pytest tests/core" in dry_run("test", "TESTS=tests/core")


def test_each_version_of_vllm_has_an_environment_of_its_own() -> None:
    assert "sh scripts/vllm-env .venv-vllm \n" in dry_run("-B", "test-vllm")
    commands = dry_run("-B", "test-vllm", "VLLM_VERSION=0.31.0")
    assert "sh scripts/vllm-env .venv-vllm-0.31.0 0.31.0\n" in commands
    assert ".venv-vllm-0.31.0/bin/python -m pytest" in commands


def test_serve_needs_no_developers_tools() -> None:
    assert "requirements dev" not in dry_run("serve")
    assert "requirements dev" in dry_run("check")


def test_serve_passes_model_and_options_on() -> None:
    commands = dry_run("serve", "MODEL=tiny.gguf", "ARGS=--port 9000")
    assert "bin/headway serve tiny.gguf --port 9000" in commands


def test_ci_is_make_test_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]


def test_environments_of_peers_are_made_but_those_that_are_given() -> None:
    commands = dry_run(
        "bench-peers", "VLLM_VENV=no-such-vllm", "LLAMA_CPP=mine/python", "OPENVINO="
    )
    assert "scripts/vllm-env no-such-vllm" in commands
    assert '--vllm "no-such-vllm/bin/python"' in commands
    assert '--llama-cpp "mine/python"' in commands
    assert "xllamacpp" not in commands
    assert "openvino" not in commands
    commands = dry_run(
        "bench-peers", "LLAMA_CPP_VENV=no-such-l", "OPENVINO_VENV=no-such-o", "VLLM=x", "ROUNDS=1"
    )
    assert "scripts/venv install no-such-l xllamacpp==" in commands
    assert "scripts/venv install no-such-o openvino-genai==" in commands
    assert "vllm-env" not in commands
    assert "--rounds 1 --seconds 60" in commands


def test_bench_is_micro_benchmarks_unless_one_of_headways_own_is_named() -> None:
    assert "bench/micro.py --save" in dry_run("bench", "ARGS=--save")
    commands = dry_run("bench", "ARGS=overtake --tries 100")
    assert "bin/headway bench overtake --tries 100" in commands
    assert "bench/micro.py" not in commands
