"""The contract between scheduler and executor: plans, results, and the executor protocol.

Values here are frozen, slotted and self-contained; nothing else is shared between the two.

A step runs in this order: `opens`, `swap_out` copies, `swap_in` copies, `chunks`, `closes`.
A block freed by `swap_out` may be written by the same plan only; any other lane waits for the
commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headway.core.types import BlockId, Lane, RequestId


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens may be sampled. Applied in the order top_k, top_p, min_p.

    top_k: most likely tokens kept; 0 keeps all.
    top_p: smallest set whose probability reaches this, in (0, 1]; 1 keeps all.
    min_p: tokens at least this fraction of the most likely one's probability, in [0, 1].
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties on tokens seen. Repetition counts prompt and output, the others output only.

    repetition: divides positive and multiplies negative logits; 1 = none (CTRL, Keskar 2019).
    presence, frequency: subtracted once, and per occurrence; 0 = none (OpenAI's definition).
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How tokens of one request are chosen. A pure function of this and the tokens so far.

    seed, choice: with the token's absolute position they key the counter-based generator.
    temperature: 0 is greedy, ties by the smaller token id.
    bias: (token id, value added to its logit) pairs.
    logprobs: -1 none; k >= 0 the sampled token's and the top k's log probabilities, raw
        (before temperature, bias, penalties and truncation).
    """

    seed: int = 0
    choice: int = 0
    temperature: float = 0.0
    truncation: Truncation = Truncation()
    penalties: Penalties = Penalties()
    bias: tuple[tuple[int, float], ...] = ()
    logprobs: int = -1


@dataclass(frozen=True, slots=True)
class Open:
    """Introduces a request to the executor, before its first chunk.

    The executor builds its sampling state from `sampling` and `prompt` here. Output tokens reach
    it in chunks: a chunk token at position p >= len(prompt) is output, counted once for each p,
    so that chunks done again (after an interrupt or a recompute) change nothing.
    """

    request: RequestId
    prompt: Sequence[int]
    sampling: SamplingSpec


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copies one whole block between the tiers."""

    device: BlockId
    host: BlockId


class Chunk(NamedTuple):
    """Tokens of one sequence to compute in a step. A decode row is a chunk of length one.

        position:  0 ........ start ............ start + len(tokens)
                   [ in cache ][ computed now    ]
        block i of the table holds positions [i * block_size, (i + 1) * block_size)

    blocks: the sequence's block table, append-only; only the first `num_blocks` entries count
        (the list may grow after the plan was made). Copied only when a plan is logged.
    sample: whether to sample a token from the last position's logits.

    A named tuple, as `Sampled` is: hundreds are made in a step, each in a third of the time that a
    frozen dataclass takes.
    """

    request: RequestId
    tokens: Sequence[int]
    start: int
    blocks: Sequence[BlockId]
    num_blocks: int
    sample: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step on one lane. Empty plans (no copies, no chunks) are not submitted.

    units: compute units of the lane in this step; 0 leaves their number to the executor. Plans in
        flight at once never ask for more than the executor has, together.
    kept: so many leading chunks go on when the step is interrupted; the others commit nothing then.
    """

    step: int
    lane: Lane
    opens: tuple[Open, ...] = ()
    closes: tuple[RequestId, ...] = ()
    swap_out: tuple[BlockCopy, ...] = ()
    swap_in: tuple[BlockCopy, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    units: int = 0
    kept: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing for an executor to do."""
        return not (self.opens or self.closes or self.swap_out or self.swap_in or self.chunks)

    def computed(self, interrupted: bool) -> tuple[Chunk, ...]:
        """The chunks that a step has computed: those it kept, if it was interrupted."""
        return self.chunks[: self.kept] if interrupted else self.chunks


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of the sampled token and of the most likely ones, most likely first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampled(NamedTuple):
    """A token sampled by a chunk with `sample` set."""

    request: RequestId
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class RequestError:
    """One request failed in a step (NaN logits, for example); its neighbours are untouched."""

    request: RequestId
    message: str


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds the phases of a step took, measured by the executor."""

    copy_out_s: float = 0.0
    copy_in_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a plan.

    interrupted: copies were done, and of the chunks the plan's first `kept`; the others commit
        nothing (their cache writes are done again).
    """

    step: int
    sampled: tuple[Sampled, ...] = ()
    errors: tuple[RequestError, ...] = ()
    timing: StepTiming = StepTiming()
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A plan whose handle raised: its requests fail with `message`, its blocks are reclaimed."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor offers. Scheduler and server size themselves by it.

    units: compute units (cores; SMs on a GPU) that lanes can divide among them. With fewer than
        two there is the unified lane only.
    """

    kv_blocks: int
    host_blocks: int
    block_size: int
    max_seqs: int
    max_step_tokens: int
    max_model_len: int
    vocab_size: int
    block_bytes: int = 0
    units: int = 1


class StepHandle(Protocol):
    """A submitted step."""

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Wait for the step. Raises ExecutorError if it failed as a whole, TimeoutError if the
        time is up first (the step goes on)."""
        ...

    def done(self) -> bool:
        """Whether `result` returns at once."""
        ...

    def interrupt(self) -> None:
        """Ask the step to go on with the plan's `kept` chunks alone from its next layer boundary,
        or to stop there if none are; it may still end normally. From any thread. Does nothing where
        interruption isn't supported, or the step has ended."""
        ...


Masks = Mapping[RequestId, bytes]
"""Allowed tokens of rows under a grammar: little-endian bit i of byte i // 8 allows token i."""


class Executor(Protocol):
    """Runs plans. Implementations pass `headway.testing.conformance`."""

    @property
    def capacity(self) -> Capacity:
        """Sizes, fixed for the executor's life."""
        ...

    def submit(self, plan: StepPlan, masks: Masks) -> StepHandle:
        """Start a step and return at once. One step in flight per lane; called from one thread."""
        ...

    def close(self) -> None:
        """Free threads and memory; idempotent. Steps in flight end first."""
        ...
