"""Eq. 1 against brute force for up to 12 candidates."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.selection import Item, select

ITEMS = st.lists(
    st.builds(Item, st.sampled_from([10.0, 11.0, 1.0, 1.1, 0.1, 0.11]), st.integers(1, 30)),
    max_size=12,
)


def optimum(items: list[Item], blocks: int, seats: int) -> float:
    """Best value over all subsets."""
    best = 0.0
    for count in range(min(seats, len(items)) + 1):
        for subset in combinations(items, count):
            if sum(i.blocks for i in subset) <= blocks:
                best = max(best, sum(i.value for i in subset))
    return best


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


def test_branch_and_bound_repairs_what_greedy_loses() -> None:
    items = [Item(6.0, 5), Item(5.0, 5), Item(5.0, 5), Item(10.0, 8)]
    selection = select(items, 13, 4)
    assert selection.value == 16.0
    assert selection.gap < 0.05


def test_nothing_fits() -> None:
    assert select([Item(1.0, 5)], 4, 4).chosen == ()
    assert select([], 4, 4).gap == 0.0
