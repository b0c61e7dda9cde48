"""From logits to tokens, on the device: the same rules as the CPU executor's, in tensors.

All rows of a step go together, so that the launches don't grow with them. Nothing here waits for
the device; what came of it is one tensor, which `read` fetches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from headway.core.plan import Penalties, SamplingSpec, TokenLogprobs
from headway.executors.torch_.upload import upload, upload_bytes

_GREEDY_BELOW = 1e-5
_MASK = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_FIXED_COLUMNS = 4
NOT_NUMBERS = "the model's logits are not numbers"
NOTHING_ALLOWED = "no token is allowed here"


def uniforms(keys: Sequence[tuple[int, int, int]]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, choice, position): Philox 4x32-10 (Salmon et al. 2011)."""
    words = np.array([[n & (1 << 64) - 1 for n in key] for key in keys], np.uint64).reshape(-1, 3)
    low, high = words & _MASK, words >> _HALF
    key = [low[:, 0], high[:, 0]]
    counter = [low[:, 2], high[:, 2], low[:, 1], high[:, 1]]
    for _ in range(10):
        a, b = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        counter = [
            (b >> _HALF) ^ counter[1] ^ key[0],
            b & _MASK,
            (a >> _HALF) ^ counter[3] ^ key[1],
            a & _MASK,
        ]
        key = [key[i] + _WEYL[i] & _MASK for i in range(2)]
    whole = (counter[0] << _HALF | counter[1]) >> np.uint64(11)
    return whole.astype(np.float64) * 2.0**-53


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
class Row:
    """Who samples: a request, its last token's position, and the tokens that a grammar allows."""

    state: SamplingState
    position: int
    mask: bytes | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """What came of one row: a token, or the reason why there is none."""

    token: int
    error: str | None
    logprobs: TokenLogprobs | None


def choose(logits: torch.Tensor, rows: Sequence[Row], most_logprobs: int) -> torch.Tensor:
    """Sample the token after each row's position from its logits, [rows, vocab] float32.

    Gives [rows, columns] float64, in which every number of them is exact:

        token | not numbers | nothing allowed | its log probability | ids of the top | theirs
    """
    x = _masked(_biased(_penalised(logits, rows), rows), rows)
    top = x.max(-1).values
    none_left = top == -torch.inf
    bad = logits.isnan().any(-1) | logits.max(-1).values.isinf()
    bad = bad | x.isnan().any(-1) | (top == torch.inf)
    tokens = _drawn(x, rows)
    columns = [tokens, bad, none_left]
    logprobs = torch.log_softmax(logits, -1) if most_logprobs >= 0 else torch.zeros_like(logits)
    columns.append(logprobs.gather(1, tokens[:, None])[:, 0])
    parts = [torch.stack([column.double() for column in columns], 1)]
    if most_logprobs > 0:
        ids = _ranked(logits)[:, :most_logprobs]
        parts += [ids.double(), logprobs.gather(1, ids).double()]
    return torch.cat(parts, 1)


def read(chosen: torch.Tensor, rows: Sequence[Row]) -> list[Chosen]:
    """Fetch what `choose` gave: the one place of a step that waits for the device."""
    found = []
    for row, values in zip(rows, chosen.tolist(), strict=True):
        token, bad, none_left, logprob = values[:_FIXED_COLUMNS]
        error = (
            (NOTHING_ALLOWED if none_left and not bad else NOT_NUMBERS)
            if bad or none_left
            else None
        )
        found.append(Chosen(int(token), error, _logprobs(row, logprob, values[_FIXED_COLUMNS:])))
    return found


def most_logprobs(rows: Iterable[Row]) -> int:
    """Of the rows' top log probabilities; -1 where nobody asks for any."""
    return max((row.state.spec.logprobs for row in rows), default=-1)


def _logprobs(row: Row, logprob: float, top: Sequence[float]) -> TokenLogprobs | None:
    asked, there = row.state.spec.logprobs, len(top) // 2
    if asked < 0:
        return None
    ids = [int(token) for token in top[:asked]]
    return TokenLogprobs(logprob, tuple(zip(ids, top[there : there + asked], strict=True)))


def _penalised(x: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Where any row has penalties, a copy with them."""
    where: tuple[list[int], list[int]] = ([], [])
    numbers = []
    for i, row in enumerate(rows):
        penalties = row.state.spec.penalties
        if penalties != Penalties():
            for token, times in row.state.counts(row.position).items():
                where[0].append(i)
                where[1].append(token)
                numbers.append((times, *_three(penalties)))
    if not numbers:
        return x
    at = tuple(upload(where, torch.int64, x.device))
    times, repetition, presence, frequency = upload(numbers, torch.float32, x.device).T
    seen = x[at]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    off = (presence + frequency * times) * (times > 0)
    return x.index_put(at, seen - off)


def _three(penalties: Penalties) -> tuple[float, float, float]:
    return penalties.repetition, penalties.presence, penalties.frequency


def _biased(x: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Where any row has a bias, a copy with it."""
    found = [(i, token, by) for i, row in enumerate(rows) for token, by in row.state.spec.bias]
    if not found:
        return x
    where, tokens, by = zip(*found, strict=True)
    at = tuple(upload((where, tokens), torch.int64, x.device))
    return x.index_put(at, upload(by, x.dtype, x.device), accumulate=True)


def _masked(x: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Where any row has a grammar, a copy with what it forbids at minus infinity."""
    under = [i for i, row in enumerate(rows) if row.mask is not None]
    if not under:
        return x
    packed = upload_bytes(b"".join(rows[i].mask or b"" for i in under), x.device)
    packed = packed.view(len(under), -1, 1)
    bits = packed >> torch.arange(8, dtype=torch.uint8, device=x.device) & 1
    where = upload(under, torch.int64, x.device)
    allowed = bits.flatten(1)[:, : x.shape[1]] != 0
    return x.index_copy(0, where, torch.where(allowed, x[where], -torch.inf))


def _drawn(x: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """[rows] int64: the first of the likeliest, or a draw."""
    tokens = x.argmax(-1)
    drawn = [i for i, row in enumerate(rows) if row.state.spec.temperature >= _GREEDY_BELOW]
    whole = [i for i in drawn if not _cut(rows[i].state.spec)]
    for some, draw in ((whole, _draw), (sorted({*drawn} - {*whole}), _draw_cut)):
        if some:
            where = upload(some, torch.int64, x.device)
            tokens = tokens.index_copy(0, where, draw(x[where], _numbers(rows, some, x.device)))
    return tokens


def _cut(spec: SamplingSpec) -> bool:
    """Whether tokens have to be ranked."""
    return spec.truncation.top_k > 0 or spec.truncation.top_p < 1


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Of rows that draw, [rows, 1] each: 1 / temperature and min_p in float32, top_p, top_k and the
    random number in float64."""

    sharpness: torch.Tensor
    min_p: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    random: torch.Tensor


def _numbers(rows: Sequence[Row], some: Sequence[int], device: torch.device) -> _Numbers:
    specs = [rows[i].state.spec for i in some]
    keys = [(s.seed, s.choice, rows[i].position + 1) for i, s in zip(some, specs, strict=True)]
    table = [
        (1.0 / s.temperature, s.truncation.min_p, s.truncation.top_p, s.truncation.top_k, number)
        for s, number in zip(specs, uniforms(keys).tolist(), strict=True)
    ]
    sharpness, min_p, top_p, top_k, random = upload(table, torch.float64, device).split(1, dim=1)
    return _Numbers(sharpness.float(), min_p.float(), top_p, top_k, random)


def _draw(x: torch.Tensor, numbers: _Numbers) -> torch.Tensor:
    weights = _weights(x, numbers)
    return _at(torch.where(weights >= numbers.min_p, weights, 0).double(), numbers.random)


def _draw_cut(x: torch.Tensor, numbers: _Numbers) -> torch.Tensor:
    order = _ranked(x)
    weights = _weights(x, numbers).gather(1, order)
    place = torch.arange(x.shape[1], device=x.device)
    within = (place < numbers.top_k) | (numbers.top_k == 0)
    kept = torch.where(within, weights.double(), 0)
    before = kept.cumsum(1) - kept
    within = (before < numbers.top_p * kept.sum(1, keepdim=True)) | (numbers.top_p >= 1)
    kept = torch.where(within | (place == 0), kept, 0)
    kept = torch.where(weights >= numbers.min_p, kept, 0)
    return order.gather(1, _at(kept, numbers.random)[:, None])[:, 0]


def _weights(x: torch.Tensor, numbers: _Numbers) -> torch.Tensor:
    """Of tokens, the likeliest 1."""
    return ((x - x.max(-1, keepdim=True).values) * numbers.sharpness).exp()


def _ranked(x: torch.Tensor) -> torch.Tensor:
    """Token ids, most likely first, ties by id."""
    return x.argsort(dim=-1, descending=True, stable=True)


def _at(weights: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """The first place at which the running sum exceeds a share of the whole."""
    sums = weights.cumsum(1)
    found = torch.searchsorted(sums, sums[:, -1:] * random, right=True)[:, 0]
    return found.clamp(max=weights.shape[1] - 1)
