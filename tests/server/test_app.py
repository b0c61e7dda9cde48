"""What proxies, browsers and TLS need."""

import logging
import ssl
from pathlib import Path
from time import monotonic

import httpx
import pytest

from headway.errors import ConfigError
from headway.server.app import Front
from headway.server.keyring import KeyRing
from headway.server.listen import check_tls
from headway.server.model import ServedModel
from headway.server.tiers import ModelNames
from headway.testing.text import ByteTokenizer
from tests.server.fake_engine import FakeEngine, PlainChat
from tests.server.live import MODEL, live_server

TLS = Path(__file__).parent / "tls"
PAIR = (TLS / "cert.pem", TLS / "key.pem")
BODY = {"model": MODEL, "prompt": "x"}


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_a_proxy_may_take_its_part_of_the_path_away_or_leave_it(prefix: str) -> None:
    front = Front(KeyRing("sesame", None, monotonic), root_path="/llm")
    with live_server(FakeEngine(), key="sesame", front=front) as server:
        http = server.http()
        assert http.get(f"{prefix}/v1/models").status_code == 200
        assert http.post(f"{prefix}/v1/completions", json=BODY).status_code == 200
        assert httpx.get(f"{server.url}{prefix}/health").status_code == 200
        assert httpx.get(f"{server.url}{prefix}/v1/models").status_code == 401
        assert http.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": "/llm"}]


def test_browsers_of_known_origins_may_call() -> None:
    ring = KeyRing("sesame", None, monotonic)
    front = Front(ring, cors_origins=("https://chat.example",))
    asked = {
        "Origin": "https://chat.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-headway-class",
    }
    with live_server(FakeEngine(), key="sesame", front=front) as server:
        http = server.http()
        path = f"{server.url}/v1/completions"
        allowed = httpx.options(path, headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
        answer = http.post(path, json=BODY, headers={"Origin": "https://chat.example"})
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        refused = httpx.post(path, json=BODY, headers={"Origin": "https://chat.example"})
        assert refused.status_code == 401
        assert "access-control-allow-origin" in refused.headers  # the page may read why
        other = httpx.options(path, headers={**asked, "Origin": "https://else.example"})
        assert "access-control-allow-origin" not in other.headers


def test_without_origins_nothing_is_said_about_them() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().get("/v1/models", headers={"Origin": "https://chat.example"})
        assert "access-control-allow-origin" not in answer.headers


def test_one_model_under_several_names() -> None:
    names = ModelNames("big", ("small", "ours:v1"))
    model = ServedModel(names, ByteTokenizer(), PlainChat(), 2048, created=1)
    with live_server(FakeEngine(), model=model) as server:
        client = server.client()
        assert [m.id for m in client.models.list().data][:5] == [
            "big",
            "big:realtime",
            "big:standard",
            "big:batch",
            "small",
        ]
        for name, tier in (("small", "default"), ("small:batch", "batch"), ("ours:v1", "default")):
            answer = client.completions.create(model=name, prompt="x")
            assert answer.model == name
            assert answer.model_dump()["service_tier"] == tier
        assert client.completions.create(model="ours:v1:realtime", prompt="x").choices
        missing = server.http().post("/v1/completions", json={**BODY, "model": "v1"})
        assert missing.json()["error"]["code"] == "model_not_found"


def test_https() -> None:
    trusting = ssl.create_default_context(cafile=PAIR[0])
    with live_server(FakeEngine(), tls=PAIR) as server:
        url = f"https://127.0.0.1:{server.port}/v1/completions"
        assert httpx.post(url, json=BODY, verify=trusting).json()["choices"][0]["text"]
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url, timeout=5)


def test_https_ends_without_waiting_for_idle_clients(caplog: pytest.LogCaptureFixture) -> None:
    """They keep connections open, and would have to say goodbye."""
    trusting = ssl.create_default_context(cafile=PAIR[0])
    with httpx.Client(verify=trusting) as client:
        with live_server(FakeEngine(), tls=PAIR) as server:
            assert client.get(f"https://127.0.0.1:{server.port}/health").status_code == 200
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    other = tmp_path / "key.pem"
    other.write_text("no key")
    with pytest.raises(ConfigError, match=r"no TLS with .*cert\.pem and .*key\.pem"):
        check_tls(PAIR[0], other)
    with pytest.raises(ConfigError, match="No such file"):
        check_tls(PAIR[0], tmp_path / "none")
    check_tls(*PAIR)
