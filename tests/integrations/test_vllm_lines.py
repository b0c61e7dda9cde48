"""Waiting requests of the vLLM integration: against a sorted list, whatever comes and goes."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.types import ServiceClass
from headway_vllm.lines import Lines
from headway_vllm.members import Member
from tests.integrations.residents import member

REALTIME, STANDARD, BATCH = ServiceClass


def filled(entries: Iterable[tuple[str, Member]]) -> Lines[str]:
    lines: Lines[str] = Lines()
    for name, history in entries:
        lines.add(name, history)
    return lines


@given(
    st.lists(st.tuples(st.sampled_from(list(ServiceClass)), st.integers(-1, 5), st.booleans())),
    st.data(),
)
def test_the_order_is_that_of_class_promotion_resumption_and_arrival(
    kinds: list[tuple[ServiceClass, int, bool]], data: st.DataObject
) -> None:
    histories = {}
    for number, (service_class, step, promoted) in enumerate(kinds):
        history = member(number, service_class, step=step)
        history.promoted = promoted
        histories[str(number)] = history
    lines = filled(histories.items())
    leaving = data.draw(st.lists(st.sampled_from(sorted(histories)), unique=True)) if kinds else []
    lines.discard([*leaving, "stranger"])
    left = [name for name in histories if name not in leaving]
    expected = sorted(left, key=lambda n: (histories[n].service_class, histories[n].place))
    assert list(lines) == expected
    assert len(lines) == len(expected)
    taken = []
    while (name := lines.first()) is not None:
        lines.remove(name)
        taken.append(name)
    assert taken == expected


def test_what_was_arranged_goes_first_for_as_long_as_it_waits() -> None:
    lines = filled((n, member(i, BATCH)) for i, n in enumerate("abcd"))
    lines.arrange(["d", "gone", "b"], absent=["a"])
    assert list(lines) == ["d", "b", "a", "c"]
    for name in ("d", "b"):
        assert lines.first() == name
        lines.remove(name)
    assert lines.first() == "c", "a is not to be taken in this step"
    lines.remove("c")
    assert lines.first() is None
    lines.arrange(())
    assert lines.first() == "a"


def test_a_promoted_request_takes_its_place_anew() -> None:
    first, second = member(1, BATCH), member(2, BATCH)
    lines = filled([("first", first), ("second", second)])
    second.promoted = True
    lines.add("second", second)
    assert list(lines) == ["second", "first"]
    assert lines.count(BATCH) == 2
    assert lines.leading(BATCH, 1) == ["second"]


def test_removing_a_stranger_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not wait"):
        filled([]).remove("stranger")
