"""The measurements themselves, over the real engine on the scripted executor."""

from headway.bench import overtake, speed
from headway.bench.client import Client
from headway.testing import LinearDuration, make_capacity
from tests.server.live import MODEL
from tests.server.test_real_engine import real_server

STEP = LinearDuration(step_s=0.002, token_s=0.00001, block_s=0.00001)


async def test_overtake_fills_the_seats_and_compares_answers() -> None:
    load = overtake.Load(streams=6, batch_words=2, batch_tokens=40, tries=6, words=2, checked=3)

    def full(metrics: dict[str, float]) -> bool:
        return metrics['headway_requests{service_class="batch",state="running"}'] >= 4

    with real_server(make_capacity(max_seqs=4, vocab_size=300), STEP) as (server, _):
        outcome = await overtake.measure(Client(server.url), MODEL, load, full)
    assert (outcome.checked, outcome.same) == (3, 3)
    assert (len(outcome.idle_s), len(outcome.loaded_s)) == (6, 6)
    assert outcome.ratio > 0
    assert outcome.batch_tokens_per_s > 0
    assert "3 of 3" in outcome.lines()[-1]


def test_speed_measures_what_fits() -> None:
    capacity = make_capacity(kv_blocks=600, max_seqs=8, max_model_len=1024, vocab_size=300)
    with real_server(capacity, LinearDuration(0, 0, 0)) as (_, rig):
        rates = list(speed.measure(rig.engine))
    assert [rate.work for rate in rates] == [
        "decode, 1 at once",
        "decode, 8 at once",
        "prefill, 8 x 691",
    ]
    assert all(rate.tokens_per_s > 0 for rate in rates)
