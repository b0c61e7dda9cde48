"""Logits are the same to the bit whatever happens around a sequence, on every instruction path."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from headway.core.types import BlockId
from tests.native.helpers import OPTIONS, PATHS, Bench, Floats, Run, bench
from tests.tiny import ALL, tiny_weights, tokens

WEIGHTS = {name: tiny_weights(tiny) for name, tiny in ALL.items()}
LENGTH = 300  # more than a split of attention, and not a whole number of blocks
DECODED = 5
NAN_HALF = 0x7E00

CASES = [(model, isa) for model in WEIGHTS for isa in PATHS]


@contextmanager
def bench_of(case: tuple[str, str], threads: int = 1) -> Iterator[Bench]:
    """A bench whose blocks hold NaN until they are written."""
    model, isa = case
    with bench(WEIGHTS[model], replace(OPTIONS, isa=isa, threads=threads)) as it:
        poison(it, it.free)
        yield it


def poison(it: Bench, blocks: list[BlockId]) -> None:
    """Fills blocks with NaN, the worst a former user can leave."""
    for block in blocks:
        it.executor.native.fill_block(False, block, NAN_HALF)


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], list[Floats]]:
    """Logits of the sequence alone: one chunk, one thread, then decoded."""
    expected = {}
    for case in CASES:
        with bench_of(case) as it:
            run = it.run(tokens(LENGTH))
            it.decode(run, DECODED)
            assert all(np.isfinite(row).all() for row in run.logits)
            expected[case] = run.logits
    return expected


def expect(run: Run, logits: list[Floats]) -> None:
    """The run's logits are those, to the bit."""
    assert len(run.logits) == len(logits)
    for got, want in zip(run.logits, logits, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunks_and_neighbours(
    case: tuple[str, str], threads: int, alone: dict[tuple[str, str], list[Floats]]
) -> None:
    """Random chunk sizes beside neighbours that prefill and decode."""
    rng = np.random.default_rng(threads)
    with bench_of(case, threads) as it:
        run = it.run(tokens(LENGTH))
        others = [it.run(tokens(40 + 7 * i, seed=i)) for i in range(4)]
        while len(run.tokens) < LENGTH + DECODED:
            parts = [(run, min(int(rng.integers(1, 90)), len(run.tokens) - run.computed))]
            for other in others:
                missing = len(other.tokens) - other.computed
                if rng.random() < 0.7 and len(other.tokens) < 90:
                    parts.append((other, min(int(rng.integers(1, 30)), missing)))
            rng.shuffle(parts)
            it.step(*parts)
        expect(run, alone[case])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_token_by_token(case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]]) -> None:
    """A prompt fed one token a step, as if decoded: prefill and decode attention agree."""
    with bench_of(case, threads=2) as it:
        run = it.run(tokens(LENGTH))
        while run.computed < LENGTH:
            it.step((run, 1))
        it.decode(run, DECODED - 1)
        expect(run, alone[case])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_decoded_beside_many(
    case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]]
) -> None:
    """So many rows that attention takes all heads of one together, and products take tiles."""
    with bench_of(case, threads=2) as it:
        run = it.run(tokens(LENGTH), room=DECODED)
        others = [it.run(tokens(20 + 3 * i, seed=i), room=DECODED) for i in range(15)]
        it.step(*((other, len(other.tokens)) for other in others[:8]))
        it.step(*((other, len(other.tokens)) for other in others[8:]))
        it.step((run, LENGTH))
        for _ in range(DECODED - 1):
            it.step((run, 1), *((other, 1) for other in others))
        expect(run, alone[case])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_swapped_out_and_in_elsewhere(
    case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]]
) -> None:
    with bench_of(case) as it:
        run = it.run(tokens(LENGTH))
        it.decode(run, 2)
        host = [BlockId(i) for i in range(len(run.blocks))][::-1]
        it.copy(list(zip(run.blocks, host, strict=True)), out=True)
        poison(it, run.blocks)
        run.blocks = it.take(16 * len(host))
        it.copy(list(zip(run.blocks, host, strict=True)), out=False)
        it.decode(run, DECODED - 2)
        expect(run, alone[case])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_recomputed_into_other_blocks(
    case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]]
) -> None:
    with bench_of(case) as it:
        run = it.run(tokens(LENGTH))
        it.decode(run, 3)
        poison(it, run.blocks)
        run.blocks, run.computed = it.take(LENGTH + 32), 0
        it.step((run, 100))
        it.decode(run, DECODED - 3)
        expect(run, alone[case])


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_interrupted_and_done_again(
    case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]]
) -> None:
    with bench_of(case, threads=2) as it:
        run = it.run(tokens(LENGTH))
        interrupted = 0
        while len(run.tokens) < LENGTH + DECODED:
            count = len(run.tokens) - run.computed
            if it.step((run, count), interrupt=True).result.interrupted:
                interrupted += 1
                it.step((run, count))
        assert interrupted > 0
        expect(run, alone[case])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_an_interrupt_takes_the_others_out(
    case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]], threads: int
) -> None:
    """The first goes on in every step, the second loses every one that is interrupted. A step may
    have ended before the interrupt comes, the only long one too."""

    def steps_lost() -> int:
        with bench_of(case, threads=threads) as it:
            first, second = it.run(tokens(LENGTH)), it.run(tokens(LENGTH))
            it.step((first, LENGTH))
            lost = 0
            while len(first.tokens) < LENGTH + DECODED:
                count = len(second.tokens) - second.computed
                end = it.step((first, 1), (second, count), interrupt=True, kept=1).result
                assert [s.request for s in end.sampled][:1] == [first.request]
                lost += end.interrupted
            it.decode(second, LENGTH + DECODED - len(second.tokens))
            expect(first, alone[case])
            expect(second, alone[case])
            return lost

    assert any(steps_lost() for _ in range(10))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_shared_prefix(case: tuple[str, str], alone: dict[tuple[str, str], list[Floats]]) -> None:
    """A second sequence reads the first one's full blocks and computes the rest."""
    with bench_of(case) as it:
        first = it.run(tokens(LENGTH))
        it.step((first, LENGTH))
        second = it.run(tokens(LENGTH))
        shared = (LENGTH - 1) // 16
        second.blocks = first.blocks[:shared] + second.blocks[shared:]
        second.computed = shared * 16
        it.decode(second, DECODED)
        expect(second, alone[case])
