"""Chat completions as the official clients see them."""

import asyncio
from collections.abc import Iterable

import httpx
from openai.types.chat import ChatCompletionChunk

from headway.core.types import ServiceClass
from headway.server.routes import ServerOptions
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, live_server

MULTIBYTE = "Grüße 🎉 日本語 e\u0301 👩‍👩‍👧."


def text_of(chunks: Iterable[ChatCompletionChunk]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_unstreamed_answer() -> None:
    with live_server(FakeEngine(Script(b"Hi!", cached=16))) as server:
        answer = server.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}]
        )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Hi!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    prompt_tokens = len("user: hello\nassistant: ")
    assert answer.usage.prompt_tokens == prompt_tokens
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == prompt_tokens + 3
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16


def test_stream_has_role_content_end_and_usage_in_this_order() -> None:
    with live_server(FakeEngine(Script(b"Hi!"))) as server:
        stream = server.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    *body, usage = chunks
    assert body[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in body[1:])
    assert text_of(body) == "Hi!"
    reasons = [c.choices[0].finish_reason for c in body]
    assert reasons == [None] * (len(body) - 1) + ["stop"]
    assert body[-1].choices[0].delta.content is None
    assert all(c.usage is None for c in body)
    assert usage.choices == []
    assert usage.usage is not None and usage.usage.completion_tokens == 3
    assert len({c.id for c in chunks}) == 1


def test_events_end_with_done_and_nothing_follows() -> None:
    with live_server(FakeEngine(Script(b"Hi!"))) as server:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        answer = server.http().post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])


def test_every_chunk_is_whole_characters() -> None:
    with live_server(FakeEngine(Script(MULTIBYTE.encode()))) as server:
        client = server.client()
        stream = list(
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
            )
        )
        whole = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}]
        )
    pieces = [c.choices[0].delta.content or "" for c in stream]
    assert "".join(pieces) == MULTIBYTE == whole.choices[0].message.content
    assert not any("\ufffd" in piece for piece in pieces)


def test_choices_are_numbered_and_each_ends_once() -> None:
    with live_server(FakeEngine(Script(b"abc", cached=16))) as server:
        client = server.client()
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], n=3
        )
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            n=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert answer.usage is not None and answer.usage.completion_tokens == 9
    assert answer.usage.prompt_tokens == len("user: x\nassistant: ")
    ends = [c.choices[0].index for c in chunks if c.choices and c.choices[0].finish_reason]
    assert sorted(ends) == [0, 1, 2]
    roles = [c.choices[0].index for c in chunks if c.choices and c.choices[0].delta.role]
    assert sorted(roles) == [0, 1, 2]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 9


def test_log_probabilities_have_text_and_bytes() -> None:
    with live_server(FakeEngine(Script("é".encode()))) as server:
        client = server.client()
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            logprobs=True,
            top_logprobs=2,
        )
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            logprobs=True,
            top_logprobs=2,
            stream=True,
        )
        streamed = [
            entry
            for chunk in stream
            if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content or []
        ]
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert [entry.bytes for entry in entries] == [[0xC3], [0xA9]]
    assert [entry.logprob for entry in entries] == [-0.5, -0.5]
    assert [top.token for top in entries[0].top_logprobs] == ["A", "B"]
    assert [top.logprob for top in entries[0].top_logprobs] == [-1.0, -2.0]
    assert streamed == entries


def test_text_parts_and_developer_role() -> None:
    engine = FakeEngine()
    with live_server(engine) as server:
        server.client().chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "developer", "content": "short"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
            ],
        )
    assert bytes(engine.submitted[0].prompt) == b"system: short\nuser: ab\nassistant: "


def test_answers_can_be_sent_back_as_messages() -> None:
    with live_server(FakeEngine()) as server:
        client = server.client()
        first = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}]
        )
        answer = first.choices[0].message.model_dump()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}, answer]}
        assert server.http().post("/v1/chat/completions", json=body).status_code == 200


def test_sampling_parameters_reach_the_engine() -> None:
    engine = FakeEngine()
    with live_server(engine) as server:
        server.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            temperature=0,
            top_p=0.5,
            frequency_penalty=0.25,
            presence_penalty=-1,
            logit_bias={"65": 5, "66": -100},
            seed=-7,
            stop=["a", "b"],
            max_completion_tokens=5,
            service_tier="flex",
            user="somebody",
            extra_body={
                "top_k": 3,
                "min_p": 0.1,
                "repetition_penalty": 1.25,
                "ignore_eos": True,
                "stop_token_ids": [9],
            },
        )
    request = engine.submitted[0]
    sampling, stop = request.sampling, request.stop
    assert request.service_class is ServiceClass.BATCH
    assert sampling.temperature == 0
    truncation = sampling.truncation
    assert (truncation.top_k, truncation.top_p, truncation.min_p) == (3, 0.5, 0.1)
    penalties = sampling.penalties
    assert (penalties.repetition, penalties.presence, penalties.frequency) == (1.25, -1, 0.25)
    assert sampling.bias == {65: 5, 66: -100}
    assert sampling.seed == -7
    assert (stop.max_tokens, stop.stop, stop.stop_ids) == (5, ("a", "b"), (9,))
    assert stop.ignore_eos


async def test_a_hundred_streams_at_once() -> None:
    reply = b"0123456789" * 3
    with live_server(FakeEngine(Script(reply))) as server:
        async with server.async_client() as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": f"{number}"}],
                    max_tokens=1 + number % 30,
                    stream=True,
                )
                parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
                return "".join(parts)

            texts = await asyncio.gather(*(one(number) for number in range(100)))
    assert texts == [reply[: 1 + number % 30].decode() for number in range(100)]


def test_quiet_streams_are_kept_alive() -> None:
    engine = FakeEngine(Script(b"Hi!", hold_after=1))
    with live_server(engine, ServerOptions(keep_alive_s=0.05)) as server:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        comments = 0
        with server.http().stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            for line in lines:
                comments += line == ": keep-alive"
                if comments == 3:
                    break
            server.call(engine.release)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"


def test_a_stream_that_waits_from_the_start_is_kept_alive_too() -> None:
    engine = FakeEngine(Script(b"Hi!", hold_after=0))
    with live_server(engine, ServerOptions(keep_alive_s=0.05)) as server:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
        with server.http().stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines) == ": keep-alive"
            server.call(engine.release)
            assert text_lines(answer, lines)[-1] == "[DONE]"


def text_lines(answer: httpx.Response, lines: Iterable[str]) -> list[str]:
    assert answer.status_code == 200
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
