"""Grammars that are being compiled for long: nobody else waits for them."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from headway.errors import InvalidRequestError
from headway.models.grammars import GrammarCompiler
from headway.server.line_answer import LineAnswerer
from headway.server.model import ServedModel
from headway.server.routes import COMPLETION_PATH
from headway.server.tiers import ModelNames
from headway.testing.text import ByteTokenizer
from tests.server.fake_engine import FakeEngine, PlainChat
from tests.server.live import MODEL, LiveServer, eventually, live_server

MANY = 40
"""More than there are threads for anything."""


class SlowTrial:
    """Refuses everything, once the test lets it; `most`: were at it at once."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.now = self.most = 0
        self._lock = threading.Lock()

    def check(self, source: str, param: str) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.let.wait(20)
        with self._lock:
            self.now -= 1
        raise InvalidRequestError("It took too long.", param)

    def close(self) -> None:
        self.let.set()


def served(trial: SlowTrial) -> ServedModel:
    words = ByteTokenizer()
    grammars = GrammarCompiler(words, 300, {0}, trial)
    return ServedModel(ModelNames(MODEL), words, PlainChat(), 2048, created=1, grammars=grammars)


def constrained(number: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "prompt": "x",
        "structured_outputs": {"choice": [f"answer {number}"]},
    }


@contextmanager
def besieged(server: LiveServer, trial: SlowTrial) -> Iterator[list[int]]:
    """Many requests with grammars under way until the block ends; their statuses, afterwards."""
    statuses: list[int] = []

    def post(number: int) -> None:
        body = constrained(number)
        response = httpx.post(f"{server.url}{COMPLETION_PATH}", json=body, timeout=30)
        statuses.append(response.status_code)

    threads = [threading.Thread(target=post, args=(number,)) for number in range(MANY)]
    for thread in threads:
        thread.start()
    eventually(lambda: trial.now > 1)
    try:
        yield statuses
    finally:
        trial.let.set()
        for thread in threads:
            thread.join(30)


def test_requests_without_a_grammar_dont_wait() -> None:
    with (
        closing(SlowTrial()) as trial,
        live_server(FakeEngine(), model=served(trial)) as server,
        besieged(server, trial) as statuses,
    ):
        http = server.http()
        for prompt in ("short", "long " * 400):
            body = {"model": MODEL, "prompt": prompt, "user": "x" * 20_000}
            assert http.post(COMPLETION_PATH, json=body).status_code == 200
        tokens = http.post("/tokenize", json={"model": MODEL, "prompt": "abc"})
        assert tokens.status_code == 200
        assert trial.most < MANY and not statuses
    assert statuses == [400] * MANY


def test_lines_of_jobs_compile_one_at_a_time() -> None:
    """So that requests wait for one of them at most."""
    with closing(SlowTrial()) as trial:
        answerer = LineAnswerer(FakeEngine(), served(trial))

        async def answered() -> list[int]:
            lines = [
                asyncio.create_task(
                    answerer.answer(COMPLETION_PATH, json.dumps(constrained(i)).encode(), "")
                )
                for i in range(3)
            ]
            while not trial.now:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            trial.let.set()
            return [(await line).status for line in lines]

        assert asyncio.run(answered()) == [400] * 3
    assert trial.most == 1
