"""Headway and what people would use instead, on the same file, alternating.

    python bench/peers/compare.py MODEL.gguf --llama-cpp PYTHON --openvino PYTHON [--rounds 5]
        [--vllm PYTHON --hf FOLDER] [--q4-0 MODEL.Q4_0.gguf] [--loads decode-1,prefill]
        [--variants flash+split,plain+unified]

PYTHON is the interpreter of an environment with xllamacpp, or with openvino, openvino-genai and
openvino-tokenizers, or with vLLM for CPUs, which runs the same weights in fp32. All engines stay
loaded; in each round each runs each load once, in an order that turns, and rounds of a load that
neighbours disturbed are left out (headway.bench.rounds). Prints medians, ranges, and the ratio of
Headway (on the first file) to the best peer of each round, whichever file and variant that was: its
median and the interval around it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from servers import HERE, interpreter, preloaded

from headway.bench.rounds import Probe, estimate, note, steady

LOADS = "decode-1,decode-8,decode-32,decode-64,prefill"  # and context-32-1000; see loads.py
SHORT, LONG = "256", "1152"  # tokens a slot of llama.cpp has room for


class Worker:
    """An engine in a process of its own."""

    def __init__(
        self,
        name: str,
        python: str,
        script: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        """environment: what it has beside ours."""
        self.name = name
        command = [python, str(HERE / script), *arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | (environment or {}),
        )

    def read(self) -> str:
        """A line from the worker; ends the run if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} has ended with status {self._process.wait()}")
        return line.strip()

    def run(self, load: str, cpu: bool) -> float:
        """Tokens per second of one load, of CPU time if wished."""
        assert self._process.stdin is not None
        print(load, file=self._process.stdin, flush=True)
        wall, of_cpu = map(float, self.read().split())
        return of_cpu if cpu else wall

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()


def start(settings: argparse.Namespace) -> list[Worker]:
    """All engines, loaded; Headway on the model first."""
    threads = str(settings.threads)
    files = {"": settings.model} | ({" Q4_0": settings.q4_0} if settings.q4_0 else {})
    workers = [
        Worker("headway" + label, sys.executable, "headway_worker.py", file, threads)
        for label, file in files.items()
    ]
    long = any(load.startswith(("context", "prefill")) for load in settings.loads)
    for variant in settings.variants.split(",") if settings.llama_cpp else ():
        file = settings.q4_0 or settings.model
        arguments = (
            file,
            threads,
            *variant.split("+"),
            str(settings.slots),
            LONG if long else SHORT,
        )
        name = f"llama.cpp {variant}"
        workers.append(Worker(name, settings.llama_cpp, "llama_cpp_worker.py", *arguments))
    if settings.openvino:
        arguments = (settings.model, threads)
        workers.append(Worker("openvino", settings.openvino, "openvino_worker.py", *arguments))
    if settings.vllm:
        arguments, first = (settings.hf, threads), preloaded(settings.vllm)
        workers.append(
            Worker("vllm", settings.vllm, "vllm_worker.py", *arguments, environment=first)
        )
    for worker in workers:
        worker.read()
        print(f"{worker.name} is ready", file=sys.stderr)
    return workers


def measure(
    workers: list[Worker], loads: list[str], rounds: int, cpu: bool
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[bool]]]:
    """Tokens per second by load and engine, one figure a round; and which rounds were steady."""
    probe = Probe()
    probes: dict[str, list[tuple[float, float]]] = {load: [] for load in loads}
    figures: dict[str, dict[str, list[float]]] = {
        load: {w.name: [] for w in workers} for load in loads
    }
    for turn in range(rounds):
        for load in loads:
            first, before = turn % len(workers), probe.rate()
            for worker in workers[first:] + workers[:first]:
                rate = worker.run(load.replace("-", " "), cpu)
                figures[load][worker.name].append(rate)
                print(
                    f"round {turn + 1} of {rounds}: {load}: {worker.name} {rate:.0f} tokens/s",
                    file=sys.stderr,
                )
            probes[load].append((before, probe.rate()))
    if cpu:  # others don't show in it, much
        return figures, {load: [True] * rounds for load in loads}
    # The machine is the same for all loads: so is what its probes usually reach.
    kept = iter(steady([pair for pairs in probes.values() for pair in pairs]))
    return figures, {load: [next(kept) for _ in pairs] for load, pairs in probes.items()}


def table(figures: dict[str, dict[str, list[float]]], kept: dict[str, list[bool]]) -> str:
    """Markdown: medians with ranges, and the median ratio to the best peer, of rounds kept."""
    names = list(next(iter(figures.values())))
    lines = [
        "| tokens/s | " + " | ".join(names) + " | headway / best peer |",
        "|---" * (len(names) + 2) + "|",
    ]
    for load, by_round in figures.items():
        cells = [
            f"{statistics.median(v):.0f} ({min(v):.0f} to {max(v):.0f})"
            for v in counted(by_round, kept[load]).values()
        ]
        ratios = to_best_peer(by_round, kept[load])
        ratio = f"{estimate(ratios)}; " if ratios else ""
        ratio += note(kept[load])
        lines.append(f"| {load} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def counted(by_round: dict[str, list[float]], kept: list[bool]) -> dict[str, list[float]]:
    """The figures of the rounds kept, or of all where none was."""
    counts = kept if any(kept) else [True] * len(kept)
    return {
        name: [rate for rate, counted in zip(rates, counts, strict=True) if counted]
        for name, rates in by_round.items()
    }


def to_best_peer(by_round: dict[str, list[float]], kept: list[bool]) -> list[float]:
    """Headway, on the first file, by the best peer of each round; empty without peers."""
    by_engine = counted(by_round, kept)
    peers = [rates for name, rates in by_engine.items() if not name.startswith("headway")]
    own = next(iter(by_engine.values()))
    return [rate / max(others) for rate, *others in zip(own, *peers, strict=True)] if peers else []


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama-cpp", type=interpreter, metavar="PYTHON")
    parser.add_argument(
        "--q4-0", metavar="GGUF", help="the same in Q4_0: llama.cpp runs this, Headway both"
    )
    parser.add_argument("--variants", default="auto+unified", help="of llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that others use")
    parser.add_argument("--slots", type=int, default=64, help="of llama.cpp")
    parser.add_argument("--loads", type=lambda s: s.split(","), default=LOADS)
    parser.add_argument("--openvino", type=interpreter, metavar="PYTHON")
    parser.add_argument("--vllm", type=interpreter, metavar="PYTHON")
    parser.add_argument("--hf", metavar="FOLDER", help="the same model for vLLM")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    settings = parser.parse_args()
    if settings.vllm and not settings.hf:
        parser.error("vLLM reads a folder by bench/peers/hf_folder.py: --hf FOLDER")
    workers = start(settings)
    try:
        figures, kept = measure(workers, settings.loads, settings.rounds, settings.cpu_time)
    finally:
        for worker in workers:
            worker.close()
    if settings.json:
        settings.json.write_text(json.dumps({"figures": figures, "kept": kept}, indent=1))
    print(table(figures, kept))


if __name__ == "__main__":
    main()
