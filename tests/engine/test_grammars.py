"""Answers under a grammar: always in it, whatever happens to the request on the way."""

import json
import random
import re
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headway.core.plan import SamplingSpec
from headway.core.types import FinishReason, ServiceClass
from headway.engine.types import (
    GenerationRequest,
    Grammar,
    GrammarState,
    SamplingParams,
    StopConditions,
)
from headway.errors import InvalidRequestError
from headway.executors.native import NativeOptions
from headway.models.grammars import GrammarCompiler, regex_part, source_of
from headway.testing import Mishaps, Script, WallClock, make_capacity, oracle_tokens
from headway.testing.lanes import Restless
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import (
    EOS,
    SLOW,
    ask,
    collect,
    greedy,
    make_rig,
    running,
    until,
)
from tests.engine.test_same_tokens import LANES, alone, native_engine
from tests.tiny import LLAMA

VOCAB = 300
COMPILER = GrammarCompiler(ByteTokenizer(), VOCAB, {EOS})
SMALL_JSON = r'\{"id":[0-9]{1,3},"text":"[a-z ]{40,70}"\}'


def under(
    grammar: Grammar, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 64, n: int = 1
) -> GenerationRequest:
    sampling = SamplingParams(temperature=1.0, seed=3)
    stop = StopConditions(max_tokens=max_tokens)
    return GenerationRequest(prompt, sampling=sampling, stop=stop, n=n, grammar=grammar)


def regex(pattern: str) -> Grammar:
    return COMPILER.compile(source_of(regex_part(pattern)), "regex")


@pytest.mark.parametrize("n", [1, 5])
def test_answers_match_and_end_when_complete(n: int) -> None:
    script = Script(VOCAB, EOS, eos_probability=0.4)  # early ends are not allowed
    with running(make_rig(make_capacity(vocab_size=VOCAB), script)) as rig:
        answers = ask(rig, under(regex("[a-f]{7}-[0-9]+x"), n=n))
        until(rig.idle)
    assert len({answer.text for answer in answers}) == n
    for answer in answers:
        assert re.fullmatch("[a-f]{7}-[0-9]+x", answer.text)
        assert answer.finish is FinishReason.STOP


def test_the_end_of_sequence_is_allowed_where_the_grammar_may_end() -> None:
    script = Script(VOCAB, EOS, eos_probability=0.4)
    with running(make_rig(make_capacity(vocab_size=VOCAB), script)) as rig:
        answers = ask(rig, under(regex("(ab)+"), n=8))
    assert {answer.ids[-1] for answer in answers} == {EOS}
    assert all(re.fullmatch("(ab)+", answer.text) for answer in answers)


def test_an_answer_that_is_cut_says_length() -> None:
    with running(make_rig(make_capacity(vocab_size=VOCAB), Script(VOCAB))) as rig:
        (answer,) = ask(rig, under(regex("[a-z]{50}"), max_tokens=20))
    assert (answer.finish, len(answer.ids)) == (FinishReason.LENGTH, 20)


def test_a_stop_string_ends_an_answer_within_its_grammar() -> None:
    request = under(regex("[a-z]{3}--[a-z]{50}"))
    request = replace(request, stop=StopConditions(max_tokens=64, stop=["--"]))
    with running(make_rig(make_capacity(vocab_size=VOCAB), Script(VOCAB))) as rig:
        (answer,) = ask(rig, request)
    assert (answer.finish, len(answer.text)) == (FinishReason.STOP, 3)


def test_a_free_neighbour_is_untouched() -> None:
    script = Script(VOCAB)
    with running(make_rig(make_capacity(vocab_size=VOCAB), script)) as rig:
        under_way = [rig.engine.submit_sync(under(regex("[a-z]{40}"))) for _ in range(3)]
        (free,) = ask(rig, greedy([5, 6, 7], 30))
        for generation in under_way:
            assert re.fullmatch("[a-z]{40}", collect(list(generation))[0].text)
    assert free.ids == oracle_tokens([5, 6, 7], SamplingSpec(), 30, script, frozenset({EOS}))


@pytest.mark.parametrize("lanes", ["unified", "changing"])
def test_pressure_and_interrupts_change_no_answer(lanes: str) -> None:
    """On the CPU executor, with raw log probabilities equal to the bit."""
    compiler = GrammarCompiler(ByteTokenizer(), LLAMA.vocab, {EOS})
    grammar = compiler.compile(source_of(regex_part(SMALL_JSON)), "regex")
    rng = random.Random(2)
    asked = []
    for i in range(24):
        prompt = [rng.randrange(1, LLAMA.vocab) for _ in range(rng.randrange(8, 60))]
        sampling = SamplingParams(temperature=0.9, seed=i, logprobs=2)
        stop = StopConditions(max_tokens=130)
        asked.append(
            GenerationRequest(prompt, ServiceClass(i % 3), sampling, stop, grammar=grammar)
        )
    options = NativeOptions(
        kv_blocks=30, host_blocks=10, max_seqs=10, max_step_tokens=32, max_model_len=200, threads=2
    )
    chooser = Restless(5, LANES[lanes])
    with native_engine(options, interrupt_every=5, lanes=chooser) as (engine, executor):
        by_urgency = sorted(range(24), key=lambda i: -asked[i].service_class)
        under_way = {i: engine.submit_sync(asked[i]) for i in by_urgency}
        answers = {i: collect(list(generation))[0] for i, generation in under_way.items()}
        until(lambda: engine.snapshot().idle)
    usages = [answer.usage for answer in answers.values() if answer.usage is not None]
    assert sum(u.recomputed for u in usages) > 0 and executor.tally.swapped_in > 0
    assert executor.tally.interrupted > 0
    for i, expected in enumerate(alone(asked)):
        assert answers[i].tokens == expected.tokens
        assert set(json.loads(answers[i].text)) == {"id", "text"}


def test_log_probabilities_are_those_before_the_mask() -> None:
    compiler = GrammarCompiler(ByteTokenizer(), LLAMA.vocab, {EOS})
    prompt, sampling = [9, 8, 7], SamplingParams(temperature=0.0, logprobs=20)
    free = GenerationRequest(prompt, sampling=sampling, stop=StopConditions(max_tokens=1))
    bound = replace(free, grammar=compiler.compile(source_of(regex_part("[a-z]")), "regex"))
    (plain,), (masked,) = alone([free])[0].tokens, alone([bound])[0].tokens
    assert plain.token != masked.token and plain.logprobs and masked.logprobs
    assert plain.logprobs.top == masked.logprobs.top
    assert masked.logprobs.logprob < plain.logprobs.logprob


class Slow:
    """A grammar whose masks wait until they are let go."""

    def __init__(self, inner: Grammar) -> None:
        self.inner = inner
        self.first_mask = inner.first_mask
        self.go = threading.Event()
        self.waits = threading.Event()

    def start(self) -> GrammarState:
        return _SlowState(self.inner.start(), self)


class _SlowState:
    def __init__(self, inner: GrammarState, grammar: Slow) -> None:
        self._inner = inner
        self._grammar = grammar
        self.complete = False

    def mask(self) -> bytes:
        self._grammar.waits.set()
        if not self._grammar.go.wait(10):
            raise InvalidRequestError("nobody let go")
        return self._inner.mask()

    def accept(self, token: int) -> None:
        self._inner.accept(token)
        self.complete = self._inner.complete


def test_a_row_whose_mask_is_late_is_paused_and_others_go_on() -> None:
    slow = Slow(regex("[a-z]{9}"))
    with running(make_rig(make_capacity(vocab_size=VOCAB), Script(VOCAB))) as rig:
        held = rig.engine.submit_sync(under(slow))
        assert slow.waits.wait(5)
        (other,) = ask(rig, greedy([4, 5], 20))
        counts = rig.engine.snapshot().classes[ServiceClass.STANDARD]
        assert (counts.paused, counts.running) == (1, 0)
        record = rig.engine.explain()
        assert record is not None and "mask" in record.paused[0].reason
        slow.go.set()
        (answer,) = collect(list(held))
        until(rig.idle)
    assert other.finish is FinishReason.LENGTH
    assert re.fullmatch("[a-z]{9}", answer.text)


def test_one_that_is_aborted_while_its_mask_is_made_leaves_nothing() -> None:
    slow = Slow(regex("[a-z]{9}"))
    with running(make_rig(make_capacity(vocab_size=VOCAB), Script(VOCAB))) as rig:
        held = rig.engine.submit_sync(under(slow))
        assert slow.waits.wait(5)
        held.close()
        until(rig.idle)
        slow.go.set()
        (answer,) = ask(rig, under(regex("[a-z]{4}")))
    assert re.fullmatch("[a-z]{4}", answer.text)


class Broken(Slow):
    """A grammar that can't say what follows its first token."""

    def start(self) -> GrammarState:
        return _BrokenState(self.inner.start(), self)


class _BrokenState(_SlowState):
    def mask(self) -> bytes:
        raise InvalidRequestError("the grammar is too complex")


def test_a_mask_that_cant_be_made_is_an_error_of_its_request() -> None:
    with running(make_rig(make_capacity(vocab_size=VOCAB), Script(VOCAB))) as rig:
        good = rig.engine.submit_sync(under(regex("[a-z]{30}")))
        (bad,) = ask(rig, under(Broken(regex("[a-z]{9}"))))
        (answer,) = collect(list(good))
        until(rig.idle)
    assert (bad.finish, bad.message) == (FinishReason.ERROR, "the grammar is too complex")
    assert re.fullmatch("[a-z]{30}", answer.text)


def test_a_failed_step_ends_the_request_and_the_next_one_is_served() -> None:
    mishaps = Mishaps(fail_steps=frozenset({1}))
    rig = make_rig(make_capacity(vocab_size=VOCAB), Script(VOCAB), mishaps, WallClock(), SLOW)
    with running(rig):
        (failed,) = ask(rig, under(regex("[a-z]{9}")))
        (answer,) = ask(rig, under(regex("[a-z]{9}")))
    assert failed.finish is FinishReason.ERROR
    assert re.fullmatch("[a-z]{9}", answer.text)


def test_control_tokens_show_where_asked() -> None:
    words = ByteTokenizer({256: b"<call>"}, special={256})
    text = [words.stream(shown).push(256) for shown in (frozenset[int](), frozenset({256}))]
    assert text == ["", "<call>"]
