"""The torch executor under the whole engine on a CPU: what is preempted, swapped, and interrupted
ends with the tokens and log probabilities of the same request alone."""

import random
import time
from contextlib import AbstractContextManager

from headway.core.plan import Capacity
from headway.core.types import ServiceClass
from headway.engine.engine import Engine
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.testing import RecordingExecutor, make_capacity
from tests.engine.helpers import Answer, collect, recorded_engine
from tests.tiny import LLAMA, tiny_weights

WEIGHTS = tiny_weights(LLAMA, scale=3.0)
SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=1.0, seed=17, logprobs=0),
)


def torch_engine(
    capacity: Capacity, interrupt_every: int = 0
) -> AbstractContextManager[tuple[Engine, RecordingExecutor]]:
    """An engine that runs."""
    torch = TorchExecutor(WEIGHTS, capacity, TorchOptions(layers_a_launch=1))
    return recorded_engine(torch, interrupt_every)


def requests() -> list[GenerationRequest]:
    """A third of each class, batch first."""
    rng = random.Random(5)
    made = []
    for i in range(18):
        prompt = [rng.randrange(1, LLAMA.vocab) for _ in range(rng.randrange(8, 60))]
        service_class = ServiceClass(2 - i * 3 // 18)
        stop = StopConditions(rng.randrange(12, 30))
        made.append(GenerationRequest(prompt, service_class, SAMPLINGS[i % 2], stop))
    return made


def test_requests_under_pressure_equal_themselves_alone() -> None:
    asked = requests()
    alone: list[Answer] = []
    roomy = make_capacity(kv_blocks=16, max_seqs=1, max_step_tokens=64, max_model_len=256)
    with torch_engine(roomy) as (engine, _):
        for request in asked:
            alone += collect(list(engine.submit_sync(request)))
    tight = make_capacity(
        kv_blocks=20, host_blocks=8, max_seqs=8, max_step_tokens=48, max_model_len=256
    )
    with torch_engine(tight, interrupt_every=7) as (engine, executor):
        under_way = []
        for request in asked:
            time.sleep(0.02)  # so that batch is under way when realtime comes
            under_way.append(engine.submit_sync(request))
        together = [collect(list(generation))[0] for generation in under_way]
    for i, (got, expected) in enumerate(zip(together, alone, strict=True)):
        assert got.ids == expected.ids, f"request {i} has other tokens than alone"
        assert got.tokens == expected.tokens, f"request {i} has other log probabilities"
    assert executor.tally.swapped_in > 0, "nothing was swapped"
    assert executor.tally.unsampled > 0, "no prompt was cut into chunks"
    assert executor.tally.interrupted > 0, "no step was interrupted"
