"""Headway and what people would use instead, on the same file, alternating.

    python bench/peers/compare.py MODEL.gguf --llama-cpp PYTHON --openvino PYTHON [--rounds 5]

PYTHON is the interpreter of an environment with xllamacpp, or with openvino, openvino-genai and
openvino-tokenizers. All engines stay loaded; in each round each runs each load once, in an order
that turns. Prints medians, ranges, and the ratio of Headway to the best peer of each round.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LOADS = ("decode 1", "decode 8", "decode 32", "decode 64", "prefill")


class Worker:
    """An engine in a process of its own."""

    def __init__(self, name: str, python: str, script: str, *arguments: str) -> None:
        self.name = name
        command = [python, str(HERE / script), *arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def read(self) -> str:
        """A line from the worker; ends the run if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} has ended with status {self._process.wait()}")
        return line.strip()

    def run(self, load: str) -> float:
        """Tokens per second of one load."""
        assert self._process.stdin is not None
        print(load, file=self._process.stdin, flush=True)
        return float(self.read())

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()


def start(settings: argparse.Namespace) -> list[Worker]:
    """All engines, loaded."""
    model = settings.model
    workers = [Worker("headway", sys.executable, "headway_worker.py", model)]
    if settings.llama_cpp:
        for name, file in (("llama.cpp", model), ("llama.cpp Q4_0", settings.q4_0)):
            if file:
                script = "llama_cpp_worker.py"
                workers.append(Worker(name, settings.llama_cpp, script, file, settings.attention))
    if settings.openvino:
        workers.append(Worker("openvino", settings.openvino, "openvino_worker.py", model))
    for worker in workers:
        worker.read()
        print(f"{worker.name} is ready", file=sys.stderr)
    return workers


def measure(workers: list[Worker], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Tokens per second by load and engine, one figure a round."""
    figures: dict[str, dict[str, list[float]]] = {
        load: {w.name: [] for w in workers} for load in LOADS
    }
    for turn in range(rounds):
        for load in LOADS:
            first = turn % len(workers)
            for worker in workers[first:] + workers[:first]:
                rate = worker.run(load)
                figures[load][worker.name].append(rate)
                print(
                    f"round {turn + 1} of {rounds}: {load}: {worker.name} {rate:.0f} tokens/s",
                    file=sys.stderr,
                )
    return figures


def table(figures: dict[str, dict[str, list[float]]]) -> str:
    """Markdown: medians with ranges, and the median ratio to the best peer."""
    names = list(next(iter(figures.values())))
    lines = [
        "| tokens/s | " + " | ".join(names) + " | headway / best peer |",
        "|---" * (len(names) + 2) + "|",
    ]
    for load, by_engine in figures.items():
        cells = [
            f"{statistics.median(v):.0f} ({min(v):.0f} to {max(v):.0f})" for v in by_engine.values()
        ]
        peers = [by_engine[name] for name in names[1:]]
        ratios = (
            [own / max(values) for own, *values in zip(by_engine[names[0]], *peers, strict=True)]
            if peers
            else []
        )
        ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
        lines.append(f"| {load} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama-cpp", metavar="PYTHON")
    parser.add_argument("--q4-0", metavar="GGUF", help="the same model in Q4_0, for llama.cpp")
    parser.add_argument("--attention", default="auto", choices=("auto", "flash", "plain"))
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    settings = parser.parse_args()
    workers = start(settings)
    try:
        figures = measure(workers, settings.rounds)
    finally:
        for worker in workers:
            worker.close()
    if settings.json:
        settings.json.write_text(json.dumps(figures, indent=1))
    print(table(figures))


if __name__ == "__main__":
    main()
