"""How many random scenarios these tests try: a machine, a load, and a scheduler run to its end.

python -m tests.core.scenarios     the table and its sum
make scenarios                     ten times as many, new ones each time
"""

import os
from collections.abc import Mapping

from hypothesis import HealthCheck, settings

SCENARIOS: Mapping[str, int] = {
    "everything ends": 250,
    "other policies": 350,
    "interrupts": 200,
    "failures": 120,
    "lanes": 200,
    "residency, one lane": 100,
    "residency, two lanes": 60,
    "floor": 350,
    "work conserving": 350,
    "seats full": 15,
    "blocks full": 15,
    "bound": 60,
}


_TIMES = int(os.environ.get("SCENARIOS_TIMES", "1"))


def scenarios(name: str) -> settings:
    """Hypothesis's settings for one of them. Without deadlines: others use the machine too."""
    return settings(
        max_examples=_TIMES * SCENARIOS[name],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


if __name__ == "__main__":
    for name, count in SCENARIOS.items():
        print(f"{count:5} {name}")
    print(f"{sum(SCENARIOS.values()):5} in all")
