"""Mixed load on vLLM's server: its own priority policy, and Headway inside it, alternating.

    python bench/peers/inside_vllm.py FOLDER --vllm PYTHON [--seats 32] [--rounds 2] [--seconds 75]
        [--step-tokens 256]

PYTHON is the interpreter of the environment of `make test-vllm`; FOLDER a model as
`bench/peers/hf_folder.py` writes it. Each server is started, loaded by `headway bench serve` and
stopped; one runs at a time. Prints a row for each run: realtime's TTFT, batch tokens/s.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_TRAFFIC = ("realtime:rate=0.3,prompt=80,answer=32", "batch:streams=32,prompt=190,answer=128")
_START_S = 240.0


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--vllm", required=True, metavar="PYTHON")
    parser.add_argument("--seats", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument(
        "--step-tokens", type=int, default=0, help="most tokens of a step; 0: vLLM's"
    )
    parser.add_argument("--only", choices=["stock", "headway"])
    settings = parser.parse_args()
    print("| server | TTFT p50 | p90 | requests | ITL p50 | batch tokens/s |")
    print("|---|---|---|---|---|---|")
    for turn in range(settings.rounds):
        both = ["stock", "headway"] if turn % 2 == 0 else ["headway", "stock"]
        for name in both:
            if settings.only in (None, name):
                print(row(name, measure(name, settings)), flush=True)


def measure(name: str, settings: argparse.Namespace) -> dict[str, Any]:
    """One server under the load; what `headway bench serve` wrote of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as out:
            server = subprocess.Popen(
                command(name, settings, port),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
            )
        try:
            wait(server, port, log)
            return load(name, settings, port, Path(folder) / "load.json")
        finally:
            server.terminate()
            server.wait(60)


def command(name: str, settings: argparse.Namespace, port: int) -> list[str]:
    """Start the server: the same options but for ours."""
    options = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", str(settings.seats)]
    options += ["--max-model-len", "2048", "--port", str(port), "--served-model-name", "smollm2"]
    if settings.step_tokens:
        options += ["--max-num-batched-tokens", str(settings.step_tokens)]
    if name == "headway":
        return [settings.vllm, "-m", "headway", "vllm", "serve", settings.folder, *options]
    stock = ["-m", "vllm.entrypoints.openai.api_server", "--model", settings.folder]
    host = ["--host", "127.0.0.1", "--scheduling-policy", "priority"]
    return [settings.vllm, *stock, *host, *options]


def wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until it answers."""
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"the server did not start: {log.read_text()[-2000:]}")


def load(name: str, settings: argparse.Namespace, port: int, out: Path) -> dict[str, Any]:
    """Load it."""
    told = "service_tier" if name == "headway" else "priority"
    traffic = [word for one in _TRAFFIC for word in ("--traffic", one)]
    words = ["bench", "serve", f"http://127.0.0.1:{port}", "--model", "smollm2", *traffic]
    words += ["--priority", told, "--seconds", str(settings.seconds), "--json", str(out)]
    subprocess.run([sys.executable, "-m", "headway", *words], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    realtime, batch = found["classes"]["realtime"], found["classes"]["batch"]
    cells = (
        "vLLM, `priority`" if name == "stock" else "vLLM with Headway",
        f"{realtime['ttft']['p50']:.2f} s",
        f"{realtime['ttft']['p90']:.2f} s",
        str(realtime["requests"]),
        f"{1000 * realtime['itl']['p50']:.0f} ms",
        f"{batch['tokens_per_s']:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
