"""What is left in the process after requests of every kind: nothing that grows with their number,
but for names of the latest, of which there is an end."""

import gc
import socket
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import httpx

from headway.assembly import EngineOptions, Sizes, build_engine
from headway.batches.desk import BatchDesk
from headway.core.types import RequestId
from headway.models.loader import load_model
from headway.server.batch_routes import BatchService, build_batch_router
from headway.server.dashboard.recent import Recent
from headway.server.metrics import Metrics
from headway.server.model import ServedModel
from headway.server.names import RequestNames
from headway.server.routes import BODIES
from headway.server.tiers import ModelNames
from tests.server.fake_engine import PlainChat
from tests.server.live import MODEL, LiveServer, eventually, live_server
from tests.soak.process import tiny_model

WARM_ROUNDS = 10
ROUNDS = 20

KEPT_BYTES = 700
"""Most that is kept of a choice while there is room: its name and number, its first token."""

CHOICES = 9
"""Of a round, of which that is kept."""

SLACK_BYTES = 128 << 10
"""For tables that double, the interpreter, the client and the last answers."""

STEPS = 1000
"""After which what is kept of the latest steps is complete."""

BOUNDED = {
    "FirstToken",  # for the live page
    "ReferenceType",  # SQLite's cursors, whose dead ones are cleared away by the hundred
    "SplitResult",  # paths that urllib has parsed
    *("TimerHandle", "Context", "hamt", "hamt_bitmap_node"),  # of timers that were cancelled
}
"""Types of which there are some hundreds at most, and then no more."""

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


@contextmanager
def tiny(folder: Path) -> Iterator[LiveServer]:
    """A server as people run it, but for its model."""
    loaded, desk = load_model(tiny_model(folder)), BatchDesk(folder / "data")
    # A second passes at each look, so that what is kept of the last five minutes is soon complete.
    metrics, recent = Metrics(), Recent(count(0.0).__next__)
    sizes = EngineOptions(Sizes(kv_blocks=64, max_seqs=8, max_model_len=256))
    engine = build_engine(loaded, sizes, [metrics, recent])
    names, grammars = ModelNames(MODEL), loaded.grammars()
    model = ServedModel(names, loaded.tokenizer, PlainChat(), 256, created=1, grammars=grammars)
    engine.start()
    try:
        with live_server(
            engine,
            model=model,
            metrics=metrics,
            batches=lambda gate: build_batch_router(BatchService(desk, gate, list(BODIES))),
        ) as server:
            yield server
    finally:
        engine.stop()
        desk.close()


def kinds(server: LiveServer, http: httpx.Client) -> Sequence[Callable[[], None]]:
    """One request each, whose answer is checked."""

    def post(path: str, status: int, **fields: object) -> None:
        fields = {"model": MODEL, **fields}
        if path != "/tokenize":
            fields = {"max_tokens": 4, **fields}
        response = http.post(path, json=fields)
        assert response.status_code == status, response.text

    def get(path: str, status: int) -> None:
        assert http.get(path).status_code == status

    def leave() -> None:
        """In the middle of a stream."""
        body = b'{"model": "%s", "prompt": "x", "max_tokens": 200, "stream": true}' % MODEL.encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(body)
        )
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(head + body)
            assert connection.recv(1000)

    def keep_and_delete() -> None:
        files = {"file": ("x.jsonl", b'{"custom_id": "a"}\n')}
        made = http.post("/v1/files", files=files, data={"purpose": "batch"})
        assert http.delete(f"/v1/files/{made.json()['id']}").status_code == 200

    text, chat = "/v1/completions", "/v1/chat/completions"
    turns = [{"role": "user", "content": "x"}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    return [
        partial(post, text, 200, prompt="x"),
        partial(post, text, 200, prompt="x", n=3, logprobs=2, seed=1),
        partial(post, text, 200, prompt="x", stream=True, stop=["never"]),
        partial(post, text, 200, prompt="x", structured_outputs={"choice": ["ab", "cd"]}),
        partial(post, chat, 200, messages=turns, stream=True, service_tier="priority"),
        partial(post, chat, 200, messages=turns, response_format=form),
        partial(post, text, 504, prompt="x", timeout=1e-9),
        partial(post, text, 400, prompt=[5] * 300),
        partial(post, text, 400, prompt="x", temperature=9),
        partial(post, text, 400, prompt="x", structured_outputs={"regex": "("}),
        partial(post, text, 404, prompt="x", model="other"),
        partial(post, "/tokenize", 200, prompt="x"),
        partial(get, "/metrics", 200),
        partial(get, "/v1/models", 200),
        partial(get, "/nowhere", 404),
        leave,
        keep_and_delete,
    ]


def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with tiny(tmp_path) as server, httpx.Client(base_url=server.url, timeout=20) as http:
            todo = kinds(server, http)

            def rounds(number: int) -> tuple[int, Counter[str]]:
                for _ in range(number):
                    for each in todo:
                        each()
                eventually(lambda: not any(map(server.gauges().get, LIVE)), 20)
                gc.collect()
                types = Counter(type(o).__name__ for o in gc.get_objects())
                return tracemalloc.get_traced_memory()[0], types

            rounds(WARM_ROUNDS)
            for _ in range(0, STEPS, 200):
                http.post(
                    "/v1/completions",
                    json={"model": MODEL, "prompt": "x", "max_tokens": 200, "ignore_eos": True},
                )
            before, types_before = rounds(1)
            after, types_after = rounds(ROUNDS)
    finally:
        tracemalloc.stop()
    more = {k: n for k, n in (types_after - types_before).items() if n >= ROUNDS}
    more = {k: n for k, n in more.items() if k not in BOUNDED}
    assert not more, "objects of these types, one a round or more"
    most = ROUNDS * CHOICES * KEPT_BYTES + SLACK_BYTES
    assert after - before < most, f"{(after - before) / ROUNDS:.0f} bytes a round"


LIVE = [
    f'headway_requests{{service_class="{name}",state="{state}"}}'
    for name in ("realtime", "standard", "batch")
    for state in ("waiting", "running", "paused", "swapped")
]


def test_names_of_requests_have_an_end() -> None:
    names = RequestNames(kept=50)
    for number in range(1000):
        names.note(f"req_{number}", [RequestId(number)])
    kept = names.of(map(RequestId, range(1000)))
    assert kept == {number: f"req_{number}" for number in range(950, 1000)}
