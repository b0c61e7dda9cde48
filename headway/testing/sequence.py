"""What the scripted executor knows of one request, and how it draws that request's tokens."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from headway.core.plan import Open, Sampled, SamplingSpec, TokenLogprobs
from headway.core.types import BlockId, RequestId
from headway.executors.rules import PlanFaultError
from headway.testing.cells import CELL_BYTES, chain_root, digest, extend_chain

STRONG_BIAS = 50.0
"""A bias beyond this decides alone; a smaller one only changes what is drawn."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the modelled network says.

    vocab_size: token ids are in [0, vocab_size).
    eos_id: the end-of-sequence token, drawn with `eos_probability` and never otherwise.
    outputs: answers spelled out by request; a request not in it, or past the end of its list,
        gets tokens drawn from the cells it reads.
    """

    vocab_size: int = 1000
    eos_id: int = 0
    eos_probability: float = 0.0
    outputs: Mapping[RequestId, Sequence[int]] = field(default_factory=dict)


@dataclass(slots=True)
class SequenceState:
    """Tokens so far, the cells they must have left in the cache, and the table last seen."""

    prompt: tuple[int, ...]
    spec: SamplingSpec
    truth: bytearray
    output: list[int] = field(default_factory=list)
    failed: bool = False
    table: Sequence[BlockId] | None = None
    seen_blocks: tuple[BlockId, ...] = ()

    @classmethod
    def from_open(cls, opened: Open) -> "SequenceState":
        """State of a request whose prompt is known and whose output is empty."""
        prompt = tuple(opened.prompt)
        truth = bytearray(extend_chain(chain_root(), prompt, 0))
        return cls(prompt, opened.sampling, truth)

    @property
    def num_tokens(self) -> int:
        """Length of prompt and output together."""
        return len(self.prompt) + len(self.output)

    def token_at(self, position: int) -> int:
        """The token a chunk must carry at a position. Raises PlanFaultError past the last one."""
        if position < len(self.prompt):
            return self.prompt[position]
        if position >= self.num_tokens:
            raise PlanFaultError(f"no token is known at position {position}")
        return self.output[position - len(self.prompt)]

    def append(self, token: int) -> None:
        """Add a sampled token and the cell it will leave."""
        last = last_cell(bytes(self.truth))
        self.truth += extend_chain(last, [token], self.num_tokens)
        self.output.append(token)

    def check_table(self, request: RequestId, blocks: Sequence[BlockId], num_blocks: int) -> None:
        """Raise PlanFaultError if the list seen before was changed rather than appended to."""
        head = tuple(blocks[: len(self.seen_blocks)])
        if blocks is self.table and head != self.seen_blocks[: len(head)]:
            raise PlanFaultError(f"request {request}: its block table changed in place")
        self.table, self.seen_blocks = blocks, tuple(blocks[:num_blocks])


def last_cell(cells: bytes) -> int:
    """The last of some cells, or what stands before the first."""
    if not cells:
        return chain_root()
    return int.from_bytes(cells[-CELL_BYTES:], "little")


def draw(
    script: Script, request: RequestId, sequence: SequenceState, cells: bytes, mask: bytes | None
) -> Sampled:
    """The next token, a function of every cell read and of the request's sampling alone."""
    spec = sequence.spec
    value = digest(cells, _sampling_key(sequence))
    listed = script.outputs.get(request, ())
    if len(sequence.output) < len(listed):
        token = int(listed[len(sequence.output)])
    elif (value >> 40) / (1 << 24) < script.eos_probability:
        token = script.eos_id
    else:
        token = value % (script.vocab_size - 1)
        token += int(token >= script.eos_id)
    if mask is not None or spec.bias:
        token = _next_allowed(script.vocab_size, token, spec, mask)
    wanted = spec.logprobs
    return Sampled(request, token, _logprobs(script, cells, token, wanted) if wanted >= 0 else None)


def _sampling_key(sequence: SequenceState) -> bytes:
    spec = sequence.spec
    parts: list[object] = [spec.bias, spec.penalties]
    if spec.temperature > 0 and spec.truncation.top_k != 1:
        parts += [spec.seed, spec.choice, spec.temperature, spec.truncation, sequence.num_tokens]
    if spec.penalties != SamplingSpec().penalties:
        parts.append(sequence.output)
    return repr(parts).encode()


def _next_allowed(vocab_size: int, token: int, spec: SamplingSpec, mask: bytes | None) -> int:
    """The first token from `token` on that neither the mask nor a large bias rules out."""
    forced = {candidate for candidate, value in spec.bias if value > STRONG_BIAS}
    banned = {candidate for candidate, value in spec.bias if value < -STRONG_BIAS}
    for candidate in chain(range(token, vocab_size), range(token)):
        allowed = mask is None or mask[candidate // 8] >> candidate % 8 & 1
        if allowed and candidate not in banned and (not forced or candidate in forced):
            return candidate
    raise PlanFaultError("no token is allowed")


def _logprobs(script: Script, cells: bytes, token: int, top: int) -> TokenLogprobs:
    def value_of(candidate: int) -> float:
        return -(digest(cells, struct.pack("<q", candidate)) % 100_000) / 10_000

    first = digest(cells, b"top")
    candidates = {(first + i) % script.vocab_size for i in range(top)}
    ranked = sorted(((c, value_of(c)) for c in candidates), key=lambda pair: (-pair[1], pair[0]))
    return TokenLogprobs(value_of(token), tuple(ranked))
