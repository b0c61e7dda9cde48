"""Chooses how prefill and decode share the compute units: together in one lane, or apart in two.

Splitting buys short decode steps: the tokens of running answers no longer wait for the prompts of
others. It costs prefill rate, and it needs work on both sides. So it is worth something only while
realtime answers are decoded under a target for the time between tokens (ITL), and prompts are
there to be computed; otherwise all runs in one lane that has all units.
"""

from enum import Enum

from headway.core.budget import Targets
from headway.core.lane_models import StepModels
from headway.core.outlook import Demand, Forecast, Outlook
from headway.core.plan import Capacity
from headway.core.types import Arrangement, ServiceClass
from headway.errors import ConfigError

_MARGIN = 0.05
"""Rates closer than this are equal: the models are not better than that."""

_HYSTERESIS_S = 0.05
"""Seconds that the present arrangement must have lost before it is given up."""

_LONGEST_S = 0.25
"""A decision counts for this long at most: one stolen time slice is no trend."""

_RETRY_S = 60.0
"""After this long out of use, what was measured of an arrangement may no longer be true."""

_SHARES = 8
"""The units are divided in multiples of an eighth, or one by one where there are fewer."""


class LaneMode(Enum):
    """What the controller may choose from."""

    UNIFIED = "unified"
    SPLIT = "split"
    AUTO = "auto"


class Controller:
    """Compares arrangements by the work each would get done per second, as step models predict it.

    Classes count in their order: the first for which two arrangements differ decides between them.
    Where realtime's answers come later than their target in both, a share of time between tokens
    counts as much as the same share of realtime's prompt rate (ADR 0016).

    It keeps count of the seconds that the present arrangement loses against the best other one, and
    gives it up once that is more than a change may cost; while the present one is ahead, the count
    goes down again. So noise, which goes both ways, changes nothing.
    """

    def __init__(self, mode: LaneMode, capacity: Capacity, targets: Targets) -> None:
        """Raises ConfigError where `mode` needs more compute units than there are."""
        self._candidates = _candidates(mode, capacity.units)
        self._capacity = capacity
        self._targets = targets
        self._lost_s = 0.0
        self._decided_s = 0.0
        self._resting = self.first
        self._left_s: dict[Arrangement, float] = {}

    @property
    def first(self) -> Arrangement:
        """What to begin with: the unified lane, or halves where that isn't allowed."""
        return self._candidates[0]

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self._candidates) == 1

    def decide(
        self, present: Arrangement, demand: Demand, models: StepModels, now: float
    ) -> Arrangement:
        """The arrangement to use from now on, given the one in use."""
        elapsed_s = min(now - self._decided_s, _LONGEST_S)
        self._decided_s = now
        if demand.one_sided and not self.first.split:
            return self._rest(present)
        self._let_retry(present, models, now)
        outlook = Outlook(demand, models, self._targets, self._capacity)
        now_is = outlook.of(present)
        gains = {c: _gain(outlook.of(c), now_is) for c in self._candidates if c != present}
        best = max(gains, key=lambda candidate: gains[candidate])
        self._lost_s = max(self._lost_s + gains[best] * elapsed_s, 0.0)
        if gains.get(self._resting, 0.0) > 0:
            best = self._resting
        elif self._lost_s < _HYSTERESIS_S:
            best = present
        self._resting = best
        if best != present:
            self._lost_s = 0.0
            self._left_s[present] = now
        return best

    def _rest(self, present: Arrangement) -> Arrangement:
        """Units of an idle lane go back at once: nothing is in flight that a change would cost.
        When there is work on both sides again, the arrangement given up now has proved itself."""
        self._lost_s = 0.0
        if present.split:
            self._resting = present
        return self.first

    def _let_retry(self, present: Arrangement, models: StepModels, now: float) -> None:
        """Forget what was measured of arrangements long out of use."""
        self._left_s.pop(present, None)
        for arrangement, left_s in tuple(self._left_s.items()):
            if arrangement.split and now - left_s > _RETRY_S:
                del self._left_s[arrangement]
                for lane in arrangement.lanes:
                    models.forget(lane, arrangement.units(lane))


def _candidates(mode: LaneMode, units: int) -> tuple[Arrangement, ...]:
    """What may be chosen; the first one is the one to begin with."""
    if mode is LaneMode.SPLIT and units < 2:
        raise ConfigError("split lanes need at least two compute units; this executor has one")
    if mode is LaneMode.UNIFIED or units < 2:
        return (Arrangement(),)
    eighths = {round(units * part / _SHARES) for part in range(1, _SHARES)}
    shares = sorted(eighths - {0, units}, key=lambda share: (abs(2 * share - units), share))
    splits = tuple(Arrangement(share, units - share) for share in shares)
    return splits if mode is LaneMode.SPLIT else (Arrangement(), *splits)


def _gain(other: Forecast, present: Forecast) -> float:
    """Share of its time that the present arrangement loses against the other; negative where it
    loses none. Ties count as a small lead of the present one."""
    if _late(present) is not _late(other):
        times = max(present.lateness, 1.0), max(other.lateness, 1.0)
        return (times[0] - times[1]) / max(times)
    for rank in ServiceClass:
        ours, theirs = present.values[rank], other.values[rank]
        if rank is ServiceClass.REALTIME and _both_late(other, present):
            ours = present.prompt_tokens_per_s / present.lateness
            theirs = other.prompt_tokens_per_s / other.lateness
        most = max(theirs, ours)
        if most and abs(theirs - ours) > _MARGIN * most:
            return (theirs - ours) / most
    return -_MARGIN


def _both_late(one: Forecast, other: Forecast) -> bool:
    """Whether neither keeps the ITL target, while realtime has prompts too."""
    late = _late(one) and _late(other)
    return late and min(one.prompt_tokens_per_s, other.prompt_tokens_per_s) > 0


def _late(forecast: Forecast) -> bool:
    """Whether realtime's tokens would come later than the ITL target."""
    return forecast.lateness > 1 + _MARGIN
