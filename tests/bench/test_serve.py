"""`headway bench serve` against live servers: what it sends, counts and says."""

import asyncio
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.bench.client import BenchError, Client, Streamed, Usage
from headway.bench.dialect import Dialect
from headway.bench.outcomes import outcome, table
from headway.bench.replay import CUT, NOT_DONE, Recording, Replay, Sample, Span, words_a_token
from headway.bench.traffic import Stream, from_streams, parse_stream
from headway.cli import main
from headway.core.types import ServiceClass
from headway.simulate.figures import Objective
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, live_server

REALTIME = "realtime:rate=20,prompt=30,answer=4"
BATCH = "batch:streams=3,prompt=40,answer=6"


def load(engine: FakeEngine, *texts: str, priority: str = "service_tier") -> Recording:
    """A second of traffic."""
    streams: list[Stream] = [parse_stream(text) for text in texts]
    with live_server(engine) as server:
        replay = Replay(
            Client(server.url),
            Dialect(MODEL, priority=priority),
            from_streams(streams, 1.0, seed=1),
            Span(1.0, warmup_s=0.2, grace_s=1.0),
            words_a_token=1.0,
        )
        return asyncio.run(replay.run(lambda recording, elapsed_s: None))


def test_open_and_closed_loop_reach_the_server_in_their_classes() -> None:
    engine = FakeEngine(Script(b"abcdefgh"))
    recording = load(engine, REALTIME, BATCH)
    sent = [request.service_class for request in engine.submitted]
    planned = len(from_streams([parse_stream(REALTIME)], 1.0, seed=1).arrivals)
    assert sent.count(ServiceClass.REALTIME) == planned
    assert sent.count(ServiceClass.BATCH) > 3
    assert {len(s.answer.times_s) for s in recording.samples if not s.error} == {4, 6}
    assert recording.message == ""


def test_the_schedule_is_kept_when_the_server_is_slow() -> None:
    engine = FakeEngine(Script(b"abcdefgh", hold_after=1))  # no answer ever ends
    recording = load(engine, REALTIME, BATCH)
    planned = len(from_streams([parse_stream(REALTIME)], 1.0, seed=1).arrivals)
    sent = [request.service_class for request in engine.submitted]
    assert sent.count(ServiceClass.REALTIME) == planned
    assert sent.count(ServiceClass.BATCH) == 3
    assert {s.error for s in recording.samples} == {NOT_DONE, CUT}
    seen = outcome(recording, {}).classes
    assert set(seen[ServiceClass.REALTIME].errors) == {NOT_DONE}
    assert seen[ServiceClass.BATCH].errors == {}


def test_failures_are_counted_by_kind() -> None:
    recording = load(FakeEngine(Script(b"abcdefgh", fail_after=2)), REALTIME)
    seen = outcome(recording, {}).classes[ServiceClass.REALTIME]
    assert seen.requests == 0
    assert set(seen.errors) == {"error in the stream"}
    assert "It broke" in recording.message


def test_a_server_that_is_gone_ends_a_flood() -> None:
    with live_server(FakeEngine()) as server:
        url = server.url
    traffic = from_streams([parse_stream(BATCH)], 60.0, seed=1)
    replay = Replay(Client(url), Dialect(MODEL), traffic, Span(60.0), 1.0, most_in_a_row=4)
    with pytest.raises(BenchError, match="4 failures in a row"):
        asyncio.run(replay.run(lambda recording, elapsed_s: None))


def test_words_are_scaled_to_the_servers_tokens() -> None:
    with live_server(FakeEngine()) as server:  # a token a byte
        ratio = asyncio.run(words_a_token(Client(server.url), Dialect(MODEL)))
    assert 0.1 < ratio < 0.25


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("priority", ["service_tier", "header"])
def test_both_routes_and_both_ways_to_say_the_class(endpoint: str, priority: str) -> None:
    engine = FakeEngine(Script(b"abcdefgh"))
    with live_server(engine) as server:
        dialect = Dialect(MODEL, endpoint, priority, ignore_eos=False)
        streamed = Streamed(0.0)
        ask = dialect.ask(ServiceClass.BATCH, "one two", 5)
        asyncio.run(Client(server.url).stream(ask, streamed))
    assert (streamed.text, len(streamed.times_s)) == ("abcde", 5)
    assert streamed.usage is not None
    assert streamed.usage.completion_tokens == 5
    assert engine.submitted[0].service_class is ServiceClass.BATCH


def test_other_servers_are_told_in_their_own_words() -> None:
    body = Dialect("m", priority="priority").ask(ServiceClass.REALTIME, "x", 1).body
    assert body["priority"] == -100
    assert "service_tier" not in body
    plain = Dialect("m", priority="none").ask(ServiceClass.BATCH, "x", 1)
    assert not {"priority", "service_tier"} & set(plain.body)
    assert plain.headers == ()


def sample(due_s: float, gaps_s: list[float], tokens: int, error: str = "") -> Sample:
    """Sent when due; events after the gaps."""
    times_s, at_s = [], due_s
    for gap_s in gaps_s:
        at_s += gap_s
        times_s.append(at_s)
    answer = Streamed(due_s, times_s, usage=Usage(10, tokens))
    return Sample(ServiceClass.REALTIME, due_s, answer, at_s, error)


def test_figures_by_hand() -> None:
    recording = Recording(begin_s=10.0, end_s=20.0)
    recording.samples = [
        sample(9.0, [0.5, 2.0], 2),  # in the warm-up; one of its tokens comes after
        sample(11.0, [0.1, 0.2, 0.2], 5),  # an event of several tokens
        sample(12.0, [0.3, 0.4], 2),
        sample(13.0, [], 0, "status 429"),
    ]
    result = outcome(recording, {ServiceClass.REALTIME: Objective(0.2, 0.15)})
    seen = result.classes[ServiceClass.REALTIME]
    assert (seen.requests, seen.errors) == (2, {"status 429": 1})
    assert seen.ttft.p50 == pytest.approx(0.2)
    assert seen.itl.count == 3
    assert seen.tpot.p50 == pytest.approx((0.4 / 4 + 0.4) / 2)
    assert seen.e2e.most == pytest.approx(0.7)
    assert seen.tokens_per_s == pytest.approx((1 + 5 + 2) / 10)
    assert seen.good_per_s == pytest.approx(0.1)
    assert seen.tail == "p90"
    lines = list(table(result))
    assert "realtime: 1 x status 429" in lines
    assert not result.doubts


def test_a_client_that_was_held_up_says_so() -> None:
    recording = Recording(begin_s=0.0, end_s=1.0)
    recording.strain.late_s = [0.5] * 100
    recording.strain.slips_s = [0.3] * 100
    recording.strain.cpu_s, recording.strain.elapsed_s = 0.95, 1.0
    doubts = outcome(recording, {}).doubts
    assert [word in doubt for word, doubt in zip(("late", "held up", "95%"), doubts, strict=True)]


@contextmanager
def served() -> Iterator[str]:
    """A server's URL, usable from a command that runs an event loop of its own."""
    with live_server(FakeEngine(Script(b"abcdefgh"))) as server:
        yield server.url


def test_the_command_writes_a_table_json_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "out.json", tmp_path / "out.html"
    with served() as url:
        flags = ["--seconds", "2", "--warmup", "0.1", "--json", str(out), "--html", str(report)]
        assert main(["bench", "serve", url, "--traffic", REALTIME, "--traffic", BATCH, *flags]) == 0
    printed = capsys.readouterr().out
    assert "realtime" in printed
    document = json.loads(out.read_text())
    assert document["settings"]["model"] == MODEL
    assert document["classes"]["batch"]["requests"] > 0
    page = report.read_text()
    assert "http://" not in page.replace(url, "")
    assert page.count("<svg") == 4
    for part in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part.split("</svg>")[0] + "</svg>")


@pytest.mark.parametrize(
    "load", ["realtime:rate=20,prompt=900,answer=4", "batch:streams=1,prompt=900,answer=4"]
)
def test_a_server_that_refuses_everything_is_one_line(
    load: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ratio(client: Client, dialect: Dialect) -> float:
        return 1.0

    monkeypatch.setattr("headway.cli.bench_serve.words_a_token", ratio)
    with served() as url:
        flags = ["--traffic", load, "--seconds", "0.5", "--warmup", "0.1"]
        assert main(["bench", "serve", url, *flags]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "no request was answered" in err and " x status 400; http://" in err
    assert "tokens; with room for one more" in err and "{" not in err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>\n<b>no</b>", "<html> <b>no</b>"),
        (b"", "no reason given"),
        (b'{"error": {"message": "too\\nlong"}}', "too long"),
        (b'{"error": "too long"}', '{"error": "too long"}'),
    ],
)
def test_a_refusal_is_told_in_one_line(body: bytes, said: str) -> None:
    async def refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 x\r\n\r\n" + body)
        writer.close()

    async def asked() -> None:
        server = await asyncio.start_server(refused, "127.0.0.1")
        async with server:
            port = server.sockets[0].getsockname()[1]
            await Client(f"http://127.0.0.1:{port}").models()

    with pytest.raises(BenchError, match=rf"/v1/models: {re.escape(said)}$"):
        asyncio.run(asked())


def test_a_trace_is_replayed_by_classes(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as url:
        flags = ["--classes", "standard=1", "--prompt", "20", "--answer", "3", "--seconds", "1"]
        flags += ["--warmup", "0.1"]
        assert main(["bench", "serve", f"{url}/v1", "--trace", "poisson:20", *flags]) == 0
    assert "standard" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["ftp://x", "--traffic", REALTIME], "no URL of a server: http"),
        (["http://127.0.0.1:99999", "--traffic", REALTIME], "no URL"),
        (["http://127.0.0.1:9", "--traffic", "batch:rate=1e9,prompt=1,answer=1"], "10,000,000"),
        (["http://127.0.0.1:9"], "either --traffic"),
        (["http://127.0.0.1:9", "--traffic", REALTIME, "--trace", "poisson"], "either"),
        (["http://127.0.0.1:9", "--traffic", REALTIME], "127.0.0.1:9"),
        (["http://127.0.0.1:9", "--traffic", REALTIME, "--seconds", "5"], "warm-up"),
        (["http://127.0.0.1:9", "--traffic", "x"], "CLASS:KEY=VALUE"),
        (["http://127.0.0.1:9", "--trace", "no-such-file"], "no-such-file"),
        (["http://127.0.0.1:9", "--traffic", "realtime:rate=0.001,prompt=1,answer=1"], "arrives"),
        (["http://127.0.0.1:9", "--traffic", REALTIME, "--objectives", "x"], "CLASS.ttft"),
        (["http://127.0.0.1:9", "--traffic", REALTIME, "--json", "/no/such/x.json"], "/no/such"),
    ],
)
def test_what_is_wrong_is_one_line(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error
