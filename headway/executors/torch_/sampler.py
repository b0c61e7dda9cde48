"""From logits to tokens, on the device: the same rules as the CPU executor's, in tensors.

Nothing here waits for the device; `Choice` holds tensors that the executor reads once a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from headway.core.plan import Penalties, SamplingSpec, Truncation

_GREEDY_BELOW = 1e-5
_MASK = (1 << 32) - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
NOT_NUMBERS = "the model's logits are not numbers"
NOTHING_ALLOWED = "no token is allowed here"


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) for (seed, choice, position): Philox 4x32-10 (Salmon et al. 2011)."""
    key = [seed & _MASK, seed >> 32 & _MASK]
    counter = [position & _MASK, position >> 32 & _MASK, choice & _MASK, choice >> 32 & _MASK]
    for _ in range(10):
        a, b = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        counter = [
            (b >> 32) ^ counter[1] ^ key[0],
            b & _MASK,
            (a >> 32) ^ counter[3] ^ key[1],
            a & _MASK,
        ]
        key = [(key[0] + _WEYL[0]) & _MASK, (key[1] + _WEYL[1]) & _MASK]
    return float(((counter[0] << 32 | counter[1]) >> 11) * 2.0**-53)


@dataclass(slots=True)
class SamplingState:
    """What is known of a request: its settings, prompt and output by position."""

    spec: SamplingSpec
    prompt: Sequence[int]
    output: dict[int, int] = field(default_factory=dict)

    def computed(self, start: int, tokens: Sequence[int]) -> None:
        """Tokens of a chunk; those behind the prompt are output. Idempotent."""
        if self.spec.penalties == Penalties():
            return
        for at, token in enumerate(tokens, start):
            if at >= len(self.prompt):
                self.output[at] = token

    def counts(self, position: int) -> Mapping[int, int]:
        """Tokens seen up to a position, with their occurrences in the output."""
        counts = dict.fromkeys(self.prompt, 0)
        for at, token in self.output.items():
            if at <= position:
                counts[token] = counts.get(token, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class Choice:
    """What came of one row, still on the device.

    token: int64 scalar. raw_bad, none_left: bool scalars; the request failed.
    logprob, top_ids, top: float32 scalar and [k] each; empty without log probabilities.
    """

    token: torch.Tensor
    raw_bad: torch.Tensor
    none_left: torch.Tensor
    logprob: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor


def choose(logits: torch.Tensor, state: SamplingState, position: int, mask: bytes | None) -> Choice:
    """Sample the token after `position` from a row of logits, [vocab] float32."""
    spec = state.spec
    raw_bad = logits.isnan().any() | logits.max().isinf()
    x = _restricted(logits, state, position, mask)
    none_left = x.max() == -torch.inf
    raw_bad = raw_bad | x.isnan().any() | (x.max() == torch.inf)
    token = _draw(x, spec, position)
    empty = logits.new_empty(0)
    if spec.logprobs < 0:
        return Choice(token, raw_bad, none_left, empty, empty, empty)
    logprobs = torch.log_softmax(logits, -1)
    # Stable, so that ties go by token id.
    top_ids = _ranked(logits)[: spec.logprobs]
    return Choice(token, raw_bad, none_left, logprobs[token], top_ids, logprobs[top_ids])


def _restricted(
    logits: torch.Tensor, state: SamplingState, position: int, mask: bytes | None
) -> torch.Tensor:
    """Penalties, bias and grammar on a copy."""
    spec = state.spec
    x = logits.clone()
    if spec.penalties != Penalties():
        x = _penalised(x, spec.penalties, state.counts(position))
    if spec.bias:
        ids, values = zip(*spec.bias, strict=True)
        where = torch.tensor(ids, device=x.device)
        x = x.index_add(0, where, torch.tensor(values, dtype=x.dtype, device=x.device))
    if mask is not None:
        packed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(x.device)
        bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=x.device) & 1
        x = x.masked_fill(bits.flatten()[: x.shape[0]] == 0, -torch.inf)
    return x


def _penalised(x: torch.Tensor, penalties: Penalties, counts: Mapping[int, int]) -> torch.Tensor:
    where = torch.tensor(list(counts), dtype=torch.int64, device=x.device)
    times = torch.tensor(list(counts.values()), dtype=x.dtype, device=x.device)
    seen = x[where]
    seen = torch.where(seen > 0, seen / penalties.repetition, seen * penalties.repetition)
    off = (penalties.presence + penalties.frequency * times) * (times > 0)
    x[where] = seen - off
    return x


def _draw(x: torch.Tensor, spec: SamplingSpec, position: int) -> torch.Tensor:
    if spec.temperature < _GREEDY_BELOW:
        return x.argmax()  # the first of equals
    weights = ((x - x.max()) * (1.0 / spec.temperature)).exp()
    number = uniform(spec.seed, spec.choice, position + 1)
    if spec.truncation.top_k == 0 and spec.truncation.top_p >= 1:
        kept = torch.where(weights >= spec.truncation.min_p, weights, 0)
        return _at(kept, number)
    order = _ranked(x)
    return order[_at(_kept(weights[order], spec.truncation), number)]


def _ranked(x: torch.Tensor) -> torch.Tensor:
    """Token ids, most likely first, ties by id."""
    return x.argsort(descending=True, stable=True)


def _kept(weights: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Weights, most likely first, of the tokens that stay; 0 for the others."""
    kept = weights.double()
    if truncation.top_k:
        kept[truncation.top_k :] = 0
    if truncation.top_p < 1:
        before = kept.cumsum(0) - kept
        kept = torch.where(before < truncation.top_p * kept.sum(), kept, 0)
        kept[0] = weights[0]
    return torch.where(weights >= truncation.min_p, kept, 0)


def _at(weights: torch.Tensor, number: float) -> torch.Tensor:
    """The first place at which the running sum exceeds a share of the whole."""
    sums = weights.double().cumsum(0)
    found = torch.searchsorted(sums, sums[-1:] * number, right=True)[0]
    return found.clamp(max=weights.shape[0] - 1)
