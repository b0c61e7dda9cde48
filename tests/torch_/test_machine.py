"""A GPU's streams in the order that a step needs, on streams that only note what waits for what."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.core.plan import BlockCopy, Chunk, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.torch_.machine import CudaMachine, Launch
from headway.executors.torch_.pools import Waits, waits

SIZE = 16
ORDER = ("out", "in", "compute")


class Event:
    """What had to be done before it."""

    def __init__(self, **_: Any) -> None:
        self.before: frozenset[str] = frozenset()
        self.synchronized = 0

    def record(self, stream: "Stream") -> None:
        """At the stream's present end."""
        self.before = frozenset(stream.done)

    def synchronize(self) -> None:
        """Counted."""
        self.synchronized += 1

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds: one for each thing done between the two."""
        return float(len(end.before - self.before))


class Stream:
    """What comes before the next thing launched on it."""

    current: "Stream"

    def __init__(self, *_: Any) -> None:
        self.done: set[str] = set()
        self.sms = range(36)

    def wait_event(self, event: Event) -> None:
        """As CUDA's."""
        self.done |= event.before

    def launch(self, name: str) -> frozenset[str]:
        """What is surely done when it begins."""
        before = frozenset(self.done)
        self.done.add(name)
        return before


@contextmanager
def current(stream: Stream) -> Iterator[None]:
    """As torch.cuda.stream."""
    Stream.current = stream
    yield


class Partition:
    """As torch.cuda.green_contexts.SMPartition of PyTorch 2.15 is documented."""

    def __init__(self, sms: range) -> None:
        self.sms = sms
        self.sm_count = len(sms)

    @classmethod
    def from_device(cls, device_id: int | None = None) -> "Partition":
        """Of an H200, a bit smaller."""
        assert device_id is None or isinstance(device_id, int)
        return cls(range(36))

    def split(self, *, num_sms: int) -> "tuple[tuple[Partition, ...], Partition | None]":
        """The groups, and what remains."""
        assert num_sms % 8 == 0
        rest = self.sms[num_sms:]
        return (Partition(self.sms[:num_sms]),), Partition(rest) if rest else None


class Context:
    """As GreenContext is."""

    def __init__(self, *, sm_partition: Partition) -> None:
        self._partition = sm_partition

    def Stream(self) -> Stream:  # noqa: N802
        """On those SMs."""
        made = Stream()
        made.sms = self._partition.sms
        return made


def refuses(*_: object, **__: object) -> Partition:
    """On an older driver."""
    raise RuntimeError("SM splitting requires CUDA driver and cuda.bindings 13.1+")


@pytest.fixture
def machine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], CudaMachine]:
    """A machine on such streams, with the green contexts that are given."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))

    def made(green: object) -> CudaMachine:
        monkeypatch.setattr(torch.cuda, "green_contexts", green)
        return CudaMachine(torch.device("cuda:0"), True)

    return made


@pytest.fixture
def gpu(machine_of: Callable[[object], CudaMachine]) -> CudaMachine:
    """One that isn't divided: GreenContext alone is there from PyTorch 2.10 on."""
    return machine_of(SimpleNamespace(GreenContext=Context))


@pytest.mark.parametrize("order", [Waits(*some) for some in product((False, True), repeat=3)])
def test_a_phase_waits_for_another_only_where_it_must(gpu: CudaMachine, order: Waits) -> None:
    step = gpu.step(Lane.UNIFIED, 0, order)
    before = {}
    phases = (step.copying_out, step.copying_in, step.computing)
    for name, phase in zip(ORDER, phases, strict=True):
        with phase():
            before[name] = Stream.current.launch(name)
    assert ("out" in before["in"]) == order.in_after_out
    assert ("in" in before["compute"]) == order.compute_after_in
    through = order.compute_after_out or (order.compute_after_in and order.in_after_out)
    assert ("out" in before["compute"]) == through
    timing = step.ended()
    assert (timing.copy_out_s, timing.copy_in_s, timing.compute_s) == (1e-3, 1e-3, 1e-3)


def test_launches_stay_one_group_ahead(gpu: CudaMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Event] = []

    def event(**settings: Any) -> Event:
        made.append(Event(**settings))
        return made[-1]

    step = gpu.step(Lane.UNIFIED, 0, Waits(False, False, False))
    with step.computing():
        monkeypatch.setattr(torch.cuda, "Event", event)
        for _ in range(4):
            step.group_launched()
    waited = [one.synchronized for one in made[:4]]
    assert waited == [1, 1, 1, 0]


def test_lanes_take_the_streams_of_their_parts(
    machine_of: Callable[[object], CudaMachine],
) -> None:
    gpu = machine_of(SimpleNamespace(SMPartition=Partition, GreenContext=Context))
    assert gpu.units == 4
    assert CudaMachine(torch.device("cuda:0"), False).units == 1
    none = Waits(False, False, False)
    for lane, units, sms in (
        (Lane.PREFILL, 1, range(8)),
        (Lane.DECODE, 3, range(8, 36)),
        (Lane.DECODE, 1, range(24, 36)),
        (Lane.PREFILL, 3, range(24)),
        (Lane.UNIFIED, 0, range(36)),
        (Lane.DECODE, 0, range(36)),
    ):
        with gpu.step(lane, units, none).computing():
            assert Stream.current.sms == sms, (lane, units)


def test_a_gpu_that_cannot_be_divided_has_one_lane(
    machine_of: Callable[[object], CudaMachine],
    gpu: CudaMachine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert gpu.units == 1 and not caplog.text
    refusing = SimpleNamespace(from_device=refuses)
    assert machine_of(SimpleNamespace(SMPartition=refusing, GreenContext=Context)).units == 1
    assert "13.1" in caplog.text


def test_a_launch_is_recorded_once_and_played(
    gpu: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it ran twice for the compiler's sake."""
    played: list[bool] = []
    launched: list[bool] = []
    graph = SimpleNamespace(replay=lambda: played.append(True))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)

    @contextmanager
    def capture(given: object, **_: Any) -> Iterator[None]:
        assert given is graph and len(launched) == 2
        yield

    def launch() -> torch.Tensor:
        launched.append(True)
        return torch.tensor(7)

    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(Stream, "wait_stream", lambda *_: None, raising=False)
    monkeypatch.setattr(Stream, "synchronize", lambda _: None, raising=False)
    again: Launch = gpu.recorded(launch)
    assert len(launched) == 3 and not played
    assert [int(again()), int(again())] == [7, 7]
    assert len(launched) == 3 and len(played) == 2


def test_waits_are_where_blocks_are_shared() -> None:
    rng = random.Random(1)
    for _ in range(300):
        left, came, table = (rng.sample(range(8), rng.randrange(4)) for _ in range(3))
        start = rng.randrange(40)
        chunks: tuple[Chunk, ...] = ()
        if start < len(table) * SIZE:
            blocks = [BlockId(block) for block in table]
            tokens = [0] * (len(table) * SIZE - start)
            chunks = (Chunk(RequestId(0), tokens, start, blocks, len(table), True),)
        plan = StepPlan(
            0,
            Lane.UNIFIED,
            swap_out=tuple(BlockCopy(BlockId(b), BlockId(i)) for i, b in enumerate(left)),
            swap_in=tuple(BlockCopy(BlockId(b), BlockId(9 + i)) for i, b in enumerate(came)),
            chunks=chunks,
        )
        used = table if chunks else []
        written = used[start // SIZE :]
        assert waits(plan, SIZE) == Waits(
            in_after_out=any(block in left for block in came),
            compute_after_out=any(block in left for block in written),
            compute_after_in=any(block in came for block in used),
        )
