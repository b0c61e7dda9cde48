"""What is expected of the residents: how long they run, how much they grow, when they leave."""

import pytest

from headway.core.headroom import Caution, Forecast, OutputLengths, Relief
from headway.core.prefix import PrefixChain
from headway.core.sequence import Sequence
from headway.core.types import BlockId, ServiceClass
from headway.testing import make_request

REALTIME, STANDARD, BATCH = ServiceClass
SIZE = 16
ENDS = frozenset({2})


def member(
    prompt: int, generated: int, max_tokens: int, blocks: int = 0, stop_ids: frozenset[int] = ENDS
) -> Sequence:
    """A resident that has generated so much."""
    request = make_request(1, STANDARD, prompt, max_tokens, stop_ids=stop_ids)
    sequence = Sequence(
        request, 1, [*request.prompt, *range(generated)], PrefixChain(b"", SIZE), SIZE, STANDARD
    )
    sequence.blocks = [BlockId(i) for i in range(blocks)]
    return sequence


def test_who_ignores_the_end_of_sequence_runs_to_its_limit() -> None:
    lengths = OutputLengths()
    assert lengths.remaining(member(10, 3, 1000, stop_ids=frozenset())) == 997
    assert lengths.remaining(member(10, 1000, 1000, stop_ids=frozenset())) == 1


def test_the_others_are_expected_to_be_as_long_as_their_class_was() -> None:
    lengths = OutputLengths()
    assert lengths.remaining(member(10, 0, 1000)) == 256, "the prior"
    lengths.add(STANDARD, 100)
    lengths.add(STANDARD, 60)
    lengths.add(BATCH, 900)
    assert lengths.remaining(member(10, 0, 1000)) == 80
    assert lengths.remaining(member(10, 30, 1000)) == 50
    assert lengths.remaining(member(10, 75, 1000)) == 20, "a quarter of the mean at least"
    assert lengths.remaining(member(10, 500, 1000)) == 20
    assert lengths.remaining(member(10, 0, 40)) == 40, "not beyond the limit"
    assert lengths.remaining(member(10, 40, 40)) == 1


def test_headroom_is_the_peak_of_the_growth() -> None:
    """When the short one ends, each has grown by two blocks, and by one for last blocks that are
    half full. Then the long one grows on alone, but less than both held."""
    lengths = OutputLengths()
    short = member(16, 0, 32, blocks=1, stop_ids=frozenset())
    long = member(32, 0, 64, blocks=2, stop_ids=frozenset())
    assert Forecast([long, short], lengths, SIZE).headroom_blocks() == 5
    assert Forecast([long], lengths, SIZE).headroom_blocks() == 4
    assert Forecast([], lengths, SIZE).headroom_blocks() == 0


def test_blocks_already_held_for_growth_are_not_counted_again() -> None:
    resident = member(16, 0, 32, blocks=3, stop_ids=frozenset())
    assert Forecast([resident], OutputLengths(), SIZE).headroom_blocks() == 0


@pytest.mark.parametrize(
    ("shortage", "relief"),
    [
        (1, Relief(10, 1)),
        (2, Relief(10, 0)),
        (3, Relief(50, 4)),
        (7, Relief(50, 0)),
        (8, Relief(0, 0)),
    ],
)
def test_relief_comes_with_those_that_end_first(shortage: int, relief: Relief) -> None:
    later = member(60, 0, 50, blocks=5, stop_ids=frozenset())
    sooner = member(20, 0, 10, blocks=2, stop_ids=frozenset())
    assert Forecast([later, sooner], OutputLengths(), SIZE).relief(shortage) == relief


def test_caution_creeps_down_and_jumps_up() -> None:
    caution = Caution()
    first = caution.share
    caution.on_growth_preemption()
    assert caution.share == pytest.approx(first + 0.1)
    caution.on_step()
    assert caution.share == pytest.approx(first + 0.098)
    for _ in range(1000):
        caution.on_step()
    assert caution.share == 0.1
    for _ in range(20):
        caution.on_growth_preemption()
    assert caution.share == 1.0
