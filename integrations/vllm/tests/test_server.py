"""`headway vllm serve`: vLLM's own server with an engine in a process of its own, over HTTP."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

_START_S = 300.0
SEATS = 2


@dataclass(frozen=True, slots=True)
class Server:
    """A running one: two seats, served as `tiny`."""

    url: str
    log: Path

    def post(self, body: dict[str, Any], path: str = "/v1/completions", **headers: str) -> Any:
        """One answer."""
        return httpx.post(self.url + path, json=body, headers=headers, timeout=200)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 where it is not shown."""
        page = httpx.get(self.url + "/metrics", timeout=30).text
        total = 0.0
        for line in page.splitlines():
            wanted = all(f'{key}="{value}"' in line for key, value in labels.items())
            if re.match(rf"{name}\{{", line) and wanted:
                total += float(line.rpartition(" ")[2])
        return total


def command(tiny: Path, port: int, *options: str) -> list[str]:
    """The command line; `--default-class` and what follows are vLLM's or ours alike."""
    own = ["--served-model-name", "tiny", "--host-kv-gib", "0.5", "--port", str(port)]
    vllm = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    sizes = ["--max-num-seqs", str(SEATS), "--block-size", "32", "--num-gpu-blocks-override", "64"]
    serve = ["-m", "headway", "vllm", "serve", str(tiny)]
    return [sys.executable, *serve, *own, *vllm, *sizes, *options]


def environment() -> dict[str, str]:
    return {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}


@pytest.fixture(scope="session")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command(tiny, port), stdout=out, stderr=subprocess.STDOUT, env=environment()
        )
    running = Server(f"http://127.0.0.1:{port}", log)
    try:
        wait_for(running, process)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, server.log.read_text()[-4000:]
        try:
            if httpx.get(server.url + "/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(server.log.read_text()[-4000:])


def body(**fields: Any) -> dict[str, Any]:
    plain = {"model": "tiny", "prompt": "abc", "max_tokens": 4, "temperature": 0}
    return plain | {"ignore_eos": True} | fields


def test_tier_header_and_alias_give_the_class(server: Server) -> None:
    cases = [
        (body(), {}, "standard"),
        (body(service_tier="priority"), {}, "realtime"),
        (body(service_tier="batch"), {}, "batch"),
        (body(), {"X-Headway-Class": "realtime"}, "realtime"),
        (body(model="tiny:batch"), {}, "batch"),
    ]
    for request, headers, label in cases:
        counted = server.metric("headway_ttft_seconds_count", service_class=label)
        answer = server.post(request, **headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Headway-Class"] == label
        assert answer.json().get("service_tier") is None, "only the header says it"
        assert server.metric("headway_ttft_seconds_count", service_class=label) == counted + 1


def test_chat_has_classes_too_streamed_or_not(server: Server) -> None:
    chat = {
        "model": "tiny:realtime",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }
    whole = server.post(chat, "/v1/chat/completions")
    assert whole.headers["X-Headway-Class"] == "realtime"
    text = whole.json()["choices"][0]["message"]["content"]
    streamed = server.post(chat | {"stream": True}, "/v1/chat/completions")
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    parts = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(parts) == text


def test_and_responses(server: Server) -> None:
    request = {"model": "tiny", "input": "hi", "max_output_tokens": 4, "temperature": 0}
    cases = [
        (request, {}, "standard"),
        (request | {"service_tier": "batch"}, {}, "batch"),
        (request | {"service_tier": None}, {"X-Headway-Class": "batch"}, "batch"),
        (request | {"model": "tiny:realtime"}, {}, "realtime"),
    ]
    for fields, headers, label in cases:
        counted = server.metric("headway_ttft_seconds_count", service_class=label)
        answer = server.post(fields, "/v1/responses", **headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Headway-Class"] == label
        assert server.metric("headway_ttft_seconds_count", service_class=label) == counted + 1


def test_an_unknown_tier_is_400_in_openais_words(server: Server) -> None:
    answer = server.post(body(service_tier="vip"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "service_tier"
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_aliases_are_listed(server: Server) -> None:
    models = httpx.get(server.url + "/v1/models", timeout=30).json()["data"]
    assert {m["id"] for m in models} == {"tiny", "tiny:realtime", "tiny:standard", "tiny:batch"}


def test_realtime_takes_a_seat_and_batch_gives_the_answer_it_would_have_given(
    server: Server,
) -> None:
    """Two batch answers hold both seats; a realtime one comes, and is done long before them."""
    prompts = ["the quick brown fox", "jumps over the lazy dog"]
    alone = [
        server.post(body(prompt=p, max_tokens=150, model="tiny:batch")).json()["choices"][0]["text"]
        for p in prompts
    ]
    before = server.metric("headway_preemptions_total", service_class="batch")
    ended_s: dict[str, float] = {}
    texts: dict[str, str] = {}

    def ask(name: str, request: dict[str, Any]) -> None:
        texts[name] = server.post(request).json()["choices"][0]["text"]
        ended_s[name] = time.monotonic()

    threads = [
        threading.Thread(target=ask, args=(p, body(prompt=p, max_tokens=150, model="tiny:batch")))
        for p in prompts
    ]
    for thread in threads:
        thread.start()
    running = {"state": "running", "service_class": "batch"}
    until(lambda: server.metric("headway_requests", **running) == SEATS)
    ask("realtime", body(prompt="now", service_tier="realtime"))
    for thread in threads:
        thread.join(200)
    assert ended_s["realtime"] < min(ended_s[p] for p in prompts)
    assert [texts[p] for p in prompts] == alone
    assert server.metric("headway_preemptions_total", service_class="batch") > before
    assert server.metric("headway_kv_blocks", tier="host", state="used") == 0
    page = httpx.get(server.url + "/metrics", timeout=30).text
    shown = set(re.findall(r"^(headway_\w+?)(?:_bucket|_sum|_count)?\{", page, re.MULTILINE))
    assert documented() <= shown


def documented() -> set[str]:
    """Metrics that docs/vllm.md lists."""
    text = (Path(__file__).parents[3] / "docs" / "vllm.md").read_text()
    first_cells = re.findall(r"^\| (`headway_.*?) \|", text, re.MULTILINE)
    names = {name for cell in first_cells for name in re.findall(r"`(headway_\w+)`", cell)}
    assert len(names) >= 7
    return names


def until(holds: Any, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--scheduling-policy", "fcfs"], "set by headway vllm serve"),
        (["--enable-lora"], "LoRA"),
        (["--headless"], "--headless"),
        (["--host-kv-gib", "-1"], "host memory"),
        (["--allow-untested", "magic"], "magic"),
    ],
)
def test_what_is_refused_takes_one_line_and_status_2(
    tiny: Path, options: list[str], reason: str
) -> None:
    done = subprocess.run(
        command(tiny, 1, *options),
        capture_output=True,
        text=True,
        timeout=200,
        env={**environment(), "VLLM_LOGGING_LEVEL": "CRITICAL"},
        check=False,
    )
    assert done.returncode == 2
    ours = [line for line in done.stderr.splitlines() if line.startswith("headway: ")]
    assert len(ours) == 1
    assert reason in ours[0]


def test_check_says_that_this_version_will_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway", "vllm", "check"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0
    assert "as tested" in done.stdout
