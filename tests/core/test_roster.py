"""Who runs, in which order, with a seat or without; and what is kept current of that."""

from collections.abc import Callable

import pytest

from headway.core.roster import Roster
from headway.core.sequence import Sequence
from headway.core.types import Lane, RequestId, ServiceClass
from headway.testing import make_request
from tests.core.worlds import decoding, waiting, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def resident(
    roster: Roster, number: int, rank: ServiceClass, step: int = 0, tokens: int = 16
) -> Sequence:
    """A request with an answer of up to 8 tokens, taken in as if admitted at `step`."""
    sequence = waiting(world_of(), make_request(number, rank, tokens, 8))
    sequence.admission_step = step
    roster.add(sequence)
    return sequence


def test_residents_stand_by_rank_and_seniority_whatever_the_order_they_came_in() -> None:
    roster = Roster()
    late = resident(roster, 3, BATCH, step=2)
    early = resident(roster, 4, BATCH, step=1)
    urgent = resident(roster, 5, REALTIME, step=3)
    twin = resident(roster, 2, BATCH, step=2)
    assert roster.of(BATCH) == (early, twin, late)
    assert (roster.of(REALTIME), roster.of(STANDARD)) == ((urgent,), ())
    assert roster.up_to(STANDARD) == [urgent]
    assert roster.up_to(BATCH) == [late, early, urgent, twin], "in the order they entered"
    roster.promote(late)
    assert roster.of(BATCH) == (late, early, twin)
    roster.remove(early)
    assert roster.of(BATCH) == (late, twin)
    roster.check()


def test_who_is_promoted_before_it_runs_enters_as_the_most_senior() -> None:
    roster = Roster()
    first = resident(roster, 1, BATCH, step=1)
    second = waiting(world_of(), make_request(2, BATCH))
    roster.promote(second)
    assert roster.of(BATCH) == (first,)
    roster.add(second)
    assert roster.of(BATCH) == (second, first)


def test_seats_are_counted_as_they_are_taken_given_up_and_left() -> None:
    roster = Roster()
    one, two = resident(roster, 1, BATCH), resident(roster, 2, BATCH)
    assert (roster.seats_taken, roster.all_seated) == (2, True)
    roster.unseat(one)
    assert (roster.seats_taken, roster.all_seated, one.seated) == (1, False, False)
    roster.remove(one)
    assert (roster.seats_taken, roster.all_seated) == (1, True)
    roster.unseat(two)
    roster.seat(two)
    assert (roster.seats_taken, two.seated) == (1, True)
    roster.remove(two)
    assert (roster.seats_taken, roster.members) == (0, {})


def test_those_below_are_of_lower_classes_only() -> None:
    roster = Roster()
    resident(roster, 1, STANDARD)
    assert [roster.below(rank) for rank in ServiceClass] == [True, False, False]


@pytest.mark.parametrize(
    "change",
    [
        lambda roster, sequence: resident(roster, 9, BATCH),
        Roster.remove,
        Roster.promote,
        Roster.unseat,
        lambda roster, sequence: roster.want(sequence, Lane.DECODE),
    ],
)
def test_a_ranks_version_changes_with_it_and_no_other_does(
    change: Callable[[Roster, Sequence], object],
) -> None:
    roster = Roster()
    sequence = resident(roster, 1, BATCH)
    before = [roster.version(rank) for rank in ServiceClass]
    change(roster, sequence)
    after = [roster.version(rank) for rank in ServiceClass]
    assert (before[:2], before[2] != after[2]) == (after[:2], True)


def test_a_seat_taken_again_changes_the_version() -> None:
    roster = Roster()
    sequence = resident(roster, 1, BATCH)
    roster.unseat(sequence)
    before = roster.version(BATCH)
    roster.seat(sequence)
    assert roster.version(BATCH) != before


def test_a_version_never_comes_back() -> None:
    """Whoever looked at the residents two changes ago would take them for unchanged."""
    roster = Roster()
    one, two = resident(roster, 1, BATCH), resident(roster, 2, BATCH)
    seen = [roster.version(BATCH)]
    changes: list[Callable[[], None]] = [
        lambda: roster.unseat(two),
        lambda: roster.seat(two),
        lambda: roster.want(one, Lane.DECODE),
        lambda: roster.forget_wanted(Lane.DECODE),
        lambda: roster.promote(two),
        lambda: roster.unseat(two),
        lambda: roster.remove(one),
    ]
    for change in changes:
        change()
        seen.append(roster.version(BATCH))
    assert len(set(seen)) == len(seen)


def test_what_a_lane_wanted_is_forgotten_by_its_next_plan_and_by_the_unified_lane() -> None:
    roster = Roster()
    one, two, gone = (resident(roster, i, BATCH) for i in (1, 2, 3))
    for sequence, lane in ((one, Lane.DECODE), (two, Lane.PREFILL), (gone, Lane.PREFILL)):
        roster.want(sequence, lane)
    roster.remove(gone)
    assert gone.wanted_by is None
    before = roster.version(BATCH)
    roster.forget_wanted(Lane.DECODE)
    assert (one.wanted_by, two.wanted_by) == (None, Lane.PREFILL)
    assert roster.version(BATCH) != before
    before = roster.version(BATCH)
    roster.forget_wanted(Lane.DECODE)
    assert roster.version(BATCH) == before, "nothing was left to forget"
    roster.forget_wanted(Lane.UNIFIED)
    assert two.wanted_by is None
    before = roster.version(BATCH)
    roster.forget_wanted(Lane.UNIFIED)
    assert roster.version(BATCH) == before, "what was forgotten stays so"


def test_no_answers_take_more_blocks_than_the_bound_on_growth() -> None:
    """Two answers of 16 + 8 tokens are 48 tokens, three blocks, and one for halves; each holds
    two."""
    world = world_of()
    for number, rank in ((1, REALTIME), (2, STANDARD), (3, BATCH)):
        decoding(world, make_request(number, rank, 16, 8))
    assert [len(s.blocks) for s in world.residents.values()] == [2, 2, 2]
    assert [world.roster.most_growth_blocks(rank, 16) for rank in ServiceClass] == [0, 0, 0]
    assert [world.roster.most_growth_blocks(rank, 4) for rank in ServiceClass] == [4, 9, 13]
    world.roster.remove(world.residents[RequestId(2)])
    assert world.roster.most_growth_blocks(BATCH, 4) == 9


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda roster: roster.members.clear(), "out of order"),
        (lambda roster: setattr(roster, "seats_taken", 1), "seats are miscounted"),
        (lambda roster: setattr(roster.members[1], "most_tokens", 5), "most tokens"),
        (lambda roster: setattr(roster.members[1], "admission_step", 9), "out of order"),
    ],
)
def test_a_roster_that_went_wrong_says_so(damage: Callable[[Roster], None], complaint: str) -> None:
    roster = Roster()
    for number in (1, 2):
        resident(roster, number, BATCH)
    damage(roster)
    with pytest.raises(RuntimeError, match=complaint):
        roster.check()
