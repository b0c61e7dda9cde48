"""What a GPU needs of a step, shown on the CPU: nothing in it waits for the device, decode steps
are padded to a few sizes, and a step stops between two groups of layers."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headway.core.plan import Chunk, Open, Penalties, SamplingSpec, StepPlan, Truncation
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ConfigError
from headway.executors.torch_.attention import GatheredAttention
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.forward import Course, Forward, padded_sizes
from headway.executors.torch_.machine import CpuMachine, Launch
from headway.executors.torch_.model import Transformer
from headway.executors.torch_.options import TorchOptions
from headway.executors.torch_.pools import Pools
from headway.executors.torch_.sampler import Row, SamplingState, choose, read
from headway.executors.torch_.weights import to_torch
from headway.testing import make_capacity
from tests.tiny import LLAMA, QWEN2, QWEN3, tiny_weights, tokens

CPU = torch.device("cpu")
CAPACITY = make_capacity(kv_blocks=64, max_seqs=6, max_step_tokens=160, max_model_len=128)
WEIGHTS = tiny_weights(replace(LLAMA, layers=6), scale=3.0)
SPECS = (
    SamplingSpec(logprobs=3),
    SamplingSpec(seed=3, temperature=1.0, logprobs=0),
    SamplingSpec(seed=4, temperature=0.8, truncation=Truncation(20, 0.9, 0.01), bias=((5, 1.0),)),
    SamplingSpec(seed=5, temperature=1.2, penalties=Penalties(1.2, 0.3, 0.1)),
)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    """As the executor computes; its inference mode hides what `Watching` looks for."""
    with torch.no_grad():
        yield


def make_forward(options: TorchOptions) -> Forward:
    """Over a fresh pool."""
    config = WEIGHTS.config
    model = Transformer(config, to_torch(WEIGHTS, torch.float32, CPU), GatheredAttention(), 128)
    pools = Pools(config, CAPACITY, torch.float32, CPU)
    return Forward(model, pools, replace(CAPACITY, vocab_size=config.vocab), options)


def chunk(request: int, start: int, count: int, sample: bool = True) -> Chunk:
    """On blocks of its own."""
    blocks = [BlockId(8 * request + i) for i in range(8)]
    return Chunk(RequestId(request), tokens(count, seed=request), start, blocks, 8, sample)


def course(recorded: bool = False) -> Course:
    """Of a step that nobody interrupts."""
    return Course(recorded, 0, threading.Event(), lambda: None)


@dataclass
class StopsAfter:
    """Interrupts a step once so many groups of layers were launched."""

    groups: int
    course: Course
    count: int = 0

    def __call__(self) -> None:
        """A group more."""
        self.count += 1
        if self.count == self.groups:
            self.course.stop.set()


class Watching(TorchDispatchMode):  # type: ignore[misc]
    """Notes what would make a host wait for its GPU, and counts lists made into tensors."""

    WAITS = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.item.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.is_nonzero.default,
        torch.ops.aten.equal.default,
        torch.ops.aten.repeat_interleave.Tensor,
    )

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.uploads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        indexed = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_)
        if func in self.WAITS or (
            indexed and any(i is not None and i.dtype == torch.bool for i in args[1])
        ):
            self.waits.append(str(func))
        self.uploads += func is torch.ops.aten.lift_fresh.default
        return func(*args, **kwargs or {})


def test_the_watch_sees_what_it_looks_for() -> None:
    x = torch.arange(4)
    waits: tuple[Callable[[], object], ...] = (
        lambda: x[x > 1],
        lambda: x[0].item(),
        lambda: x[torch.tensor(1)],
    )
    for wait in waits:
        with Watching() as watching:
            wait()
        assert watching.waits, "a wait went by unseen"
    with Watching() as watching:
        _ = x[[1, 2]]
    assert watching.uploads == 1


@pytest.mark.parametrize("steps", [1, 3])
def test_nothing_in_a_step_waits_for_the_device(steps: int) -> None:
    """And what it is told travels in as many copies, however many sequences and layers."""
    forward = make_forward(TorchOptions(invariant=False, layers_a_launch=2))
    copies = []
    for sequences in (2, 6):
        chunks = [chunk(i, 0, 20) for i in range(sequences)]
        chunks = [*chunks[: sequences // 2], *(chunk(i, 30, 1) for i in range(sequences // 2, 6))]
        with Watching() as watching:
            for _ in range(steps):
                logits = forward.logits(chunks, course()).logits
        assert watching.waits == []
        copies.append(watching.uploads)
    assert copies == [steps, steps]
    assert len(logits) == 6


def test_sampling_waits_for_the_device_once() -> None:
    prompt = tokens(10)
    states = [SamplingState(spec, prompt) for spec in SPECS]
    rows = [Row(state, 9, None if i % 2 else b"\xff" * 26) for i, state in enumerate(states)]
    logits = torch.randn((len(rows), 203))
    with Watching() as watching:
        chosen = choose(logits, rows, 3)
    assert watching.waits == []
    with Watching() as watching:
        found = read(chosen, rows)
    assert len(found) == len(rows)


def test_rows_together_choose_what_each_does_alone() -> None:
    torch.manual_seed(1)
    prompt = tokens(10)
    some = torch.randint(0, 256, (40, 26), dtype=torch.uint8)
    rows = []
    for i in range(40):
        state = SamplingState(replace(SPECS[i % 4], seed=i, logprobs=i % 5 - 1), prompt)
        state.computed(10, [i, 7, i])
        rows.append(Row(state, 12, bytes(some[i].tolist()) if i % 3 else None))
    logits = torch.randn((40, 203)) * 4
    logits[5, 3] = torch.nan
    rows[8] = replace(rows[8], mask=bytes(26))
    together = read(choose(logits, rows, 3), rows)
    alone = [read(choose(logits[i : i + 1], [row], 3), [row])[0] for i, row in enumerate(rows)]
    assert together == alone
    assert [i for i, one in enumerate(together) if one.error] == [5, 8]


class Recorder(CpuMachine):
    """Counts how often what it recorded is launched."""

    def __init__(self) -> None:
        self.launched = 0

    def recorded(self, launch: Launch) -> Launch:
        def counted() -> torch.Tensor:
            self.launched += 1
            return launch()

        return counted


def test_padded_steps_give_the_logits_of_others() -> None:
    options = TorchOptions(invariant=False)
    plain, padded, machine = make_forward(options), make_forward(options), Recorder()
    padded.record(machine, CAPACITY.max_seqs)
    prompts = [chunk(i, 0, 10 + i) for i in range(4)]
    for steps in (
        prompts,
        [chunk(i, 10 + i, 1) for i in range(3)],  # one row of four fills up
        [chunk(i, 11 + i, 1) for i in (2, 0)],
        [chunk(3, 13, 1)],
    ):
        found = [one.logits(steps, course(recorded=True)).logits for one in (plain, padded)]
        assert found[0].shape == found[1].shape
        assert torch.allclose(*found, atol=1e-4)
    assert machine.launched == 3, "decode steps were not padded"
    alone = [chunk(0, 12, 1, sample=False)]
    padded.logits(alone, course(recorded=True))
    padded.logits([chunk(3, 14, 1)], course())
    assert machine.launched == 3


@pytest.mark.parametrize("model", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_padded_steps_choose_the_same_tokens(model: Any) -> None:
    """Through the executor, five sequences of which one after the other ends."""
    weights, answers = tiny_weights(model, scale=3.0), []
    for graphs in ("off", "on"):
        executor = TorchExecutor(weights, CAPACITY, TorchOptions(invariant=False, graphs=graphs))
        opens = tuple(Open(RequestId(i), tokens(9 + i), SPECS[i % 4]) for i in range(5))
        chunks = [
            Chunk(one.request, one.prompt, 0, [BlockId(4 * i + j) for j in range(4)], 4, True)
            for i, one in enumerate(opens)
        ]
        plan, answer = StepPlan(0, Lane.UNIFIED, opens, chunks=tuple(chunks)), []
        for step in range(1, 12):
            sampled = executor.submit(plan, {}).result(60).sampled
            answer.append([one.token for one in sampled])
            chunks = [
                Chunk(c.request, [s.token], c.start + len(c.tokens), c.blocks, 4, True)
                for c, s in zip(chunks, sampled, strict=True)
            ][: 5 - step // 3]
            plan = StepPlan(step, Lane.UNIFIED, chunks=tuple(chunks))
        executor.close()
        answers.append(answer)
    assert answers[0] == answers[1]


def test_a_device_that_cannot_record_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(CpuMachine):
        def recorded(self, launch: Launch) -> Launch:
            raise RuntimeError("operation not permitted when stream is capturing")

    forward = make_forward(TorchOptions(invariant=False))
    forward.record(Refusing(), 4)
    assert "not permitted" in caplog.text
    assert len(forward.logits([chunk(0, 0, 1)], course(recorded=True)).logits) == 1


def test_sizes_are_few_and_near() -> None:
    assert padded_sizes(6) == [1, 2, 4, 6]
    sizes = padded_sizes(256)
    assert sizes == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert padded_sizes(1) == [1]


def test_bits_that_must_not_depend_on_neighbours_are_not_padded() -> None:
    with pytest.raises(ConfigError, match="bits"):
        TorchOptions(invariant=True, graphs="on")


@pytest.mark.parametrize("invariant", [True, False])
def test_a_step_stops_between_two_groups_of_layers(invariant: bool) -> None:
    forward = make_forward(TorchOptions(invariant=invariant, layers_a_launch=2))
    stopping = course()
    groups = StopsAfter(2, stopping)
    assert forward.logits([chunk(0, 0, 12)], replace(stopping, launched=groups)).interrupted
    assert groups.count == 2, "six layers are three groups"
    stopping.stop.clear()
    assert not forward.logits([chunk(0, 0, 12)], replace(stopping, launched=groups)).interrupted
    assert groups.count == 5


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_kept_chunks_end_with_the_logits_of_others(invariant: bool, kept: int) -> None:
    """A decode row among them, which stands before the others' rows in the batch."""
    options = TorchOptions(invariant=invariant, layers_a_launch=2)
    whole, stopped = make_forward(options), make_forward(options)
    chunks = [chunk(1, 0, 12), chunk(0, 20, 1), chunk(2, 0, 7), chunk(3, 5, 1), chunk(4, 0, 20)]
    for forward in (whole, stopped):
        forward.logits([chunk(0, 0, 20), chunk(3, 0, 5)], course())
    expected = whole.logits(chunks, course()).logits
    stopping = replace(course(), kept=kept)
    got = stopped.logits(chunks, replace(stopping, launched=StopsAfter(1, stopping)))
    assert got.interrupted
    assert torch.allclose(got.logits, expected[:kept], atol=1e-5)
    every = stopped.logits(chunks, replace(stopping, kept=len(chunks)))
    assert not every.interrupted, "nothing is left to stop"
    assert torch.allclose(every.logits, expected, atol=1e-5)
