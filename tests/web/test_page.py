"""The live page in Chromium."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from headway.testing import make_capacity
from tests.server.live import eventually
from tests.web.conftest import figures
from tests.web.stage import Stage, stage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Scheme = Literal["dark", "light"]

SMALL = make_capacity(
    kv_blocks=120, host_blocks=60, max_seqs=16, max_step_tokens=512, max_model_len=512
)
LARGE = make_capacity(
    kv_blocks=1000, host_blocks=100, max_seqs=200, max_step_tokens=1024, max_model_len=512
)
WAIT_MS = 15_000

FULL = "parseInt(document.getElementById('pool-note').textContent) >= 85"

FRAME_TIMES = """() => new Promise((done) => {
    const times = [];
    let last = performance.now();
    const tick = (now) => {
        times.push(now - last);
        last = now;
        if (times.length < 150) requestAnimationFrame(tick);
        else done(times.slice(1));
    };
    requestAnimationFrame(tick);
})"""

FOCUSED = """() => {
    const { id, className, value } = document.activeElement;
    return id || className || value;
}"""

AXE = """() => axe.run().then((found) => found.violations.map(
    (v) => v.id + ': ' + v.nodes.map((n) => n.target.join(' ') + ' ' + n.failureSummary).join('; ')
))"""


@contextmanager
def opened(
    browser: "Browser",
    where: Stage,
    scheme: Scheme = "dark",
    size: tuple[int, int] = (1440, 1000),
    reduced_motion: bool = False,
    wait: bool = True,
) -> "Iterator[Page]":
    """The page, live; no error may have been on its console when it is closed."""
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce" if reduced_motion else "no-preference",
        bypass_csp=True,
    )
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    try:
        page.goto(f"{where.server.url}/dashboard")
        if wait:
            page.wait_for_selector("#link[data-state=live]", timeout=WAIT_MS)
        yield page
    finally:
        page.close()
    assert errors == []


def flood(page: "Page", answers: int = 24, tokens: int = 60, words: int = 20) -> None:
    """Queue batch work."""
    page.fill("#flood-count", str(answers))
    page.fill("#flood-tokens", str(tokens))
    page.fill("#flood-words", str(words))
    page.click("#flood")


def send(page: "Page", service_class: str, tokens: int = 8) -> None:
    """Send the prompt."""
    page.check(f"input[value={service_class}]", force=True)
    page.fill("#tokens", str(tokens))
    page.click("#send .main")


def row(page: "Page", service_class: str) -> list[int]:
    """Sequences of a class that compute, are paused, are swapped, wait."""
    cells = page.locator(f"#counts tr:has(th.{service_class}) td").all_inner_texts()
    return [int(cell) for cell in cells]


@pytest.fixture(scope="module")
def small() -> Iterator[Stage]:
    with stage(SMALL) as where:
        yield where


def lightness(page: "Page") -> float:
    """Of the background, 0 to 255."""
    colour = str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    return sum(map(int, re.findall(r"\d+", colour))) / 3


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_realtime_overtakes_batch_and_the_page_shows_it(
    browser: "Browser", small: Stage, pictures: Path, scheme: Scheme
) -> None:
    with opened(browser, small, scheme) as page:
        assert (lightness(page) < 60) is (scheme == "dark")
        flood(page, tokens=150)
        page.wait_for_function(FULL, timeout=WAIT_MS)
        # Longer than what is free, so that somebody has to make room.
        page.fill("#prompt", "Tell me all about it. " * 18)
        for _ in range(3):
            send(page, "realtime", tokens=20)
        page.wait_for_function(
            "document.getElementById('verdict').textContent.includes('already under way')",
            timeout=WAIT_MS,
        )
        verdict = page.inner_text("#verdict")
        found = re.fullmatch(
            r"Realtime: first token after [\d.]+ m?s, past (\d+) answers? already under way\.",
            verdict,
        )
        assert found is not None and int(found[1]) > 10
        assert sum(row(page, "batch")) > 0
        page.wait_for_selector("#events li .who.realtime", timeout=WAIT_MS)
        page.wait_for_selector("#events li:has-text('left out of steps')", timeout=WAIT_MS)
        gave = page.locator("#events li:has(.who.realtime)").first.inner_text()
        assert re.search(r"request \d+ gave \d+ blocks? to request \d+", gave)
        assert re.match(r"[\d.,]+ m?s", page.inner_text("#ttft"))
        page.screenshot(path=pictures / f"live-{scheme}.png", full_page=True)
        page.click("#stop")
        page.wait_for_selector("#stop:disabled", timeout=WAIT_MS)
    eventually(lambda: small.engine.snapshot().idle, 10)


def test_every_class_is_served_and_shown(browser: "Browser", small: Stage) -> None:
    with opened(browser, small) as page:
        for service_class in ("batch", "standard", "realtime"):
            send(page, service_class)
            page.wait_for_function(
                "document.querySelector('#runs .run-head span').textContent.match(/\\d tokens?$/)",
                timeout=WAIT_MS,
            )
            classes = page.locator("#runs > li").first.get_attribute("class")
            assert classes == service_class
        page.wait_for_function(
            "['realtime', 'standard', 'batch'].every((name) =>"
            " document.getElementById('ttft-text').textContent.includes(name))",
            timeout=WAIT_MS,
        )
        assert "batch_6710f2" in page.inner_text("#jobs")
        assert "132 of 400 lines, 2 failed" in page.inner_text("#jobs")


def test_nothing_that_axe_knows_is_wrong(browser: "Browser", small: Stage) -> None:
    import axe_playwright_python

    axe = Path(axe_playwright_python.__file__).parent / "axe.min.js"
    for scheme, size in (("dark", (1440, 1000)), ("light", (1440, 1000)), ("light", (420, 900))):
        with opened(browser, small, "dark" if scheme == "dark" else "light", size) as page:
            send(page, "realtime")
            page.wait_for_selector("#verdict:not(:empty)", timeout=WAIT_MS)
            page.evaluate(axe.read_text())
            assert page.evaluate(AXE) == []
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert int(wide) <= 0


def test_the_keyboard_reaches_everything(browser: "Browser", small: Stage) -> None:
    with opened(browser, small) as page:
        order = []
        for _ in range(12):
            page.keyboard.press("Tab")
            order.append(str(page.evaluate(FOCUSED)))
        assert order[:4] == ["skip", "pool", "prompt", "realtime"]
        rest = {"tokens", "flood-count", "flood-tokens", "flood-words", "flood", "events"}
        assert rest <= set(order)
        page.focus("#pool")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            page.keyboard.press(key)
        said = page.inner_text("#say")
        assert re.match(r"Block \d+, ", said)
        assert page.is_visible("#tip")
        page.keyboard.press("Escape")
        assert not page.is_visible("#tip")
        page.focus("#prompt")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#runs > li", timeout=WAIT_MS)


def test_pointing_at_a_block_tells_whose_it_is(browser: "Browser", small: Stage) -> None:
    with opened(browser, small) as page:
        flood(page, answers=4, tokens=200)
        page.wait_for_function(
            "document.getElementById('pool-text').textContent.match(/batch [1-9]/)", timeout=WAIT_MS
        )
        page.hover("#pool", position={"x": 6, "y": 6})
        text = page.inner_text("#tip")
        assert re.match(r"Block 0\n(Request \d+, batch|Free|Prefix)", text)
        page.click("#stop")


def test_with_a_key_the_page_asks_for_it(browser: "Browser") -> None:
    with stage(SMALL, key="open sesame") as where:
        page = browser.new_page()
        page.goto(f"{where.server.url}/dashboard")
        for key in ("wrong", "open sesame"):
            page.wait_for_selector("#key[open]", timeout=WAIT_MS)
            page.fill("#key-value", key)
            page.click("#key .main")
        page.wait_for_selector("#link[data-state=live]", timeout=WAIT_MS)
        send(page, "realtime")
        page.wait_for_selector("#verdict:not(:empty)", timeout=WAIT_MS)
        page.close()


def test_on_the_admin_port_only_sending_needs_a_key(browser: "Browser") -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with stage(SMALL, key="open sesame", admin_port=port) as where:
        page = browser.new_page()
        page.goto(f"http://{where.server.host}:{port}/dashboard")
        page.wait_for_selector("#link[data-state=live]", timeout=WAIT_MS)
        send(page, "realtime")
        page.wait_for_selector("#key[open]", timeout=WAIT_MS)
        page.fill("#key-value", "open sesame")
        page.click("#key .main")
        page.wait_for_selector("#verdict:not(:empty)", timeout=WAIT_MS)
        page.close()


def tell(page: "Page", hidden: bool) -> None:
    page.evaluate(
        f"Object.defineProperty(document, 'hidden', {{value: {json.dumps(hidden)},"
        " configurable: true}), document.dispatchEvent(new Event('visibilitychange'))"
    )


def test_a_page_that_was_out_of_sight_counts_nothing_twice(
    browser: "Browser", small: Stage
) -> None:
    with opened(browser, small) as page:
        flood(page)
        send(page, "realtime")
        page.wait_for_selector("#events li:not(.none)", timeout=WAIT_MS)
        page.click("#stop")
        eventually(lambda: small.engine.snapshot().idle)
        tell(page, True)
        page.evaluate("document.querySelector('#events').firstChild.id = 'old'")
        tell(page, False)
        # The server tells all of it again; what was there would be in the list twice.
        page.wait_for_selector("#old", state="detached", timeout=WAIT_MS)
        page.wait_for_selector("#events li:not(.none)", timeout=WAIT_MS)


def test_a_page_nobody_sees_costs_nothing(browser: "Browser", small: Stage) -> None:
    def responses() -> float:
        name = 'headway_http_responses_total{route="/dashboard/data",status="200"}'
        return small.server.gauges().get(name, 0)

    with opened(browser, small) as page:
        before = responses()
        tell(page, True)
        eventually(lambda: responses() == before + 1)  # the stream has ended
        tell(page, False)
        page.wait_for_function("true")
        seen = page.inner_text("#step-note")
        send(page, "realtime")
        page.wait_for_selector("#verdict:not(:empty)", timeout=WAIT_MS)
        assert seen is not None


def test_less_motion_where_asked_for(browser: "Browser", small: Stage) -> None:
    with opened(browser, small, reduced_motion=True) as page:
        flood(page)
        send(page, "realtime")
        page.wait_for_selector("#events li:not(.none)", timeout=WAIT_MS)
        assert page.evaluate("document.getAnimations().length") == 0
        page.click("#stop")


def test_a_thousand_blocks_and_two_hundred_sequences(browser: "Browser", pictures: Path) -> None:
    with stage(LARGE) as where, opened(browser, where) as page:
        for _ in range(2):
            flood(page, answers=120, tokens=300, words=6)
        page.wait_for_function(
            "['running', 'paused', 'swapped', 'waiting'].reduce((sum, place) =>"
            " sum + Number(document.getElementById(`n-${place}`).textContent), 0) >= 200",
            timeout=WAIT_MS,
        )
        page.wait_for_function(FULL, timeout=WAIT_MS)
        send(page, "realtime", tokens=60)
        times = sorted(float(t) for t in page.evaluate(FRAME_TIMES))
        page.screenshot(path=pictures / "live-large.png", full_page=True)
        page.click("#stop")
    median, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    figures.append(
        f"{LARGE.kv_blocks:,} blocks, 240 sequences: a frame every {median:.1f} ms (median), "
        f"p95 {p95:.1f} ms, longest {times[-1]:.0f} ms"
    )
    assert len(times) == 149
