"""What servers take to start, in memory and on disk: Headway beside its peers.

    python bench/peers/footprint.py MODEL.gguf --out FOLDER [--llama-cpp PYTHON --q4-0 GGUF]
        [--openvino PYTHON] [--vllm PYTHON --vllm-plugin PYTHON --hf FOLDER]
        [--rounds 3] [--seconds 20]

Each server is started once without counting, so that its files are in the page cache and what it
keeps for later starts is there. Then, round by round and by turns: seconds from the start of the
process to the first token of a streamed completion, memory of all its processes 2 s later, and
again after so many seconds of 32 batch streams. Memory is the proportional share of what is
resident, so that a page that two of a server's processes map is counted once. On disk: what a user
installs, with all that it requires, and no model (installed.py). Writes FOLDER/footprint.json and
FOLDER/footprint.md.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import servers
from mixed import FLOOD, Load
from mixed_tables import interval, short
from servers import HERE, Running, Server, running

from headway.bench.client import Client

ITL_MS = 50.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """One start. first_token_s: wall time. idle_mb, loaded_mb: memory, in 10**6 bytes."""

    server: str
    turn: int
    first_token_s: float
    idle_mb: float
    loaded_mb: float


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment. versions: by distribution, of all that was counted."""

    bytes: int
    versions: dict[str, str]

    @staticmethod
    def of(server: Server) -> "Installed":
        """Asked in the server's own environment."""
        command = [server.python, str(HERE / "installed.py"), *server.packages]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{server.name}: {done.stderr.strip()}")
        return Installed(**json.loads(done.stdout))


def measure(server: Server, turn: int, settings: argparse.Namespace) -> Footprint:
    """Start it, ask for a token, load it, and stop it."""
    with running(server, settings.port, settings.out / f"{server.slug}.log") as live:
        first_token_s = asyncio.run(first_token(live))
        time.sleep(SETTLE_S)
        idle_mb = memory_mb(live.process)
        Load(0.0, True, turn, settings.seconds).on(live.url, server, settings)
        return Footprint(server.name, turn, first_token_s, idle_mb, memory_mb(live.process))


async def first_token(live: Running) -> float:
    """Seconds since the server was started, when its first token is there."""
    client = Client(live.url)
    (model, *_) = await client.models()
    body: dict[str, object] = {"model": model, "prompt": "Hello", "max_tokens": 4}
    answer = await client.complete(body)
    return answer.times_s[0] - live.begun_s


def memory_mb(process: int, proc: Path = Path("/proc")) -> float:
    """Proportional share of a process and all its descendants."""
    return sum(share_mb(proc / str(one)) for one in family(process, proc))


def family(process: int, proc: Path) -> Iterator[int]:
    """A process and its descendants."""
    parents = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            # Names may hold spaces and brackets; the parent is the second field after them.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    waiting = [process]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [child for child, parent in parents.items() if parent == one]


def share_mb(folder: Path) -> float:
    """The Pss of /proc/PID; 0 of a process that has ended."""
    try:
        rollup = (folder / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    kilobytes = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")]
    return sum(kilobytes) * 1024 / 1e6


def table(found: Sequence[Footprint], installed: dict[str, Installed]) -> Iterator[str]:
    """Markdown: a row a server, medians over the rounds with their intervals."""
    yield (
        "| server | start to first token, s | memory idle, MB | memory after the flood, MB "
        "| installed, MB | packages |"
    )
    yield "|---" * 6 + "|"
    for name, disk in installed.items():
        own = [one for one in found if one.server == name]
        figures = (
            [one.first_token_s for one in own],
            [one.idle_mb for one in own],
            [one.loaded_mb for one in own],
        )
        cells = [interval(values) for values in figures]
        cells += [short(disk.bytes / 1e6), str(len(disk.versions))]
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    servers.add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help=f"of {FLOOD}")
    settings = parser.parse_args()
    settings.warmup = 0.1
    settings.out.mkdir(parents=True, exist_ok=True)
    chosen = servers.chosen(settings, [ITL_MS])
    installed = {server.name: Installed.of(server) for server in chosen}
    for server in chosen:
        print(f"{server.name}: first start, not counted", file=sys.stderr, flush=True)
        with running(server, settings.port, settings.out / f"{server.slug}.log") as live:
            asyncio.run(first_token(live))
    found: list[Footprint] = []
    for turn in range(settings.rounds):
        first = turn % len(chosen)
        for server in (*chosen[first:], *chosen[:first]):
            found.append(measure(server, turn, settings))
            print(
                f"round {turn + 1} of {settings.rounds}: {found[-1]}", file=sys.stderr, flush=True
            )
    document = {
        "starts": [asdict(one) for one in found],
        "installed": {name: asdict(one) for name, one in installed.items()},
    }
    (settings.out / "footprint.json").write_text(json.dumps(document, indent=1))
    text = "\n".join(table(found, installed)) + "\n"
    (settings.out / "footprint.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
