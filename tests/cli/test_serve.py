"""`headway serve` as a process of its own, on a tiny random model."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from headway.models.quant import Encoding
from headway.server.usage import UsageBook
from tests.models.writers import TINY_WIDE, tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", TINY_WIDE, Encoding.Q8_0)


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


@contextmanager
def process(model: Path, *flags: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and what it has printed so far; killed at the end if need be."""
    command = [sys.executable, "-m", "headway", "serve", str(model), "--port", "0", *flags]
    with subprocess.Popen(
        command,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        killer = threading.Timer(60, server.kill)
        killer.start()
        try:
            assert server.stdout is not None
            printed = ""
            while "}]}'" not in printed:
                line = server.stdout.readline()
                assert line, server.stderr and server.stderr.read()
                printed += line
            yield server, printed
        finally:
            killer.cancel()
            server.kill()


def url_in(printed: str) -> str:
    found = re.search(r"Ready on (http://\S+) after", printed)
    assert found is not None
    return found[1]


def test_it_serves_says_its_sizes_and_stops(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text('kv-blocks = 64\nserved-model-name = "toy"\nchat-template = "own.jinja"\n')
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    flags = ("--config", str(file), "--chat-template", str(template), "--max-model-len", "128")
    with process(model, *flags, HEADWAY_MAX_SEQS="8") as (server, printed):
        url = url_in(printed)
        assert "KV: 64 blocks = 1,024 tokens = 8 sequences of 128" in printed
        assert f"curl {url}/v1/chat/completions" in printed
        assert '"model": "toy"' in printed
        assert "application/json' \\\n    -d" in printed
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(
            model="toy:realtime", messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
        assert answer.usage is not None and answer.usage.completion_tokens <= 4
        as_text = client.completions.create(model="toy", prompt="[hello]", max_tokens=1)
        assert as_text.usage is not None
        assert as_text.usage.prompt_tokens == answer.usage.prompt_tokens  # no other template
        card = client.models.list().data[0].model_dump()
        assert (card["id"], card["max_model_len"]) == ("toy", 128)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=20)
        assert (server.returncode, out, err) == (0, "", "")


def test_what_runs_at_sigterm_ends(model: Path) -> None:
    with process(model, "--max-model-len", "128") as (server, printed):
        client = openai.OpenAI(base_url=f"{url_in(printed)}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=100,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        server.send_signal(signal.SIGTERM)
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.wait(20) == 0


def test_a_closed_terminal_lets_what_runs_end(model: Path) -> None:
    with process(model, "--max-model-len", "128") as (server, printed):
        url = url_in(printed)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        more = {"ignore_eos": True}
        stream = client.completions.create(
            model="tiny", prompt="hello", max_tokens=100, n=64, stream=True, extra_body=more
        )
        next(stream)
        server.send_signal(signal.SIGHUP)
        until(lambda: httpx.get(f"{url}/ready").status_code == 503)
        server.send_signal(signal.SIGHUP)  # the shell passes it on, too
        ends = [chunk.choices[0].finish_reason for chunk in stream]
        assert ends.count("length") == 64
        assert server.wait(20) == 0


def test_under_nohup_a_closed_terminal_changes_nothing(model: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process(model) as (server, printed):
            server.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            assert httpx.get(f"{url_in(printed)}/ready").status_code == 200
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_key_comes_from_the_environment_and_is_never_printed(model: Path) -> None:
    with process(model, HEADWAY_API_KEY="sesame-42") as (_, printed):
        assert "sesame-42" not in printed
        assert 'Bearer $HEADWAY_API_KEY"' in printed
        url = url_in(printed)
        assert httpx.get(f"{url}/v1/models").status_code == 401
        key = {"Authorization": "Bearer sesame-42"}
        assert httpx.get(f"{url}/v1/models", headers=key).status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_port_in_use_takes_one_line(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "headway", "serve", str(model), "--port", str(port)]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--policy", "nonesuch"), "nonesuch"),
        (("--max-model-len", "100000"), "100,000"),
        (("--kv-blocks", "4", "--max-model-len", "100"), "100 (max_model_len) is beyond the 64 "),
        (("--block-size", "7"), "block size"),
        (("--max-seqs", "64", "--max-step-tokens", "8"), "step tokens"),
    ],
)
def test_settings_that_cannot_work_take_one_line(
    model: Path, flags: tuple[str, ...], reason: str
) -> None:
    command = [sys.executable, "-m", "headway", "serve", str(model), "--port", "0", *flags]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("headway: ") and ended.stderr.count("\n") == 1
    assert reason in ended.stderr


def test_batch_jobs_outlive_the_server(model: Path, tmp_path: Path) -> None:
    flags = ("--max-model-len", "128", "--data-dir", str(tmp_path / "jobs"))
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 100, "ignore_eos": True}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
        for i in range(150)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    with process(model, *flags) as (server, printed):
        assert f"Batch jobs: {tmp_path / 'jobs'}\n" in printed
        client = openai.OpenAI(base_url=f"{url_in(printed)}/v1", api_key="none", max_retries=0)
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=20)
        assert (server.returncode, out, err) == (0, "", "")
    with process(model, *flags) as (server, printed):
        assert "; 1 unfinished job\n" in printed
        client = openai.OpenAI(base_url=f"{url_in(printed)}/v1", api_key="none", max_retries=0)
        while (found := client.batches.retrieve(batch.id)).status != "completed":
            assert found.status in ("validating", "in_progress", "finalizing")
            time.sleep(0.05)
        assert found.output_file_id is not None
        results = client.files.content(found.output_file_id).text.splitlines()
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)
    assert sorted(int(json.loads(line)["custom_id"]) for line in results) == list(range(150))
    (line,) = UsageBook(tmp_path / "jobs").since(0)  # of both servers
    assert (line.tenant, line.service_class.label) == ("", "batch")
    assert line.tally.answers >= 150 and line.tally.generated >= 150 * 100


def test_a_second_server_has_no_batch_api_unless_it_asks_for_the_folder(
    model: Path, tmp_path: Path
) -> None:
    with process(model, "--max-model-len", "128", XDG_DATA_HOME=str(tmp_path)):
        with process(model, "--max-model-len", "128", XDG_DATA_HOME=str(tmp_path)) as (two, text):
            answer = httpx.get(f"{url_in(text)}/v1/batches")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "batches_off"
            two.send_signal(signal.SIGTERM)
            _, err = two.communicate(timeout=20)
            assert err.startswith("headway: no Batch API: ") and err.count("\n") == 1
        command = [sys.executable, "-m", "headway", "serve", str(model), "--port", "0"]
        command += ["--data-dir", str(tmp_path / "headway")]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert ended.returncode == 2
        assert "used by another server" in ended.stderr


def test_keys_are_made_and_revoked_while_it_serves(model: Path, tmp_path: Path) -> None:
    keys = ("--keys-file", str(tmp_path / "keys.json"))

    def command(*words: str) -> str:
        line = [sys.executable, "-m", "headway", "keys", *words, *keys]
        return subprocess.run(
            line, env=environment(), capture_output=True, text=True, check=True
        ).stdout.strip()

    first = command("add", "--tenant", "ops", "--admin")
    flags = ("--host", "0.0.0.0", "--max-model-len", "128", "--admin-port", "0", *keys)
    with process(model, *flags) as (_, printed):
        url = url_in(printed).replace("0.0.0.0", "127.0.0.1")
        operators = re.search(r"For operators: (http://127\.0\.0\.1:\d+/metrics)", printed)
        assert operators is not None
        assert httpx.get(operators[1]).status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 401

        def status(key: str, path: str = "/v1/models") -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.get(url + path, headers=headers).status_code

        assert status(first, "/metrics") == 200
        second = command("add", "--tenant", "acme")
        until(lambda: status(second) == 200)
        assert status(second, "/metrics") == 403
        command("revoke", second.split("_")[1])
        until(lambda: status(second) == 401)
        assert status(first) == 200


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_what_has_not_ended_when_the_drain_time_is_over_is_told(model: Path) -> None:
    with process(model, "--drain-timeout", "0.2", "--max-seqs", "1") as (server, printed):
        client = openai.OpenAI(base_url=f"{url_in(printed)}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=100,
            n=128,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        server.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="stopped before this answer was complete"):
            list(stream)
        assert server.wait(20) == 0


def test_operators_see_the_page_the_metrics_and_json_logs(model: Path, tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path), "--log-level", "info", "--log-format", "json")
    with process(model, *flags) as (server, printed):
        url = url_in(printed)
        with httpx.Client(base_url=url, timeout=20) as client:
            answer = client.post(
                "/v1/completions",
                json={"model": "tiny:batch", "prompt": "a secret", "max_tokens": 2},
                headers={"X-Request-Id": "mine-1"},
            )
            assert answer.headers["x-request-id"] == "mine-1"
            shown = client.get("/metrics").text
            assert client.get("/dashboard").status_code == 200
            with client.stream("GET", "/dashboard/data") as data:
                lines = data.iter_lines()
                events = {next(lines) for _ in range(7)}
        server.send_signal(signal.SIGTERM)
        _, logged = server.communicate(timeout=20)
    assert {"event: hello", "event: frame"} <= events
    assert 'headway_batch_jobs{status="in_progress"} 0.0' in shown
    assert 'headway_tokens_total{kind="generated",service_class="batch"}' in shown
    assert re.search(r'headway_build_info\{model="tiny",.*version="\d', shown)
    records = [json.loads(line) for line in logged.splitlines()]
    (mine,) = [r for r in records if r.get("request_id") == "mine-1"]
    assert (mine["path"], mine["status"], mine["service_class"]) == (
        "/v1/completions",
        200,
        "batch",
    )
    assert "secret" not in logged
