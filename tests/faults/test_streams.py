"""Kinds of fault in cancelling and streaming, on the real engine and over HTTP."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import httpx
import pytest

from headway.core.plan import Penalties
from headway.core.types import FinishReason
from headway.engine.types import SamplingParams
from headway.server.model import ServedModel
from headway.server.tiers import ModelNames
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import until
from tests.faults.rig import (
    BATCH,
    REALTIME,
    Ask,
    Machine,
    Rig,
    ask,
    assert_nothing_left,
    assert_same,
    clean_rig,
    engine_of,
    prompt_of,
)
from tests.server.fake_engine import PlainChat
from tests.server.live import MODEL, LiveServer, live_server
from tests.server.test_disconnect import reset, send_bytes

LETTERS = ByteTokenizer({token: chr(0x3042 + token).encode() for token in range(256)})
"""One character a token."""


SWAPS, DROPS = Machine(kv_blocks=20), Machine(kv_blocks=20, host_blocks=0)


@pytest.mark.parametrize(
    ("machine", "leaves", "computed"),
    [
        pytest.param(Machine(max_seqs=1), 6, range(1), id="queued"),
        *(pytest.param(Machine(), step, range(250), id=f"in chunk {step}") for step in range(1, 6)),
        pytest.param(Machine(), 12, range(250, 280), id="decoding"),
        pytest.param(SWAPS, 14, range(250, 280), id="swapped"),
        pytest.param(DROPS, 14, range(250, 280), id="dropped"),
    ],
)
def test_nothing_is_computed_for_a_client_that_has_gone(
    alone: Ask, machine: Machine, leaves: int, computed: range
) -> None:
    """[C1, llama.cpp #24496, #13262] Wherever its request is when it goes: the step under way is
    the last that computes for it."""
    stays, goes = ask(prompt_of(1, 30), 30), ask(prompt_of(2, 250), 30, BATCH)
    arrivals = [(0, stays), (0, goes)]
    if machine in (SWAPS, DROPS):
        arrivals.append((10, ask(prompt_of(3, 190), 8, REALTIME)))
    seen = []
    with clean_rig(machine, alone) as rig:
        opener = rig.begin(arrivals)

        def go() -> None:
            chunks = [c for plan in rig.executor.plans for c in plan.chunks if c.request == 2]
            seen.append(sum(len(chunk.tokens) for chunk in chunks))
            assert bool(rig.preemptions(2)) is (machine in (SWAPS, DROPS))
            rig.cancel(2)

        rig.at(leaves, go)
        answers = rig.finish()[opener + 1 :]
        assert answers[1].finish is FinishReason.ABORT
        assert seen[0] in computed
        assert [step for step in rig.chunk_steps(2) if step > leaves] == []
        assert answers[1].tokens == alone(goes).tokens[: len(answers[1].tokens)]
        assert_same(answers[0], alone(stays), "who stays")


@contextmanager
def served(machine: Machine, words: ByteTokenizer = LETTERS) -> Iterator[tuple[LiveServer, Rig]]:
    """The engine behind HTTP."""
    with engine_of(machine, words) as rig:
        model = ServedModel(
            ModelNames(MODEL), words, PlainChat(), rig.engine.max_model_len, created=1
        )
        with live_server(rig.engine, model=model, metrics=rig.metrics) as server:
            yield server, rig


def body(prompt: Sequence[int], max_tokens: int, **more: object) -> str:
    """A greedy completion request of the batch class."""
    fields: dict[str, object] = {"model": MODEL, "prompt": list(prompt), "max_tokens": max_tokens}
    fields |= {"temperature": 0, "ignore_eos": True, "service_tier": "batch"}
    return json.dumps(fields | more)


def chunks_of(http: httpx.Client, sent: str) -> list[str]:
    """The texts of a streamed answer, chunk by chunk."""
    lines = http.post("/v1/completions", content=sent).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [event["choices"][0]["text"] for event in events if event["choices"]]


@pytest.mark.parametrize("stream", [False, True])
def test_connections_reset_while_the_pool_is_full_harm_nobody(alone: Ask, stream: bool) -> None:
    """[C2, OpenVINO model_server #4428] RST from 12 clients; their neighbours' tokens are right."""
    neighbours = [prompt_of(i, 30 + i) for i in range(3)]
    with served(Machine(kv_blocks=16, host_blocks=8)) as (server, rig):
        staying = [body(prompt, 60, stream=True) for prompt in neighbours]
        going = [body(prompt_of(20 + i, 40), 400, stream=stream) for i in range(12)]
        for step in range(1, 100):
            rig.at(step, partial(time.sleep, 0.006))  # nobody ends before the last has come
        with httpx.Client(base_url=server.url, timeout=20) as http:
            gone = [send_bytes(server, len(sent), sent) for sent in going]
            until(lambda: alive(rig) == 12)
            until(lambda: rig.engine.snapshot().device.used > 12)
            others = [send_bytes(server, len(sent), sent) for sent in staying[:2]]
            for connection in gone:
                reset(connection)
            texts = "".join(chunks_of(http, staying[2]))
            answers = [read_stream(connection) for connection in others]
        until(lambda: rig.engine.snapshot().idle)
        wanted = [LETTERS.decode(alone(ask(prompt, 60)).ids) for prompt in neighbours]
        assert [*answers, texts] == wanted
        shown = server.gauges()
        assert shown['headway_finished_total{reason="abort",service_class="batch"}'] == 12
        assert_nothing_left(rig, alone)


def alive(rig: Rig) -> int:
    """Batch requests under way."""
    counts = rig.engine.snapshot().classes[BATCH]
    return counts.waiting + counts.running + counts.paused + counts.swapped


def read_stream(connection: socket.socket) -> str:
    """The text of a streamed answer on a plain socket, read to its end."""
    raw = b""
    while b"data: [DONE]" not in raw:
        piece = connection.recv(65536)
        assert piece, "the server hung up"
        raw += piece
    connection.close()
    lines = [line for line in raw.decode().splitlines() if line.startswith("data: {")]
    events = [json.loads(line[6:]) for line in lines]
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


@pytest.mark.parametrize("length", [2, 3, 4])
def test_no_part_of_a_stop_string_is_sent(alone: Ask, length: int) -> None:
    """[A1, vllm #3574, TGI #1254] Strings over several tokens, with candidates that overlap, end
    the same streamed or not; a tail that was held back and came to nothing is released."""
    prompt = prompt_of(5, 40)
    text = LETTERS.decode(alone(ask(prompt, 30)).ids)
    hit = text[12 : 12 + length]
    cut = text.find(hit)
    near = [text[4 : 3 + length] + "!", text[11:13] + "!", hit]
    tail = [text[27:] + "!"]
    with served(Machine()) as (server, rig):
        http = server.http()
        for stop, expected in ((near, text[:cut]), (tail, text)):
            sent = body(prompt, 30, stop=stop)
            whole = http.post("/v1/completions", content=sent).json()["choices"][0]
            pieces = chunks_of(http, body(prompt, 30, stop=stop, stream=True))
            assert whole["text"] == "".join(pieces) == expected
            assert whole["finish_reason"] == ("stop" if expected != text else "length")
        assert_nothing_left(rig, alone)


SPELLED = "Grüße 🎉 漢字かな café e\u0301 👩‍🚀"
"""Two-, three- and four-byte characters, a combining mark, a joined emoji."""


@pytest.mark.parametrize("bytes_each", [1, 2, 3])
def test_a_character_cut_between_tokens_comes_in_one_piece(alone: Ask, bytes_each: int) -> None:
    """[A5, TGI, llama.cpp #4446] Every chunk is valid text; together they are the whole.

    The model's answer is found first, then its tokens are given the bytes to spell.
    """
    data = SPELLED.encode()
    pieces = [data[at : at + bytes_each] for at in range(0, len(data), bytes_each)]
    never_twice = SamplingParams(temperature=0.0, penalties=Penalties(100.0, 2.0, 2.0))
    request = ask(prompt_of(5, 20), len(pieces), BATCH, never_twice)
    ids = alone(request).ids
    assert len(set(ids)) == len(pieces)
    words = ByteTokenizer(dict(zip(ids, pieces, strict=True)))
    with served(Machine(), words) as (server, rig):
        penalties = {"repetition_penalty": 100, "presence_penalty": 2, "frequency_penalty": 2}
        sent = body(request.prompt, len(ids), **penalties)
        http = server.http()
        whole = http.post("/v1/completions", content=sent).json()["choices"][0]["text"]
        sent = body(request.prompt, len(ids), stream=True, **penalties)
        chunks = chunks_of(http, sent)
        assert whole == "".join(chunks) == SPELLED
        assert not any("\ufffd" in chunk for chunk in chunks)
        assert_nothing_left(rig, alone)
