"""The CPU executor under the whole engine: the same tokens and log probabilities, whatever happens.

64 mixed requests go through a pool that holds about a quarter of them; swaps, recomputes, cut
chunks, prefix hits and interrupts are forced, and each must have happened for the test to count.
"""

import functools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from headway.core.lanes import LaneChooser
from headway.core.plan import Penalties, Truncation
from headway.core.types import Arrangement, ServiceClass
from headway.engine.engine import Engine
from headway.engine.streams import SyncGeneration
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.executors.native import NativeExecutor, NativeOptions
from headway.testing import RecordingExecutor
from headway.testing.lanes import Restless
from tests.engine.helpers import Answer, collect, recorded_engine, until
from tests.tiny import LLAMA, tiny_weights

WEIGHTS = tiny_weights(LLAMA, scale=3.0)
REQUESTS = 64
SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=1.0, seed=17, logprobs=0),
    SamplingParams(
        temperature=0.8,
        truncation=Truncation(top_k=40, top_p=0.9, min_p=0.01),
        penalties=Penalties(1.2, 0.3, 0.1),
        seed=23,
        bias={9: 1.0},
        logprobs=3,
    ),
)


def requests() -> list[GenerationRequest]:
    """A third of each class; every fourth starts with the same two blocks."""
    rng = random.Random(5)
    common = [rng.randrange(1, LLAMA.vocab) for _ in range(32)]
    made = []
    for i in range(REQUESTS):
        own = [rng.randrange(1, LLAMA.vocab) for _ in range(rng.randrange(8, 70))]
        prompt = common + own if i % 4 == 0 else own
        stop = StopConditions(rng.randrange(20, 60), stop=["never this"] if i % 5 == 0 else ())
        made.append(GenerationRequest(prompt, ServiceClass(i % 3), SAMPLINGS[i % 3], stop))
    return made


def native_engine(
    options: NativeOptions, interrupt_every: int = 0, lanes: LaneChooser | None = None
) -> AbstractContextManager[tuple[Engine, RecordingExecutor]]:
    return recorded_engine(NativeExecutor(WEIGHTS, options), interrupt_every, lanes)


HALVES = Arrangement(1, 1)
LANES = {
    "unified": (Arrangement(),),
    "split": (HALVES,),
    "changing": (HALVES, Arrangement()),
}


@functools.cache
def alone_answers() -> list[Answer]:
    """The oracle of all tests here."""
    return alone(requests())


def alone(asked: list[GenerationRequest]) -> list[Answer]:
    """Each request on an idle engine with a pool that is large enough and no prefix to hit."""
    answers = []
    for request in asked:
        with native_engine(NativeOptions(kv_blocks=16, max_seqs=1, max_model_len=256)) as rig:
            answers += collect(list(rig[0].submit_sync(request)))
    return answers


def give_up_at_first_token(generation: SyncGeneration) -> None:
    """Abort a request at the hand-over from prefill to decode, or soon after."""
    next(generation, None)
    generation.close()


@pytest.mark.parametrize("lanes", LANES)
def test_64_requests_under_pressure_equal_themselves_alone(lanes: str) -> None:
    asked = requests()
    options = NativeOptions(
        kv_blocks=84,
        host_blocks=4,
        max_seqs=24,
        max_step_tokens=48,
        max_model_len=256,
        threads=2,
    )
    need = sum(-(-(len(r.prompt) + (r.stop.max_tokens or 0)) // 16) for r in asked)
    assert options.kv_blocks <= need / 3.5, "the pool is too large for the test to mean anything"
    by_urgency = sorted(range(REQUESTS), key=lambda i: -asked[i].service_class)
    chooser = Restless(5, LANES[lanes])
    with (
        native_engine(options, interrupt_every=7, lanes=chooser) as (engine, executor),
        ThreadPoolExecutor(1) as aborts,
    ):
        under_way = {}
        for i in by_urgency:
            if asked[i].service_class is not ServiceClass.BATCH:
                time.sleep(0.002)
            under_way[i] = engine.submit_sync(asked[i])
            if i % 4 == 1:
                aborts.submit(give_up_at_first_token, engine.submit_sync(asked[i]))
        answers = {i: collect(list(generation))[0] for i, generation in under_way.items()}
        until(lambda: engine.snapshot().idle)
        snapshot = engine.snapshot()
    assert snapshot.device.used == snapshot.host.used == 0
    for i, expected in enumerate(alone_answers()):
        assert answers[i].ids == expected.ids, f"request {i} has other tokens than alone"
        assert answers[i].tokens == expected.tokens, f"request {i} has other log probabilities"
        assert (answers[i].text, answers[i].finish) == (expected.text, expected.finish)
    usages = [answer.usage for answer in answers.values() if answer.usage is not None]
    assert sum(u.recomputed for u in usages) > 0, "nothing was recomputed"
    assert sum(u.cached for u in usages) > 0, "no prefix was hit"
    assert executor.tally.swapped_in > 0, "nothing was swapped"
    assert executor.tally.unsampled > 0, "no prompt was cut into chunks"
    assert executor.tally.interrupted > 0, "no step was interrupted"
