"""Eq. 1 against brute force for up to 12 candidates, and step by step by hand."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.selection import Item, select

ITEMS = st.lists(
    st.builds(Item, st.sampled_from([10.0, 11.0, 1.0, 1.1, 0.1, 0.11]), st.integers(1, 30)),
    max_size=12,
)


def optimum(items: list[Item], blocks: int, seats: int) -> float:
    """Best value over all subsets, each made of a smaller one and its last item."""
    subsets = [(0.0, 0, 0)]  # value, blocks, seats
    for item in items:
        subsets += [(v + item.value, b + item.blocks, n + 1) for v, b, n in subsets]
    return max(v for v, b, n in subsets if b <= blocks and n <= seats)


@settings(max_examples=150, deadline=None)
@given(ITEMS, st.integers(0, 60), st.integers(1, 8))
def test_within_the_stated_gap_of_the_optimum(items: list[Item], blocks: int, seats: int) -> None:
    selection = select(items, blocks, seats)
    chosen = [items[i] for i in selection.chosen]
    assert len(set(selection.chosen)) == len(chosen) <= seats
    assert sum(i.blocks for i in chosen) <= blocks
    assert abs(sum(i.value for i in chosen) - selection.value) < 1e-9
    best = optimum(items, blocks, seats)
    assert selection.value <= best + 1e-9
    assert selection.value >= best * (1 - selection.gap) - 1e-9


@settings(max_examples=80, deadline=None)
@given(ITEMS, st.integers(0, 60), st.integers(1, 8))
def test_with_nodes_enough_at_most_one_percent_is_lost(
    items: list[Item], blocks: int, seats: int
) -> None:
    selection = select(items, blocks, seats, nodes=100_000)
    assert selection.value >= 0.99 * optimum(items, blocks, seats) - 1e-9


def test_equal_items_are_taken_in_order() -> None:
    assert select([Item(1.0, 2)] * 5, 6, 8).chosen == (0, 1, 2)


def test_the_chosen_are_named_in_the_order_given_not_in_that_of_density() -> None:
    assert select([Item(1.0, 2), Item(3.0, 2), Item(2.0, 2)], 6, 8).chosen == (0, 1, 2)


@pytest.mark.parametrize("seats", [1, 2, 3, 12])
def test_exact_mode_finds_the_optimum(seats: int) -> None:
    """Residents and newcomers of all classes, and a few odd values; up to twelve candidates."""
    values = [10.0, 11.0, 1.0, 1.1, 0.1, 0.11, 3.7, 0.6]
    numbers = random.Random(seats)
    for _ in range(100):
        count = numbers.randint(1, 12)
        items = [Item(numbers.choice(values), numbers.randint(1, 12)) for _ in range(count)]
        blocks = numbers.randint(1, 30)
        selection = select(items, blocks, seats, nodes=100_000, enough=0.0)
        assert selection.value == pytest.approx(optimum(items, blocks, seats), rel=1e-9)
        assert selection.value == pytest.approx(sum(items[i].value for i in selection.chosen))
        assert selection.gap == pytest.approx(0.0, abs=1e-9)


TRAP = [Item(7.0, 6), Item(5.5, 5), Item(5.5, 5)]
"""For ten blocks: the first is densest and dearest, the others together are worth 11; the
relaxation says 7 + 4/5 x 5.5 = 11.4."""


@pytest.mark.parametrize(
    ("nodes", "value", "bound"),
    [
        (0, 7.0, 11.4),  # greedy alone
        (1, 7.0, 11.4),  # the first taken, or not: at most 11.4, or 11
        (4, 7.0, 11.0),  # all that begins with the first has been seen
        (6, 7.0, 11.0),  # without the first, both others taken, not yet looked at
        (7, 11.0, 11.0),
        (200, 11.0, 11.0),
    ],
)
def test_branch_and_bound_spends_its_nodes_depth_first(
    nodes: int, value: float, bound: float
) -> None:
    selection = select(TRAP, 10, 4, nodes)
    assert selection.value == value
    assert selection.chosen == ((1, 2) if value == 11.0 else (0,))
    assert selection.gap == pytest.approx(1 - value / bound)


def test_one_seat_is_for_the_most_valuable() -> None:
    """The fix-up: by density the small one would take it. The bound knows that there is one seat:
    without it 1 + 10 + 9/20 x 9 would seem possible."""
    selection = select([Item(1.0, 1), Item(10.0, 20), Item(9.0, 20)], 30, 1, nodes=0)
    assert (selection.chosen, selection.value, selection.gap) == ((1,), 10.0, 0.0)
    small = select([Item(0.1, 1), Item(0.1, 1)], 30, 1, nodes=0)
    assert (small.chosen, small.value, small.gap) == ((0,), 0.1, 0.0)


def test_the_fix_up_counts_only_where_it_gives_more() -> None:
    items = [Item(1.0, 1), Item(1.0, 1), Item(1.0, 1), Item(2.0, 3)]
    assert select(items, 3, 4, nodes=0).chosen == (0, 1, 2)
    assert select([Item(1.0, 1), Item(10.0, 20)], 20, 4, nodes=0).chosen == (1,)


def test_seats_bound_by_the_most_valuable_item_left_not_by_the_densest() -> None:
    """Twice the densest would be 4: nothing would seem to be missing from greedy's 2 + 7."""
    items = [Item(2.0, 1), *TRAP]
    assert select(items, 10, 2, nodes=0).value == 9.0
    assert select(items, 10, 2).chosen == (2, 3)


def test_what_can_never_fit_promises_nothing() -> None:
    """A part of it would be worth more than all that fits."""
    selection = select([Item(100.0, 40), Item(1.0, 2)], 30, 4, nodes=0)
    assert (selection.chosen, selection.gap) == ((1,), 0.0)


def test_the_last_block_counts_in_the_bound() -> None:
    for value in (1.0, 0.1):
        selection = select([Item(value, 2)] * 2, 3, 4, nodes=0)
        assert selection.value == value
        assert selection.gap == pytest.approx(1 / 3)


def test_what_is_good_enough_is_not_searched() -> None:
    """The bound is 1 % above greedy: branch and bound would prove that nothing is missing."""
    items = [Item(100.0, 10), Item(10.0, 10)]
    assert select(items, 11, 4).gap == pytest.approx(1 / 101)
    assert select(items, 11, 4, enough=0.0).gap == 0.0


def test_what_is_no_better_is_neither_looked_into_nor_taken() -> None:
    """Two of four equal items fit, and the first two are as good as any. Twelve nodes prove it,
    since a branch that leaves out two of them is not entered."""
    items = [Item(1.0, 2)] * 4
    for nodes in range(20):
        selection = select(items, 5, 8, nodes)
        assert selection.chosen == (0, 1)
        assert (selection.gap == 0.0) == (nodes >= 12)


def test_nothing_fits() -> None:
    assert select([Item(1.0, 5)], 4, 4).chosen == ()
    assert select([], 4, 4).gap == 0.0
