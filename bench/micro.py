"""Micro-benchmarks beside a baseline: by how much each has moved.

    python bench/micro.py [--rounds 8] [--baseline bench/baseline.json] [--save] [--json OUT]

Kernels: a product of 128x768 weights, hot in cache, with 1 and with 64 tokens, in each format.
Scheduler: `plan()` and `commit()` with 256 running and 10,000 waiting (bench/plan.py), for seats,
and with a full pool for blocks; a plan is to take less than a millisecond. Block pool: an operation
on 64 blocks. Events: a token's JSON written, and a token's whole way through the server's event
loop to a socket (bench/http_overhead.py, 16 streams). What runs Python is measured in CPU time.

Rounds go through all of them, and a round that neighbours disturbed is left out
(headway.bench.rounds). A ratio is of a round to a round of the baseline. The first row is a fixed
piece of Python and of its C library, none of it ours: where it has moved, the machine has.
"""

import argparse
import json
import selectors
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import http_overhead
import plan
from gemm import HOT, Case, packed_copies
from gemm import Machine as Threads

from headway import _native
from headway.bench.machine import Machine, this_machine
from headway.bench.rounds import TOLERANCE, Estimate, Probe, estimate, note, steady
from headway.core.blocks import BlockPool
from headway.core.prefix import PrefixChain
from headway.core.types import Lane
from headway.engine.types import Delta, TokenInfo
from headway.server.render import EventWriter, Head
from headway.server.shapes import CompletionShape
from headway.testing.text import ByteTokenizer

BASELINE = Path(__file__).with_name("baseline.json")
FORMATS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
PACE = "the machine: Python and hashing"
BLOCKS, BLOCK = 64, 16
RUNNING, WAITING, STEPS = 256, 10_000, 100
REPEATS = 200
STREAMS, STEP_S, HTTP_S = 16, 0.002, 1.0

Figures = dict[str, float]  # microseconds by name


def all_figures(pool: ThreadPoolExecutor) -> Iterator[tuple[str, float]]:
    """One round: microseconds of everything, by name."""
    yield PACE, cpu_us(pace, 20)
    threads = Threads(1, pool, 0.1)
    for name in FORMATS:
        case = Case(_native.best_isa(), packed_copies(name, HOT))
        for tokens in (1, 64):
            seconds = case.product_s(threads, tokens)
            yield f"product, {name}, {tokens} token{'s' * (tokens > 1)}", 1e6 * seconds
    for scarce in ("seats", "blocks"):
        cell = plan.measure(RUNNING, WAITING, scarce, STEPS)
        yield f"plan(), {RUNNING} running, {WAITING:,} waiting for {scarce}", cell.plan_us
        yield f"commit(), waiting for {scarce}", cell.commit_us
    yield from block_pool()
    yield "a token's event written", cpu_us(events(), 20)
    gaps = http_overhead.over_http(STREAMS, STEP_S, HTTP_S, SocketReader)
    yield f"a token in the event loop, {STREAMS} streams", 1e6 * gaps.loop_cpu_s / len(gaps.seconds)


def cpu_us(work: Callable[[], int], tries: int) -> float:
    """Least CPU time for one of the things that a call of `work` says it has done."""
    least = float("inf")
    for _ in range(tries):
        begin_s = time.thread_time()
        count = work()
        least = min(least, (time.thread_time() - begin_s) / count)
    return 1e6 * least


def pace() -> int:
    """Work that no change of ours makes faster or slower."""
    data, total = bytes(4096), 0
    for i in range(REPEATS):
        total += len(blake2b(data).digest()) + i % 7
    return REPEATS


def block_pool() -> Iterator[tuple[str, float]]:
    """Allocating and releasing, finding a prefix, and evicting one prefix for another."""
    tokens = list(range(BLOCKS * BLOCK))
    digests = PrefixChain(b"root", BLOCK).digests(tokens, BLOCKS)
    fresh, cached = BlockPool(16 * BLOCKS), BlockPool(BLOCKS)

    def allocate() -> int:
        for _ in range(REPEATS):
            fresh.release(fresh.allocate(BLOCKS, Lane.UNIFIED))
        return REPEATS

    def publish() -> None:
        taken = cached.allocate(BLOCKS, Lane.UNIFIED)
        for i, block in enumerate(taken):
            cached.publish(block, digests[i], tokens[i * BLOCK : (i + 1) * BLOCK])
        cached.release(taken)

    def match() -> int:
        for _ in range(REPEATS):
            found = cached.match(digests, tokens, BLOCK)
            cached.acquire(found)
            cached.release(found)
        return REPEATS

    def evict() -> int:
        for _ in range(REPEATS):
            publish()
        return REPEATS

    yield "64 blocks allocated and released", cpu_us(allocate, 5)
    publish()
    yield "64 blocks found, acquired and released", cpu_us(match, 5)
    yield "64 blocks evicted, allocated, published, released", cpu_us(evict, 5)


def events() -> Callable[[], int]:
    """Writes the events of a stream's tokens."""
    head = Head("cmpl-0", 0, "smollm2-135m-instruct", "default")
    writer = EventWriter(head, CompletionShape(ByteTokenizer(), False), 1, include_usage=True)
    deltas = [Delta(0, f" word{i}", (TokenInfo(i),)) for i in range(REPEATS)]

    def write() -> int:
        for delta in deltas:
            writer.delta(delta)
        return REPEATS

    return write


class SocketReader:
    """Reads streams on a thread that only empties sockets, and so takes next to no Python."""

    def __init__(self, url: str, streams: int) -> None:
        self._place = urlsplit(url)
        self._sockets = [socket.socket() for _ in range(streams)]
        self._thread = threading.Thread(target=self._read)

    def start(self) -> None:
        """Ask for all streams. The server need not have begun to accept."""
        body = json.dumps(
            {"model": "m", "prompt": [1] * 16, "max_tokens": 50_000, "stream": True}
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._place.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        for one in self._sockets:
            one.connect((self._place.hostname, self._place.port))
            one.sendall(head.encode() + body)
        self._thread.start()

    def kill(self) -> None:
        """Close all streams."""
        for one in self._sockets:
            one.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _read(self) -> None:
        with selectors.DefaultSelector() as ready:
            for one in self._sockets:
                ready.register(one, selectors.EVENT_READ)
            while ready.get_map():
                for key, _ in ready.select():
                    one = cast(socket.socket, key.fileobj)
                    if not one.recv(1 << 16):
                        ready.unregister(one)
                        one.close()


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds by name, a figure for each round that counts, and where they were taken."""

    machine: Machine
    date: str
    rounds: Mapping[str, Sequence[float]]

    @staticmethod
    def read(path: Path) -> "Measured":
        """What `write` wrote."""
        said = json.loads(path.read_text())
        return Measured(Machine(**said["machine"]), said["date"], said["rounds"])

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def measure(rounds: int) -> tuple[Measured, list[bool]]:
    """All rounds, and which of them were left alone; all count if none was."""
    probe, seen, probes = Probe(), [], []
    with ThreadPoolExecutor(1) as pool:
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
            before = probe.rate()
            seen.append(dict(all_figures(pool)))
            probes.append((before, probe.rate()))
    kept = steady(probes)
    counted = [figures for figures, keep in zip(seen, kept, strict=True) if keep] or seen
    by_name = {name: [figures[name] for figures in counted] for name in seen[0]}
    return Measured(this_machine(), time.strftime("%Y-%m-%d"), by_name), kept


def moved(base: Sequence[float], now: Sequence[float]) -> Estimate:
    """The ratio of now to the baseline, round by round; the shorter of the two begins anew."""
    length = max(len(base), len(now))
    return estimate([now[i % len(now)] / base[i % len(base)] for i in range(length)])


def verdict(ratio: Estimate) -> str:
    """In a word: what lies within 5 % at either end of the interval has not moved."""
    if ratio.low > 1 + TOLERANCE:
        return "slower"
    return "faster" if ratio.high < 1 - TOLERANCE else ""


def table(now: Measured, base: Measured | None) -> Iterator[str]:
    """In Markdown: medians, and how they moved; names that only one of the two has are said."""
    yield "| microseconds | baseline | now | now / baseline | |"
    yield "|---|---|---|---|---|"
    for name, figures in now.rounds.items():
        here = statistics.median(figures)
        if base is None or name not in base.rounds:
            yield f"| {name} | - | {here:.2f} | - | new |"
            continue
        ratio, was = moved(base.rounds[name], figures), statistics.median(base.rounds[name])
        yield f"| {name} | {was:.2f} | {here:.2f} | {ratio} | {verdict(ratio)} |"
    if base is None:
        return
    for name in base.rounds:
        if name not in now.rounds:
            yield f"| {name} | {statistics.median(base.rounds[name]):.2f} | - | - | gone |"


def remarks(now: Measured, base: Measured | None) -> Iterator[str]:
    """What to keep in mind."""
    if base is None:
        yield "There is no baseline: --save makes this one."
        return
    yield f"Baseline of {base.date}: {base.machine}."
    if fields := now.machine.differs(base.machine):
        yield (
            f"Another machine than the baseline's ({', '.join(fields)}): a ratio says how the two "
            "machines differ as well."
        )
    if PACE in base.rounds and verdict(moved(base.rounds[PACE], now.rounds[PACE])):
        yield "The machine itself has moved (first row): read the other ratios beside that one."


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--save", action="store_true", help="make this the baseline")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    base = Measured.read(args.baseline) if args.baseline.exists() else None
    now, kept = measure(args.rounds)
    print(f"{now.machine}; {now.date}; {note(kept)}\n")
    print("\n".join([*table(now, base), "", *remarks(now, base)]))
    if args.json:
        now.write(args.json)
    if args.save:
        save(now, kept, args.baseline)


def save(now: Measured, kept: Sequence[bool], path: Path) -> None:
    """Make it the baseline. Ends the run if no round was left alone."""
    if not any(kept):
        sys.exit(f"{path} is not written: a baseline wants a round that neighbours left alone")
    now.write(path)


if __name__ == "__main__":
    main()
