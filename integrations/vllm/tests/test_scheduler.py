"""vLLM's scheduler with pass and swap, over a model of arithmetic: every answer is known."""

import random
from pathlib import Path

import pytest
from scripted import Scripted, answer

from headway.core.config import Reserve
from headway.core.types import ServiceClass
from headway_vllm.members import Decision
from headway_vllm.settings import Settings

REALTIME, STANDARD, BATCH = ServiceClass
SITUATIONS = {"seats": {"seats": 4, "blocks": 200}, "blocks": {"seats": 32, "blocks": 29}}


def overtaken(tiny: Path, policy: str, situation: str, in_flight: int = 1) -> Scripted:
    """Eight batch answers of 150 tokens; a realtime request comes at step 40."""
    engine = Scripted(tiny, policy, **SITUATIONS[situation], in_flight=in_flight)
    for number in range(8):
        engine.ask(f"batch{number}", list(range(number, number + 60)), 150, BATCH)
    for _ in range(40):
        engine.step()
    engine.ask("realtime", list(range(40)), 8, REALTIME)
    engine.run()
    return engine


def waited(engine: Scripted) -> int:
    asked = engine.asked["realtime"]
    return asked.first_step - asked.arrived_step


def all_right(engine: Scripted) -> bool:
    return all(
        a.answer == answer(a.prompt, a.tokens) or (a.aborted and not a.answer[a.tokens :])
        for a in engine.asked.values()
    )


@pytest.mark.parametrize("situation", sorted(SITUATIONS))
def test_realtime_waits_one_step_where_vllm_lets_it_wait_many(tiny: Path, situation: str) -> None:
    ours = overtaken(tiny, "headway", situation)
    stock = {policy: overtaken(tiny, policy, situation) for policy in ("priority", "fcfs")}
    for policy, engine in {"headway": ours, **stock}.items():
        print(f"\n{situation}, {policy}: TTFT {waited(engine)} of {engine.steps} steps", end="")
    assert waited(ours) == 1
    assert all(waited(engine) > 10 for engine in stock.values())
    assert ours.steps <= 1.03 * stock["priority"].steps
    assert all_right(ours) and all(all_right(engine) for engine in stock.values())
    assert ours.scheduler.swap.book.restored_tokens > 0


@pytest.mark.parametrize("situation", sorted(SITUATIONS))
def test_with_two_steps_in_flight_it_waits_two(tiny: Path, situation: str) -> None:
    """As in a pipeline: results come a step later."""
    engine = overtaken(tiny, "headway", situation, in_flight=2)
    print(f"\n{situation}, two in flight: TTFT {waited(engine)} of {engine.steps} steps", end="")
    assert waited(engine) <= 2
    assert all_right(engine)


def test_a_corrupted_host_block_changes_an_answer(tiny: Path) -> None:
    engine = Scripted(tiny, "headway", **SITUATIONS["blocks"])
    for number in range(8):
        engine.ask(f"batch{number}", list(range(number, number + 60)), 150, BATCH)
    while not engine.scheduler.swap.book.saved_tokens:
        engine.step()
    assert engine.worker is not None and engine.worker.host is not None
    engine.worker.host.chunks[0][0].zero_()
    engine.run()
    assert engine.scheduler.swap.book.restored_tokens > 0
    assert not all_right(engine)


PATIENT, AT_ONCE = (Settings(host_gib=0.01, reserve=Reserve(guard_s=s)) for s in (60.0, 0.0))


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [(PATIENT, PATIENT, 0), (AT_ONCE, AT_ONCE, 4), (PATIENT, AT_ONCE, 3)],
)
def test_realtime_prompts_leave_the_other_classes_no_tokens_until_one_is_promoted(
    tiny: Path, before: Settings, after: Settings, tokens: int
) -> None:
    """Four steps that a realtime prompt fills, beside a batch answer. Settings: when realtime
    comes, and when nobody waits any more."""
    engine = Scripted(tiny, "headway", blocks=200, seats=4, settings=before, step_tokens=64)
    engine.ask("batch", list(range(30)), 60, BATCH)
    for _ in range(10):
        engine.step()
    engine.ask("realtime", [number % 90 for number in range(322)], 4, REALTIME)
    engine.step()
    answered = len(engine.asked["batch"].answer)
    engine.scheduler.settings, engine.scheduler._next_look_s = after, 0.0
    for _ in range(4):
        engine.step()
    assert not engine.asked["realtime"].answer
    assert len(engine.asked["batch"].answer) - answered == tokens
    engine.run()
    assert all_right(engine)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("host_gib", [0.0, 0.0002, 0.01])
def test_whatever_comes_every_answer_is_right_and_nothing_is_kept(
    tiny: Path, in_flight: int, prefix_cache: bool, host_gib: float
) -> None:
    """Arrivals of every class, with common prefixes, aborts and resets, on a pool that is too small
    for them."""
    chance = random.Random(f"{in_flight} {prefix_cache} {host_gib}")
    engine = Scripted(
        tiny,
        "headway",
        blocks=14,
        seats=4,
        settings=Settings(host_gib=host_gib),
        prefix_cache=prefix_cache,
        in_flight=in_flight,
        step_tokens=128,
    )
    book = engine.scheduler.swap.book
    for number in range(120):
        prompt = [7] * chance.choice([0, 64, 96]) + [chance.randrange(90) for _ in range(30)]
        engine.ask(f"r{number}", prompt, chance.randrange(1, 70), chance.choice(list(ServiceClass)))
        for _ in range(chance.randrange(12)):
            engine.step()
        if chance.random() < 0.1 and engine.live:
            engine.abort(chance.choice(engine.live))
        if in_flight == 1 and chance.random() < 0.02:
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
            assert book.free == book.total
    engine.run()
    assert all_right(engine)
    assert book.free == book.total
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 13
    assert (book.restored_tokens > 0) is (host_gib > 0)


def test_vllms_own_loop_is_left_nothing_to_preempt(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every preemption is the pass's: while vLLM's own loop runs, there is none."""
    engine = Scripted(tiny, "headway", blocks=14, seats=8, step_tokens=128)
    scheduler = engine.scheduler
    planned: list[object] = []
    all_of_them: list[object] = []
    apply, preempt = scheduler._apply, scheduler._preempt_request

    def applied(decision: Decision) -> None:
        planned.extend(decision.victims)
        apply(decision)

    def preempted(*args: object, **kwargs: object) -> None:
        all_of_them.append(args[0])
        preempt(*args, **kwargs)

    monkeypatch.setattr(scheduler, "_apply", applied)
    monkeypatch.setattr(scheduler, "_preempt_request", preempted)
    for number in range(24):
        engine.ask(f"r{number}", [number] * 40, 60, list(ServiceClass)[number % 3])
    engine.run()
    assert all_right(engine)
    assert len(all_of_them) == len(planned) > 0
