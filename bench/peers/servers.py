"""The servers under a mixed load: how each is started, tuned, and told a request's class."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

HERE = Path(__file__).parent
_START_S = 180.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server. `{port}` in its command is where it shall listen.

    priority: how it is told a class, a word of `headway bench serve --priority`.
    """

    name: str
    command: tuple[str, ...]
    priority: str
    environment: dict[str, str] = field(default_factory=dict)


def headway(model: str, seats: int, itl_ms: float) -> Server:
    """Headway with an ITL target."""
    command = (sys.executable, "-m", "headway", "serve", model, "--port", "{port}")
    command += ("--no-batches", "--max-seqs", f"{seats}", "--itl-target", f"{itl_ms:g}")
    command += ("--kv-blocks", "2048", "--log-level", "error")
    return Server(f"Headway, ITL target {itl_ms:g} ms", command, "service_tier")


def llama_cpp(python: str, model: str, seats: int) -> Server:
    """llama.cpp's server; it knows no priorities."""
    command = (python, str(HERE / "llama_cpp_server.py"), model, "{port}", f"{seats}")
    return Server("llama.cpp", command, "none")


def openvino(python: str, model: str, seats: int) -> Server:
    """OpenVINO GenAI's continuous batching; it knows no priorities."""
    command = (python, str(HERE / "openvino_server.py"), model, "{port}", f"{seats}")
    return Server("OpenVINO GenAI", command, "none")


def vllm(python: str, folder: str, seats: int, plugin: bool) -> Server:
    """vLLM for CPU under its priority policy, by itself or with Headway's scheduler class."""
    shared = ("--port", "{port}", "--max-num-seqs", f"{seats}", "--max-model-len", "2048")
    shared += ("--dtype", "float32", "--enforce-eager", "--served-model-name", "bench")
    # A step is what realtime waits for: by default as many tokens as take vLLM seconds here.
    shared += ("--max-num-batched-tokens", "256")
    if plugin:
        command = (str(Path(python).with_name("headway")), "vllm", "serve", folder, *shared)
    else:
        command = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, *shared)
        command += ("--scheduling-policy", "priority")
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if plugin:
        return Server("vLLM with Headway's scheduler", command, "service_tier", environment)
    return Server("vLLM, priority", command, "priority", environment)


@contextmanager
def running(server: Server, port: int, log: Path) -> Iterator[str]:
    """The server's URL once it lists its model. Ends the run if it doesn't start."""
    command = [word.replace("{port}", f"{port}") for word in server.command]
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=os.environ | server.environment
        )
    try:
        _wait(url, process, server.name, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", name: str, log: Path) -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            break
        try:
            with urlopen(f"{url}/v1/models", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.2)
    sys.exit(f"{name} does not start; see {log}")
