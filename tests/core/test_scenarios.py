"""Two thousand random scenarios in each run of the tests."""

import re
from pathlib import Path

from tests.core.scenarios import SCENARIOS, scenarios


def test_there_are_two_thousand_and_each_is_tried() -> None:
    here = Path(__file__).parent
    used = [
        name
        for path in here.glob("test_*.py")
        for name in re.findall(r'^@scenarios\("(.+)"\)$', path.read_text(), re.MULTILINE)
    ]
    assert sorted(used) == sorted(SCENARIOS)
    assert sum(scenarios(name).max_examples for name in used) >= 2000
