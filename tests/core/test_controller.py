"""When prefill and decode are put on lanes of their own, and when not."""

import math
import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from headway.core.budget import Targets
from headway.core.config import SchedulerConfig
from headway.core.controller import Controller, LaneMode
from headway.core.lane_models import StepModels
from headway.core.outlook import ClassDemand, Demand
from headway.core.plan import StepPlan, StepTiming
from headway.core.scheduler import Scheduler
from headway.core.step_model import StepLoad
from headway.core.types import Arrangement, Lane, RequestId, ServiceClass
from headway.errors import ConfigError
from headway.testing import (
    LaneSimulation,
    ManualClock,
    ScriptedExecutor,
    make_capacity,
    make_request,
)
from headway.testing.driver import Trace

REALTIME, STANDARD, BATCH = ServiceClass

UNIFIED, HALVES = Arrangement(), Arrangement(1, 1)

PROMPT = 300


class Cores:
    """How long steps take on two cores: what was measured with SmolLM2, in round figures.

    noise: every step takes up to so much longer or shorter, as a share of its time.
    """

    def __init__(self, noise: float = 0.0, units: int = 2) -> None:
        self._noise = noise
        self._units = units
        self._random = random.Random(3)

    def __call__(self, plan: StepPlan) -> StepTiming:
        rows = sum(len(c.tokens) == 1 for c in plan.chunks)
        load = StepLoad(sum(len(c.tokens) for c in plan.chunks) - rows, 0, rows, 0)
        stretch = 1 + self._noise * (2 * self._random.random() - 1)
        return StepTiming(compute_s=self.seconds(load, plan.units) * stretch)

    def seconds(self, load: StepLoad, units: int) -> float:
        alone_s = 0.001 + 0.00123 * load.decode_rows + 0.00102 * load.prefill_tokens
        share: float = (units or self._units) / self._units
        return alone_s * math.pow(share, -0.7)


@dataclass
class Run:
    """Realtime answers that decode while prompts stand in line, for some seconds."""

    simulation: LaneSimulation
    seconds: float
    rows: int
    plans_at_half: int

    @property
    def prompt_tokens_per_s(self) -> float:
        """Over the last half of the time."""
        chunks = [c for plan in self.simulation.plans[self.plans_at_half :] for c in plan.chunks]
        return sum(len(c.tokens) for c in chunks if c.request >= 1000) / (self.seconds / 2)

    @property
    def itl_s(self) -> float:
        """90th percentile over the last half of the time."""
        gaps = [gap for i in range(self.rows) for gap in self._gaps(i)]
        return sorted(gaps)[len(gaps) * 9 // 10]

    @property
    def split_share(self) -> float:
        """Of the last half of the time."""
        changes = [*self.simulation.arrangements, (self.seconds, UNIFIED)]
        split_s, half = 0.0, self.seconds / 2
        for (start, arrangement), (end, _) in pairwise(changes):
            split_s += arrangement.split * max(end - max(start, half), 0.0)
        return split_s / half

    def _gaps(self, request: int) -> list[float]:
        trace: Trace = self.simulation.traces[RequestId(request)]
        times = [t for t in trace.token_times_s if t > self.seconds / 2]
        return [b - a for a, b in pairwise(times)]


def run(
    mode: LaneMode,
    rows: int,
    itl_s: float,
    prompts: ServiceClass | None = REALTIME,
    noise: float = 0.0,
    seconds: float = 6.0,
) -> Run:
    targets = Targets(itl_s, ttft_s=2.0)
    capacity = make_capacity(
        kv_blocks=2000, max_seqs=rows + 4, max_step_tokens=128, max_model_len=4096, units=2
    )
    clock = ManualClock()
    executor = ScriptedExecutor(capacity, duration=Cores(noise), clock=clock)
    scheduler = Scheduler(
        capacity, SchedulerConfig(targets=targets, records=0), Controller(mode, capacity, targets)
    )
    simulation = LaneSimulation(scheduler, executor, clock)
    simulation.add_all(make_request(i, REALTIME, 16, 4000) for i in range(rows))
    if prompts is not None:
        waiting = (make_request(1000 + i, prompts, PROMPT, 1, arrival_s=1.0) for i in range(40))
        simulation.add_all(waiting)
    while clock() < seconds / 2:
        simulation.step()
    plans_at_half = len(simulation.plans)
    while clock() < seconds:
        simulation.step()
    return Run(simulation, seconds, rows, plans_at_half)


@pytest.mark.parametrize(
    ("rows", "itl_ms", "split"),
    [(8, 20, True), (8, 40, False), (8, 250, False), (32, 80, True), (32, 250, False)],
)
def test_auto_takes_what_measures_better(rows: int, itl_ms: int, split: bool) -> None:
    runs = {mode: run(mode, rows, itl_ms / 1000) for mode in LaneMode}
    auto = runs[LaneMode.AUTO]
    assert auto.split_share == float(split)
    fitting = [r.prompt_tokens_per_s for r in runs.values() if r.itl_s <= 1.02 * itl_ms / 1000]
    assert auto.prompt_tokens_per_s >= 0.95 * max(fitting)
    assert auto.itl_s <= 1.02 * itl_ms / 1000


@pytest.mark.parametrize(("rows", "itl_ms"), [(32, 20), (32, 40)])
def test_a_target_nobody_meets_leaves_the_best_of_both_rates(rows: int, itl_ms: int) -> None:
    """Prompt tokens a second by time between tokens: splitting twice as good here."""
    runs = {mode: run(mode, rows, itl_ms / 1000) for mode in LaneMode}
    assert all(r.itl_s > 1.05 * itl_ms / 1000 for r in runs.values())
    rates = {mode: r.prompt_tokens_per_s / r.itl_s for mode, r in runs.items()}
    assert rates[LaneMode.SPLIT] > 1.5 * rates[LaneMode.UNIFIED]
    assert rates[LaneMode.AUTO] >= 0.95 * rates[LaneMode.SPLIT]


def test_late_answers_are_not_made_later_for_prompts_of_lower_classes() -> None:
    assert run(LaneMode.AUTO, 32, 0.02, prompts=BATCH).split_share == 0


@pytest.mark.parametrize(("rows", "itl_ms"), [(8, 20), (8, 40), (32, 80), (32, 20)])
def test_noise_makes_no_flapping(rows: int, itl_ms: int) -> None:
    noisy = run(LaneMode.AUTO, rows, itl_ms / 1000, noise=0.4)
    calm = run(LaneMode.AUTO, rows, itl_ms / 1000)
    assert len(noisy.simulation.arrangements) <= len(calm.simulation.arrangements) + 1
    assert noisy.split_share == pytest.approx(calm.split_share, abs=0.1)


def test_prompts_of_lower_classes_split_too_where_it_more_than_doubles_them() -> None:
    auto = run(LaneMode.AUTO, 8, 0.02, prompts=BATCH)
    unified = run(LaneMode.UNIFIED, 8, 0.02, prompts=BATCH)
    assert auto.split_share > 0.9
    assert auto.prompt_tokens_per_s > 2 * unified.prompt_tokens_per_s
    assert auto.itl_s <= 0.02


def test_without_prompts_or_realtime_nothing_is_split() -> None:
    assert run(LaneMode.AUTO, 8, 0.02, prompts=None).split_share == 0
    demand = Demand(
        {REALTIME: ClassDemand(), STANDARD: ClassDemand(8, 100), BATCH: ClassDemand(0, 0, 9000)},
        prompts_due=True,
    )
    assert controller().decide(UNIFIED, demand, learned(), 1.0) == UNIFIED
    assert controller().decide(HALVES, demand, learned(), 1.0) == UNIFIED


def test_an_idle_lane_gives_its_units_back_and_gets_them_again() -> None:
    chooser, models = controller(), learned()
    now, chosen = 0.0, UNIFIED
    while chosen == UNIFIED:
        now += 0.02
        chosen = chooser.decide(chosen, wanted(prompt_tokens=900), models, now)
    assert chosen == HALVES and 0.1 < now < 2.0
    assert chooser.decide(HALVES, wanted(prompt_tokens=0), models, now + 0.02) == UNIFIED
    # What has proved itself needs no proof again.
    assert chooser.decide(UNIFIED, wanted(prompt_tokens=900), models, now + 0.5) == HALVES


def test_an_arrangement_that_disappointed_is_tried_again_after_a_minute() -> None:
    chooser, models = controller(), learned()
    slow = StepLoad(decode_rows=8)
    for _ in range(20):
        models.of(Lane.DECODE, 1).observe(slow, 0.050)
        models.of(Lane.PREFILL, 1).observe(StepLoad(prefill_tokens=64), 0.2)
    assert settle(chooser, models, HALVES, start=0.0) == UNIFIED
    assert settle(chooser, models, UNIFIED, start=20.0) == UNIFIED
    assert settle(chooser, models, UNIFIED, start=80.0) == HALVES


def test_more_cores_are_divided_by_what_each_side_needs() -> None:
    capacity = make_capacity(max_step_tokens=512, units=16)
    chooser = Controller(LaneMode.SPLIT, capacity, Targets(0.03, 2.0))
    assert chooser.first == Arrangement(8, 8)
    models = learned(units=16)
    few = settle(chooser, models, chooser.first, wanted(rows=4, prompt_tokens=9000))
    many = settle(chooser, models, chooser.first, wanted(rows=64, prompt_tokens=9000))
    assert few.prefill_units > 8 > few.decode_units >= 2
    assert many.decode_units > few.decode_units
    for chosen in (few, many):
        assert chosen.prefill_units + chosen.decode_units == 16


def test_rows_never_seen_without_prompts_are_judged_by_steps_that_had_both() -> None:
    models, cores = StepModels(2), Cores()
    for i in range(100):
        load = StepLoad(prefill_tokens=16 + i % 60, decode_rows=24 + i % 9)
        models.of(Lane.UNIFIED, 0).observe(load, cores.seconds(load, 0) / 3)
    rows = StepLoad(decode_rows=32)
    for lane, units in ((Lane.UNIFIED, 0), (Lane.DECODE, 1)):
        expected_s = cores.seconds(rows, units) / 3
        assert models.of(lane, units).predict(rows) == pytest.approx(expected_s, rel=0.1)


def test_steps_that_take_no_time_can_be_compared() -> None:
    models = StepModels(2)
    for load in (StepLoad(decode_rows=8), StepLoad(prefill_tokens=64)) * 200:
        models.of(Lane.UNIFIED, 0).observe(load, 0.0)
    assert settle(controller(itl_s=0.0), models, UNIFIED) in (UNIFIED, HALVES)


def test_split_for_good_gives_decode_the_units_it_needs_though_no_prompt_comes() -> None:
    capacity = make_capacity(max_step_tokens=512, units=16)
    chooser, models = Controller(LaneMode.SPLIT, capacity, Targets(0.03, 2.0)), learned(units=16)
    rows = wanted(rows=64, prompt_tokens=0)
    assert settle(chooser, models, Arrangement(14, 2), rows).decode_units > 2
    batch = Demand(
        {REALTIME: ClassDemand(), STANDARD: ClassDemand(), BATCH: ClassDemand(64, 200)},
        prompts_due=False,
    )
    assert settle(chooser, models, Arrangement(14, 2), batch).decode_units == 14


def test_a_target_that_a_division_keeps_goes_before_the_prompts() -> None:
    """64 rows take 80 ms on all units, 97 on twelve of sixteen, 111 on ten."""
    capacity = make_capacity(max_step_tokens=512, units=16)
    chooser, models = Controller(LaneMode.SPLIT, capacity, Targets(0.1, 2.0)), learned(units=16)
    for start in (Arrangement(14, 2), Arrangement(2, 14)):
        chosen = settle(chooser, models, start, wanted(rows=64, prompt_tokens=9000))
        assert chosen.decode_units == 12


def test_one_core_has_one_lane() -> None:
    capacity = make_capacity(units=1)
    assert Controller(LaneMode.AUTO, capacity, Targets()).fixed
    assert Controller(LaneMode.UNIFIED, make_capacity(units=8), Targets()).fixed
    with pytest.raises(ConfigError, match="two compute units"):
        Controller(LaneMode.SPLIT, capacity, Targets())


def controller(itl_s: float = 0.02) -> Controller:
    return Controller(LaneMode.AUTO, make_capacity(units=2), Targets(itl_s, 2.0))


def learned(units: int = 2) -> StepModels:
    """Models that have seen unified steps."""
    models, cores = StepModels(units), Cores(units=units)
    for i in range(100):
        load = StepLoad(prefill_tokens=16 * (i % 5), decode_rows=8 + i % 7)
        models.of(Lane.UNIFIED, 0).observe(load, cores.seconds(load, 0))
    return models


def wanted(rows: int = 8, prompt_tokens: int = 900) -> Demand:
    realtime = ClassDemand(rows, 200, prompt_tokens, 0)
    classes = {REALTIME: realtime, STANDARD: ClassDemand(), BATCH: ClassDemand()}
    return Demand(classes, prompts_due=prompt_tokens > 0)


def settle(
    chooser: Controller,
    models: StepModels,
    present: Arrangement,
    demand: Demand | None = None,
    start: float = 0.0,
) -> Arrangement:
    """What is chosen after ten seconds of the same."""
    for i in range(500):
        present = chooser.decide(present, demand or wanted(), models, start + 0.02 * i)
    return present
