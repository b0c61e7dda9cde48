"""Random mixed work on lanes that change, on a tiny random model, checked against itself.

    python bench/stress.py [--seconds 60] [--seed 1]

Requests of all classes go through a pool that is too small for them; a quarter is aborted, every
seventh step is interrupted, victims are swapped and recomputed, and the lanes change every few
steps. A request that comes again must get the same tokens and log probabilities. Meant to be run
under sanitizers: `make sanitize` does for a few seconds, `make tsan` for as long as is wanted.
"""

import argparse
import random
import time

from headway.core.config import SchedulerConfig
from headway.core.plan import TokenLogprobs
from headway.core.scheduler import Scheduler
from headway.core.types import Arrangement, FinishReason, ServiceClass
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import ModelLimits
from headway.engine.streams import SyncGeneration
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.executors.native import NativeExecutor, NativeOptions
from headway.testing import RecordingExecutor
from headway.testing.lanes import Restless
from headway.testing.text import ByteTokenizer
from tests.tiny import LLAMA, tiny_weights

KINDS = 40
ROUND = 24
ARRANGEMENTS = (Arrangement(1, 2), Arrangement(), Arrangement(2, 1))

Answer = tuple[tuple[int, TokenLogprobs | None], ...]


def main() -> None:
    """Work until the time is up; raises AssertionError for an answer that changed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sizes = NativeOptions(
        kv_blocks=40, host_blocks=16, max_seqs=12, max_step_tokens=48, max_model_len=256, threads=3
    )
    native = NativeExecutor(tiny_weights(LLAMA, scale=3.0), sizes)
    executor = RecordingExecutor(native, interrupt_every=7, compute_scale=100)
    engine = Engine(
        Scheduler(executor.capacity, SchedulerConfig(), Restless(4, ARRANGEMENTS)),
        executor,
        ByteTokenizer(),
        ModelLimits.from_capacity(executor.capacity, frozenset({0})),
        Surroundings(time.monotonic, random.Random(1)),
    )
    engine.start()
    answered, aborted = _work(engine, random.Random(options.seed), options.seconds)
    while not engine.snapshot().idle:
        time.sleep(0.01)
    snapshot = engine.snapshot()
    assert snapshot.device.used == snapshot.host.used == 0, snapshot
    engine.stop()
    print(f"{answered} answered, {aborted} aborted; {executor.tally}")


def _work(engine: Engine, rng: random.Random, seconds: float) -> tuple[int, int]:
    known: dict[int, Answer] = {}
    answered = aborted = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        under_way: list[tuple[int, SyncGeneration]] = []
        for _ in range(ROUND):
            kind = rng.randrange(KINDS)
            request = _request(kind, ServiceClass(rng.randrange(3)))
            under_way.append((kind, engine.submit_sync(request)))
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.02)
        for kind, generation in under_way:
            if rng.random() < 0.25:
                next(generation, None)
                generation.close()
                aborted += 1
                continue
            deltas = list(generation)
            assert deltas[-1].finish is FinishReason.LENGTH, deltas[-1]
            answer = tuple((t.token, t.logprobs) for delta in deltas for t in delta.tokens)
            assert known.setdefault(kind, answer) == answer, f"request {kind} has another answer"
            answered += 1
    return answered, aborted


def _request(kind: int, service_class: ServiceClass) -> GenerationRequest:
    """The same for the same kind, but for its class."""
    rng = random.Random(kind)
    prompt = [rng.randrange(1, LLAMA.vocab) for _ in range(rng.randrange(4, 100))]
    sampling = SamplingParams(temperature=1.0, seed=kind, logprobs=1)
    return GenerationRequest(
        prompt, service_class, sampling, StopConditions(rng.randrange(4, 40), ignore_eos=True)
    )


if __name__ == "__main__":
    main()
