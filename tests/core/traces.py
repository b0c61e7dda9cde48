"""Random traces from a seed alone, and a digest of every plan a trace leads to.

python -m tests.core.traces FIRST COUNT     a line for each seed
"""

import hashlib
import random
import sys

from headway.core.config import POLICIES, Reserve, SchedulerConfig
from headway.core.plan import SamplingSpec, StepPlan
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.core.types import Arrangement, RequestId, ServiceClass
from headway.testing import (
    LaneSimulation,
    LinearDuration,
    ManualClock,
    Mishaps,
    Script,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    make_request,
)
from headway.testing.driver import DriveOptions
from headway.testing.lanes import Restless

BLOCK = 4
EOS = 7
ARRANGEMENTS = (Arrangement(2, 2), Arrangement(), Arrangement(3, 1))


def requests_of(numbers: random.Random, kv_blocks: int) -> list[Request]:
    """All classes and tenants, shared prefixes, groups, deadlines."""
    requests: list[Request] = []
    for i in range(1, numbers.choice([6, 12, 40]) + 1):
        length = numbers.randint(1, min(kv_blocks * BLOCK - 1, 120))
        prompt = tuple(range(1, 121))[:length] if numbers.random() < 0.4 else length
        choices = numbers.choice([1, 1, 1, 3])
        service_class = numbers.choice(list(ServiceClass))
        arrival_s, tenant = numbers.uniform(0, 2.5), numbers.choice(["", "", "b", "c"])
        for choice in range(choices):
            requests.append(
                make_request(
                    10 * i + choice,
                    service_class,
                    requests[-1].prompt if choice else prompt,
                    numbers.randint(1, 50),
                    arrival_s,
                    SamplingSpec(temperature=1.0, seed=i),
                    frozenset({EOS}) if numbers.random() < 0.7 else frozenset(),
                    numbers.choice([float("inf")] * 9 + [1.5]),
                    tenant,
                    10 * i if choices > 1 else None,
                )
            )
    return requests


def run_seed(seed: int) -> Simulation:
    """Build the seed's machine, and run the seed's requests on it until all have ended."""
    numbers = random.Random(seed)
    kv_blocks, max_seqs = numbers.choice([6, 24, 60, 150]), numbers.choice([2, 6, 16])
    capacity = make_capacity(
        kv_blocks=kv_blocks,
        host_blocks=numbers.choice([0, 5, 60]),
        block_size=BLOCK,
        max_seqs=max_seqs,
        max_step_tokens=max_seqs + numbers.choice([8, 40]),
        units=4,
    )
    config = SchedulerConfig(
        policy=numbers.choice(["tiered", "tiered", *POLICIES]),
        floor_share=numbers.choice([0.0, 0.02, 0.3]),
        reserve=Reserve(numbers.choice([0.0, 0.05, 0.4]), guard_s=0.5, preemptions=2),
        pass_s=numbers.choice([0.05, 1.0]),
    )
    clock = ManualClock()
    executor = ScriptedExecutor(
        capacity,
        Script(eos_id=EOS, eos_probability=0.03),
        clock=clock,
        duration=LinearDuration(),
        mishaps=Mishaps(fail_steps=frozenset(numbers.sample(range(400), numbers.choice([0, 2])))),
    )
    lanes = Restless(numbers.choice([3, 20]), ARRANGEMENTS) if numbers.random() < 0.3 else None
    scheduler = Scheduler(capacity, config, lanes)
    options = DriveOptions(interrupt_for_realtime=numbers.random() < 0.3)
    kind = LaneSimulation if lanes else Simulation
    simulation = kind(scheduler, executor, clock, options=options)
    requests = requests_of(numbers, kv_blocks)
    simulation.add_all(requests)
    for request in numbers.sample(requests, numbers.choice([0, 3])):
        simulation.abort(RequestId(request.id), numbers.uniform(0, 2.5))
    simulation.run()
    return simulation


def spelled_out(plan: StepPlan) -> object:
    """A plan's contents, block tables only as far as they count."""
    chunks = [
        (c.request, c.tokens, c.start, c.blocks[: c.num_blocks], c.sample) for c in plan.chunks
    ]
    opens = [o.request for o in plan.opens]
    copies = [[(c.device, c.host) for c in way] for way in (plan.swap_out, plan.swap_in)]
    return plan.step, int(plan.lane), plan.units, opens, plan.closes, copies, chunks


def digest_of(seed: int) -> str:
    """All plans and commits of a seed's trace, in one word."""
    simulation = run_seed(seed)
    told = [*map(spelled_out, simulation.plans), *simulation.commits, simulation.clock()]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def main() -> None:
    """Command line."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        print(seed, digest_of(seed), flush=True)


if __name__ == "__main__":
    main()
