"""The live page's data and files, without a browser."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from time import monotonic
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.picture import Picture
from headway.core.plan import StepPlan, StepResult, StepTiming
from headway.core.record import Evicted, Left, StepRecord
from headway.core.types import Lane, PreemptKind, RequestId, ServiceClass
from headway.engine.types import StepEnd
from headway.errors import EngineStoppedError
from headway.server.dashboard.feed import Feed, FeedOptions, Sources
from headway.server.dashboard.frames import JobLine, runs
from headway.server.dashboard.recent import MOST_FIRSTS, Cursor, Recent
from headway.server.dashboard.routes import page_paths
from headway.server.errors import ApiError
from headway.server.metrics_families import Build
from headway.server.operate import Insight
from headway.testing import LinearDuration, ManualClock, WallClock, make_capacity
from headway.testing.builders import make_prompt
from tests.engine.helpers import Rig, greedy, make_rig, running
from tests.packaging.project import ROOT
from tests.server.fake_engine import FakeEngine
from tests.server.live import LiveServer, live_server

REALTIME, STANDARD, BATCH = ServiceClass
STATIC = ROOT / "headway/server/dashboard/static"
SLOW = LinearDuration(step_s=0.005, token_s=0.0, block_s=0.0)
QUICK = FeedOptions(interval_s=0.02, most_watchers=2, patience_s=0.2)

holders = st.lists(st.integers(-3, 5), min_size=1, max_size=40)


def apply(changes: Sequence[Sequence[int]], before: list[int]) -> list[int]:
    """What the page does with runs."""
    after = list(before)
    for start, length, holder in changes:
        after[start : start + length] = [holder] * length
    return after


@given(data=st.data(), now=holders)
def test_runs_turn_what_was_into_what_is(data: st.DataObject, now: list[int]) -> None:
    same_length = st.lists(st.integers(-3, 5), min_size=len(now), max_size=len(now))
    before = data.draw(same_length)
    assert apply(list(runs(now, before)), before) == now
    assert apply(list(runs(now, None)), before) == now
    assert list(runs(now, now)) == []


def test_what_little_changes_is_told_briefly() -> None:
    before = list(range(1000))
    assert list(runs([*before[:500], -1, *before[501:]], before)) == [(500, 1, -1)]
    assert list(runs([7] * 500 + [8] * 500, [8] * 1000)) == [(0, 500, 7)]


class TestRecent:
    """What is remembered of the last minutes."""

    def test_first_tokens_are_told_once(self) -> None:
        clock = ManualClock()
        recent = Recent(clock)
        recent.on_tokens(REALTIME, [0.04], first=True)
        clock.advance(0.5)
        recent.on_tokens(BATCH, [2.0], first=True)
        news = recent.news(Cursor())
        assert [(f.when_s, f.service_class, f.ttft_s) for f in news.firsts] == [
            (0.0, REALTIME, 0.04),
            (0.5, BATCH, 2.0),
        ]
        assert recent.news(news.cursor).firsts == []

    def test_seconds_have_quantiles_by_class(self) -> None:
        clock = ManualClock()
        clock.advance(10)
        recent = Recent(clock)
        recent.on_tokens(REALTIME, [0.2], first=True)
        for i in range(100):
            recent.on_tokens(REALTIME, [0.001 * (i + 1)], first=False)
        assert recent.news(Cursor()).seconds == []
        clock.advance(1.5)
        (second,) = recent.news(Cursor()).seconds
        realtime, batch = second.classes[REALTIME], second.classes[BATCH]
        assert (realtime.tokens, batch.tokens, batch.itl_p95_s) == (101, 0, 0.0)
        assert realtime.itl_p50_s == pytest.approx(0.051)
        assert realtime.itl_p95_s == pytest.approx(0.096)
        clock.advance(60)  # nothing happens: there is no second to tell of
        assert len(recent.news(Cursor()).seconds) == 1

    def test_preemptions_say_for_whom_and_pauses_are_counted_once(self) -> None:
        clock = ManualClock()
        recent = Recent(clock)
        victim = Evicted(RequestId(1), RequestId(0), PreemptKind.SWAP, 0.1, 6)
        left = (Left(RequestId(2), "the step was full"),)
        record = StepRecord(5, Lane.UNIFIED, 1.0, 0.2, evicted=(victim,), paused=left)
        classes = {RequestId(0): REALTIME, RequestId(1): BATCH, RequestId(2): STANDARD}
        result = StepResult(5, timing=StepTiming(compute_s=0.3))
        for _ in range(2):
            recent.on_step(StepEnd(StepPlan(5, Lane.UNIFIED), record, result, classes, 0.0))
        clock.advance(2)
        news = recent.news(Cursor())
        first = news.preemptions[0]
        assert len(news.preemptions) == 2
        assert (first.kind, first.request, first.wanted_by, first.blocks) == ("swap", 1, 0, 6)
        assert (first.service_class, first.wanted_by_class) == (BATCH, REALTIME)
        assert news.seconds[0].classes[STANDARD].pauses == 1

    def test_what_is_kept_is_bounded(self) -> None:
        recent = Recent(ManualClock())
        for _ in range(MOST_FIRSTS + 500):
            recent.on_tokens(BATCH, [0.1], first=True)
        firsts = recent.news(Cursor()).firsts
        assert len(firsts) == MOST_FIRSTS
        assert firsts[-1].number == MOST_FIRSTS + 499


class Album:
    """A picture source that counts, and keeps what it gave."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.pictures: list[Picture] = []

    async def picture(self) -> Picture:
        picture = await self._rig.engine.picture()
        self.pictures.append(picture)
        return picture


@contextmanager
def feed(options: FeedOptions = QUICK) -> Iterator[tuple[Feed, Album, Rig]]:
    """A feed over an engine on the scripted executor."""
    clock = WallClock()
    recent = Recent(clock)
    capacity = make_capacity(kv_blocks=12, host_blocks=12, max_seqs=4, max_model_len=128)
    with running(make_rig(capacity, clock=clock, duration=SLOW, observers=[recent])) as rig:
        album = Album(rig)
        jobs = [JobLine("batch_1", "in_progress", 10, 4, 1)]
        sources = Sources(album, rig.engine.snapshot, recent, lambda: jobs, clock, "tiny")
        yield Feed(sources, options), album, rig


@asynccontextmanager
async def watching(feed: Feed) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """A page's events, decoded."""

    async def decoded(source: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Any]]:
        async for raw in source:
            found = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", raw.decode())
            assert found is not None
            yield found[1], json.loads(found[2])

    async with asyncio.timeout(20), aclosing(feed.events(lambda: True)) as source:
        yield decoded(source)


async def test_a_page_can_rebuild_what_the_scheduler_has() -> None:
    with feed() as (shown, album, rig):
        batch = rig.engine.submit(greedy(make_prompt(1, 90), 30, BATCH))
        async with watching(shown) as events:
            name, hello = await anext(events)
            assert (name, hello["model"], hello["blocks"]) == ("hello", "tiny", 12)
            device, host = [-1] * 12, [-1] * 12
            realtime, seen = None, set()
            async for _, frame in events:
                device, host = apply(frame["blocks"], device), apply(frame["host"], host)
                (picture,) = [p for p in album.pictures if p.step == frame["step"]][-1:]
                assert (tuple(device), tuple(host)) == (picture.device, picture.host)
                assert [row[0] for row in frame["sequences"]] == [
                    view.request for view in picture.sequences
                ]
                assert frame["jobs"][0]["completed"] == 4
                seen |= {p["kind"] for p in frame["preemptions"]}
                if realtime is None and frame["sequences"] and frame["sequences"][0][5] > 2:
                    realtime = rig.engine.submit(greedy(make_prompt(2, 100), 4, REALTIME))
                if seen:
                    break
        assert seen == {"swap"}
        await batch.aclose()


async def test_nobody_watches_nothing_is_taken() -> None:
    with feed() as (shown, album, _):
        await asyncio.sleep(0.1)
        assert album.pictures == []
        async with watching(shown) as events:
            await anext(events)
            assert shown.watchers == 1
        count = len(album.pictures)
        await asyncio.sleep(0.1)
        assert shown.watchers == 0 and len(album.pictures) == count


async def test_two_pages_share_pictures_and_a_third_is_refused() -> None:
    with feed() as (shown, album, _):
        async with watching(shown) as one, watching(shown) as other:
            for events in (one, other):
                assert (await anext(events))[0] == "hello"
            full = [[(await anext(events))[1]["full"] for events in (one, other)] for _ in range(5)]
            with pytest.raises(ApiError, match="Too many pages"):
                shown.require_room()
        assert full == [[True, True]] + [[False, False]] * 4
        assert len(album.pictures) <= 8


async def test_pictures_come_no_faster_than_they_may() -> None:
    with feed(FeedOptions(interval_s=0.1)) as (shown, album, _):
        began_s = monotonic()
        async with watching(shown) as events:
            for _ in range(6):
                await anext(events)
        assert monotonic() - began_s >= 0.4
        assert len(album.pictures) <= 6


async def test_a_page_ends_with_the_engine() -> None:
    with feed() as (shown, _, rig):
        async with watching(shown) as events:
            await anext(events)
            rig.engine.stop()
            assert [name async for name, _ in events if name != "frame"] == []
        with pytest.raises(EngineStoppedError):
            await rig.engine.picture()


@contextmanager
def page_server(key: str | None = None) -> Iterator[LiveServer]:
    """A server with the live page."""
    clock = WallClock()
    recent = Recent(clock)
    with running(make_rig(clock=clock, duration=SLOW, observers=[recent])) as rig:
        sources = Sources(rig.engine, rig.engine.snapshot, recent, None, clock, "tiny")
        insight = Insight(Build("1", "tiny"), None, sources)
        with live_server(FakeEngine(), insight=insight, key=key) as server:
            yield server


def test_the_page_and_its_files() -> None:
    with page_server() as server:
        http = server.http()
        for path in page_paths():
            answer = http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert http.get("/dashboard").headers["content-type"].startswith("text/html")
        for name in ("nothing.js", "%2e%2e%2froutes.py", "..%2froutes.py"):
            assert http.get(f"/dashboard/{name}").status_code == 404


def test_with_a_key_the_data_needs_it_and_the_files_do_not() -> None:
    with page_server("secret") as server:
        stranger = httpx.Client(base_url=server.url, timeout=10)
        assert stranger.get("/dashboard").status_code == 200
        door = stranger.get("/")
        assert (door.status_code, door.headers["location"]) == (307, "dashboard")
        assert stranger.get("/dashboard/app.js").status_code == 200
        assert stranger.get("/dashboard/data").status_code == 401
        assert stranger.get("/metrics").status_code == 401
        stranger.close()
        with server.http().stream("GET", "/dashboard/data") as data:
            assert data.headers["content-type"].startswith("text/event-stream")
            assert next(data.iter_lines()) == "event: hello"


def test_a_server_that_stops_ends_the_pages_too() -> None:
    with page_server() as server, server.http().stream("GET", "/dashboard/data") as data:
        lines = data.iter_lines()
        assert next(lines) == "event: hello"
        server.call(server.listener.stop)
        assert list(lines)[-1] == ""


def test_without_pictures_there_is_no_page() -> None:
    with live_server(FakeEngine()) as server:
        assert server.http().get("/dashboard").status_code == 404


def test_the_page_asks_nobody_else_for_anything() -> None:
    names = {path.name for path in STATIC.iterdir()}
    wanted = set()
    for path in STATIC.iterdir():
        text = path.read_text()
        assert not re.findall(r"""(?:src|href|url|from|import|fetch)\W{1,3}(?:https?:)?//""", text)
        wanted |= set(re.findall(r'from "\./([\w.]+)"', text))
        wanted |= set(re.findall(r'(?:src|href)="dashboard/([\w.]+)"', text))
    assert wanted | {"index.html"} == names


def test_no_file_is_large() -> None:
    sizes = {path.name: path.stat().st_size for path in STATIC.iterdir()}
    assert sum(sizes.values()) < 80_000
    lines = {path.name: len(path.read_text().splitlines()) for path in STATIC.iterdir()}
    assert max(lines.values()) <= 300
