"""What an arrangement of the lanes would compute per second, as the step models predict it."""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.budget import Targets
from headway.core.lane_models import StepModels
from headway.core.plan import Capacity
from headway.core.step_model import StepLoad, StepModel
from headway.core.types import Arrangement, Lane, ServiceClass

_SHORTEST_S = 1e-6

_LOWER_APART = 0.5
"""What split lanes do for classes below realtime counts this much: meanwhile the next realtime
prompt finds but a part of the units (ADR 0025)."""


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """Seated residents of one class that have work.

    rows: answers being decoded. row_context: cached tokens of one of them, on average.
    prompt_tokens: tokens of prompts still to compute. prompt_context: cached tokens before the
        next of them.
    """

    rows: int = 0
    row_context: int = 0
    prompt_tokens: int = 0
    prompt_context: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What wants to be computed. `prompts_due`: whether a prefill lane would find work."""

    classes: Mapping[ServiceClass, ClassDemand]
    prompts_due: bool

    @property
    def one_sided(self) -> bool:
        """Whether no answer is in need of short steps, or no prompt would make them long."""
        return not self.prompts_due or not self.classes[ServiceClass.REALTIME].rows


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an arrangement would do.

    values: seconds of work done per second, by class.
    lateness: seconds of realtime's decode step over the ITL target's; 0 where none decodes.
    prompt_tokens_per_s: of realtime.
    """

    values: Mapping[ServiceClass, float]
    lateness: float
    prompt_tokens_per_s: float


class Outlook:
    """Values arrangements for one demand. Lives for one decision.

    A token counts with the seconds it costs on the unified lane; of classes below realtime it
    counts half where lanes are split. Those of realtime answers count up to the ITL target: beyond
    it they come soon enough, and nothing is won by coming sooner. Steps are valued at that target
    even where none was given and realtime's prompts may make one lane's longer: what arrangements
    do within it is compared (ADR 0021).
    """

    def __init__(
        self, demand: Demand, models: StepModels, targets: Targets, capacity: Capacity
    ) -> None:
        self._demand = demand
        self._models = models
        self._capacity = capacity
        realtime = demand.classes[ServiceClass.REALTIME]
        unified, size = models.of(Lane.UNIFIED, 0), capacity.block_size
        decode_s = unified.predict(_with_rows(StepLoad(), realtime, realtime.rows))
        self._itl_s = targets.itl(decode_s)
        self._max_step_s = targets.max_step(decode_s) if realtime.rows else float("inf")
        self._row_s = decode_s / max(realtime.rows, 1)
        self._token_s = unified.prefill_seconds(size) / size

    def of(self, arrangement: Arrangement) -> Forecast:
        """What it would do."""
        realtime = self._demand.classes[ServiceClass.REALTIME]
        limit_s = min(self._itl_s, self._max_step_s) if realtime.rows else float("inf")
        if not arrangement.split:
            both = self._step(Lane.UNIFIED, 0, limit_s)
            return self._forecast(both, both, 1.0)
        decode = self._step(Lane.DECODE, arrangement.decode_units, limit_s)
        prefill = self._step(Lane.PREFILL, arrangement.prefill_units, self._max_step_s)
        return self._forecast(decode, prefill, _LOWER_APART)

    def _forecast(self, decode: "_Step", prefill: "_Step", lower_worth: float) -> Forecast:
        rank = ServiceClass.REALTIME
        worth = {one: 1.0 if one is rank else lower_worth for one in ServiceClass}
        return Forecast(
            {one: worth[one] * self._value(one, decode, prefill) for one in ServiceClass},
            decode.seconds / max(self._itl_s, _SHORTEST_S) if decode.rows[rank] else 0.0,
            prefill.prompt_tokens[rank] / prefill.seconds,
        )

    def _value(self, rank: ServiceClass, decode: "_Step", prefill: "_Step") -> float:
        decode_s = decode.seconds
        if rank is ServiceClass.REALTIME:
            decode_s = max(decode_s, self._itl_s)
        rows = decode.rows[rank] * self._row_s / decode_s
        return rows + prefill.prompt_tokens[rank] * self._token_s / prefill.seconds

    def _step(self, lane: Lane, units: int, limit_s: float) -> "_Step":
        """A typical step of a lane, filled in the scheduler's order."""
        step = _Step(self._models.of(lane, units), limit_s, self._capacity)
        for rank in ServiceClass:
            wanted = self._demand.classes[rank]
            if lane is not Lane.PREFILL and wanted.rows:
                step.add_rows(rank, wanted)
            if lane is not Lane.DECODE and wanted.prompt_tokens:
                step.add_prompt(rank, wanted)
                if rank is ServiceClass.REALTIME:
                    break  # lower classes wait while realtime prefills
        return step


class _Step:
    """Rows and prompt tokens of a step, by class, within its time limit."""

    def __init__(self, model: StepModel, limit_s: float, capacity: Capacity) -> None:
        self.rows = dict.fromkeys(ServiceClass, 0)
        self.prompt_tokens = dict.fromkeys(ServiceClass, 0)
        self._model = model
        self._limit_s = limit_s
        self._block_size = capacity.block_size
        self._tokens_left = capacity.max_step_tokens
        self._load = StepLoad()

    @property
    def seconds(self) -> float:
        """How long it takes; never nothing."""
        return max(self._model.predict(self._load), _SHORTEST_S)

    def add_rows(self, rank: ServiceClass, wanted: ClassDemand) -> None:
        """All of realtime's, of other classes those that fit."""
        rows = min(wanted.rows, self._tokens_left)
        if rank is not ServiceClass.REALTIME:
            rows = min(rows, self._rows_room(wanted))
        self.rows[rank] = rows
        self._tokens_left -= rows
        self._load = _with_rows(self._load, wanted, rows)

    def _rows_room(self, wanted: ClassDemand) -> int:
        now_s = self.seconds
        row_s = self._model.predict(_with_rows(self._load, wanted, 1)) - now_s
        if row_s <= 0:
            return wanted.rows
        return int(min(max((self._limit_s - now_s) / row_s, 0), wanted.rows))

    def add_prompt(self, rank: ServiceClass, wanted: ClassDemand) -> None:
        """Tokens that fit, however few prompts there are now; a block at least for the highest
        class."""
        context = wanted.prompt_context
        room = self._model.prefill_room(self._load, context, self._limit_s)
        if not any(self.rows[above] for above in ServiceClass if above < rank):
            room = max(room, self._block_size)
        tokens = min(room, self._tokens_left)
        if tokens < self._block_size:
            return
        self.prompt_tokens[rank] = tokens
        self._tokens_left -= tokens
        self._load = self._load.plus(tokens, context, decoding=False)


def _with_rows(load: StepLoad, wanted: ClassDemand, rows: int) -> StepLoad:
    return StepLoad(
        load.prefill_tokens,
        load.prefill_context,
        load.decode_rows + rows,
        load.decode_context + rows * wanted.row_context,
    )
