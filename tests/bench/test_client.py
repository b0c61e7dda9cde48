"""The load client against a live server."""

import asyncio
import json

import pytest

from headway.bench.client import BenchError, Client
from headway.server.routes import ServerOptions
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, live_server

BODY: dict[str, object] = {"model": MODEL, "prompt": "x", "logprobs": 0}


async def test_streams_are_read_whole_and_timed() -> None:
    with live_server(FakeEngine(Script("héllo".encode()))) as server:
        streamed = await Client(server.url).complete(BODY)
    assert streamed.text == "héllo"
    assert streamed.tokens == ["h", "bytes:\\xc3", "bytes:\\xa9", "l", "l", "o"]
    assert streamed.logprobs == [-0.5] * 6
    assert streamed.finish_reason == "stop"
    assert len(streamed.times_s) == 6
    assert 0 < streamed.ttft_s < 5
    assert streamed.times_s == sorted(streamed.times_s)


async def test_keep_alive_comments_are_no_tokens() -> None:
    engine = FakeEngine(Script(b"ab", hold_after=1))
    with live_server(engine, ServerOptions(keep_alive_s=0.02)) as server:
        server.loop.call_soon_threadsafe(server.loop.call_later, 0.1, engine.release)
        streamed = await Client(server.url).complete(BODY)
    assert (streamed.text, len(streamed.times_s)) == ("ab", 2)


async def test_what_goes_wrong_is_said() -> None:
    with live_server(FakeEngine(Script(b"abc", fail_after=2))) as server:
        client = Client(server.url)
        with pytest.raises(BenchError, match="It broke"):
            await client.complete(BODY)
        with pytest.raises(BenchError, match="does not exist"):
            await client.complete(BODY | {"model": "other"})
    with pytest.raises(BenchError, match=server.url):
        await client.complete(BODY)


async def test_an_answer_that_is_cut_between_two_chunks_has_failed() -> None:
    event = json.dumps({"choices": [{"text": "a"}]})
    data = f"data: {event}\n\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BenchError, match="127") as caught:
            await Client(f"http://127.0.0.1:{port}").complete(BODY)
    assert caught.value.kind == "broken off"


async def test_the_key_is_sent() -> None:
    with live_server(FakeEngine(), key="key") as server:
        metrics = await Client(server.url, "key").metrics()
        assert metrics['headway_kv_blocks{state="free",tier="device"}'] == 64
        with pytest.raises(BenchError, match="API key"):
            await Client(server.url).metrics()
