"""The conformance suite's oracle: what a request samples alone, on a fresh executor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headway.core.plan import Executor, Penalties, Sampled, SamplingSpec, Truncation
from headway.testing.feeder import Feed, Feeder

ExecutorFactory = Callable[[], Executor]
Check = Callable[[ExecutorFactory], None]

GREEDY = SamplingSpec(logprobs=3)
SEEDED = SamplingSpec(seed=11, temperature=1.0, logprobs=2)
PENALISED = SamplingSpec(
    seed=5,
    temperature=0.8,
    truncation=Truncation(top_k=20, top_p=0.95, min_p=0.01),
    penalties=Penalties(repetition=1.3, presence=0.4, frequency=0.2),
    bias=((3, 2.5), (4, -2.5)),
    logprobs=1,
)
SPECS = (GREEDY, SEEDED, PENALISED)
DECODED = 6


@contextmanager
def feeding(factory: ExecutorFactory, interrupt: bool = False, kept: int = 0) -> Iterator[Feeder]:
    """A feeder of a fresh executor, which is closed at the end."""
    executor = factory()
    try:
        yield Feeder(executor, interrupt, kept)
    finally:
        executor.close()


def oracle(
    factory: ExecutorFactory, request: int, spec: SamplingSpec, num_tokens: int = DECODED + 1
) -> list[Sampled]:
    """What a request samples alone, its prompt in one chunk."""
    with feeding(factory) as feeder:
        feed = feeder.add(request, prompt_of(factory, request), spec)
        feeder.prefill(feed)
        feeder.decode(feed, num_tokens=num_tokens - 1)
        return feed.sampled


def expect(feed: Feed, expected: Sequence[Sampled]) -> None:
    """Raise AssertionError unless tokens and log probabilities are the same to the bit."""
    got = [(s.token, s.logprobs) for s in feed.sampled]
    want = [(s.token, s.logprobs) for s in expected]
    assert got == want, f"request {feed.request}: {got} is not the oracle's {want}"


def two(feeder: Feeder, factory: ExecutorFactory, spec: SamplingSpec) -> tuple[Feed, Feed]:
    """Request 1, and a greedy request 2."""
    return (
        feeder.add(1, prompt_of(factory, 1), spec),
        feeder.add(2, prompt_of(factory, 2), GREEDY),
    )


def block_size(factory: ExecutorFactory) -> int:
    """Tokens of a block."""
    executor = factory()
    executor.close()
    return executor.capacity.block_size


def prompt_of(factory: ExecutorFactory, request: int) -> list[int]:
    """Two blocks and a bit, different for each request."""
    executor = factory()
    executor.close()
    length = 2 * executor.capacity.block_size + 3 + request
    vocab_size = executor.capacity.vocab_size
    return [(request * 37 + i * i * 11 + i * 5 + 1) % vocab_size for i in range(length)]
