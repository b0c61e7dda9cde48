"""Step models by lane and number of compute units."""

from headway.core.step_model import StepModel
from headway.core.types import Lane

_SPEEDUP = 0.7
"""A lane with x times the units takes x^-0.7 of the time: on two cores, 1.6 for one of them. Steps
share memory bandwidth and wait at barriers, so that it is not x^-1."""


class StepModels:
    """A step model for each lane and number of compute units it ran on.

    One that has seen no step stands on the likest that has: the same lane on other units, else the
    unified lane, whose steps are made of the same work.
    """

    def __init__(self, units: int) -> None:
        """`units`: all of the executor's."""
        self._units = max(units, 1)
        self._models: dict[tuple[Lane, int], StepModel] = {}

    def of(self, lane: Lane, units: int) -> StepModel:
        """The model of a lane that has so many units; 0 where the executor decides that."""
        model = self._models.get((lane, units))
        if model is None or not model.steps:
            model = self._models[lane, units] = self._expected(lane, units)
        return model

    @property
    def median_error(self) -> float:
        """The largest median relative error among the models that have seen steps."""
        return max((m.median_error for m in self._models.values() if m.steps), default=0.0)

    def forget(self, lane: Lane, units: int) -> None:
        """Begin anew."""
        self._models.pop((lane, units), None)

    def _expected(self, lane: Lane, units: int) -> StepModel:
        seen = [key for key, model in self._models.items() if model.steps]
        known = [key for key in seen if key[0] is lane] or [
            key for key in seen if key[0] is Lane.UNIFIED
        ]
        if not known:
            return StepModel()
        count = units or self._units
        likest = min(known, key=lambda key: abs((key[1] or self._units) - count))
        factor = ((likest[1] or self._units) / count) ** _SPEEDUP
        return self._models[likest].scaled(factor)
