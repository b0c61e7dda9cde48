"""Grammars that would take too long, or the process with them."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from time import sleep

import pytest

from headway.errors import InvalidRequestError
from headway.models.grammar_trial import GrammarTrial
from headway.models.grammars import (
    GrammarCompiler,
    choice_part,
    json_part,
    lark_part,
    source_of,
)
from headway.models.loader import LoadedModel, load_model
from headway.testing.text import ByteTokenizer
from tests.models.hostile import CHAIN, PAIRS

WORDS = ByteTokenizer(), 300, {0}
GOOD = source_of(json_part({"type": "object", "properties": {"a": {"format": "date"}}}))


@pytest.fixture
def trial() -> Iterator[GrammarTrial]:
    with closing(GrammarTrial(*WORDS, cpu_s=0.5)) as trial:
        yield trial


def refusal(trial: GrammarTrial, source: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        trial.check(source, "field")
    assert caught.value.param == "field"
    return str(caught.value)


def children() -> list[int]:
    """Processes of trials that this one has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = status.with_name("cmdline").read_text()
        except OSError:  # ended meanwhile
            continue
        if parent == os.getpid() and "grammar_trial" in command:
            found.append(int(status.parent.name))
    return found


def test_what_uses_up_the_stack_is_refused_and_the_next_one_compiled(trial: GrammarTrial) -> None:
    assert refusal(trial, source_of(lark_part(CHAIN))) == "'field' is too complex to compile."
    trial.check(GOOD, "field")


def test_what_takes_too_long_is_refused_and_the_next_one_compiled(trial: GrammarTrial) -> None:
    message = refusal(trial, source_of(json_part(PAIRS)))
    assert message == "'field' takes more than 0.5 s of CPU time to compile."
    trial.check(GOOD, "field")


def test_the_limit_is_for_each_grammar_not_for_all(trial: GrammarTrial) -> None:
    """Together they take more than one may."""
    for number in range(6):
        properties = {f"p{number}_{i}": {"type": "string"} for i in range(1000)}
        trial.check(source_of(json_part({"type": "object", "properties": properties})), "field")
    assert len(children()) == 1


@pytest.mark.parametrize("source", ["start: nothing", "start: /(/", '{"grammars": []}'])
def test_reasons_are_those_of_the_compiler(trial: GrammarTrial, source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GrammarCompiler(*WORDS).compile(source, "field")
    assert refusal(trial, source) == str(caught.value)


def test_one_that_was_ended_from_outside_is_started_again(trial: GrammarTrial) -> None:
    trial.check(GOOD, "field")
    (child,) = children()
    os.kill(child, signal.SIGTERM)
    trial.check(GOOD, "field")
    assert children() not in ([], [child])
    trial.close()
    assert children() == []


def test_closing_does_not_wait_for_the_grammar_that_is_being_compiled() -> None:
    trial, said = GrammarTrial(*WORDS, cpu_s=1000.0), list[str]()
    trial.check(GOOD, "field")
    thread = Thread(target=lambda: said.append(refusal(trial, source_of(json_part(PAIRS)))))
    thread.start()
    (child,) = children()
    busy = f"/proc/{child}/stat"
    before = cpu_ticks(busy)
    while cpu_ticks(busy) < before + 20:
        sleep(0.02)
    trial.close()
    thread.join(20)
    assert said == ["'field' is too complex to compile."] and children() == []


def cpu_ticks(stat: str) -> int:
    """Of a process, a hundredth of a second each."""
    fields = Path(stat).read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Counted:
    """A trial that counts how often it was asked."""

    def __init__(self, trial: GrammarTrial) -> None:
        self.asked = 0
        self._trial = trial

    def check(self, source: str, param: str) -> None:
        self.asked += 1
        self._trial.check(source, param)

    def close(self) -> None:
        self._trial.close()


def test_each_grammar_is_tried_once(trial: GrammarTrial) -> None:
    """A job of many lines has one schema, right or wrong."""
    counted = Counted(trial)
    compiler = GrammarCompiler(*WORDS, counted)
    assert compiler.compile(GOOD, "field") is compiler.compile(GOOD, "field")
    assert counted.asked == 1
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match="nothing"):
            compiler.compile("start: nothing", "field")
    assert counted.asked == 2
    for number in range(300):
        with pytest.raises(InvalidRequestError):
            compiler.compile(f"start: nothing{number}", "field")
    with pytest.raises(InvalidRequestError):
        compiler.compile("start: nothing", "field")
    assert counted.asked == 303, "not all are remembered for ever"


def test_with_the_embedded_models_vocabulary(smollm2_path: Path) -> None:
    model: LoadedModel = load_model(smollm2_path)
    compiler = model.grammars(guarded=True)
    assert compiler is not None
    with closing(compiler):
        grammar = compiler.compile(source_of(choice_part(["yes", "no"])), "choice")
        assert (
            grammar.first_mask
            == GrammarCompiler(model.tokenizer, model.weights.config.vocab, model.stop_ids)
            .compile(source_of(choice_part(["yes", "no"])), "choice")
            .first_mask
        )
        with pytest.raises(InvalidRequestError, match="too complex to compile"):
            compiler.compile(source_of(lark_part(CHAIN)), "grammar")
    assert children() == []
