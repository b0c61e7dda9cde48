"""A server on a port of its own, in a thread of its own."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import httpx
import openai
from fastapi import APIRouter

from headway.engine.types import EngineClient
from headway.server.app import Front, build_app
from headway.server.gate import Gate
from headway.server.keyring import KeyRing
from headway.server.listen import Listener, bind
from headway.server.metrics import Metrics
from headway.server.model import ServedModel
from headway.server.operate import Insight
from headway.server.protocol import Connection
from headway.server.routes import ServerOptions, Service
from headway.server.tiers import ModelNames
from headway.testing.text import ByteTokenizer
from tests.server.fake_engine import PlainChat

MODEL = "tiny"

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak none: to read the system's certificates takes each of them 45 ms."""


_LOOK_S = 0.01


@dataclass
class LiveServer:
    """Where it listens, and the handles tests need."""

    host: str
    port: int
    loop: asyncio.AbstractEventLoop
    listener: Listener
    metrics: Metrics
    key: str | None = None
    clients: list[httpx.Client | openai.OpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def client(self) -> openai.OpenAI:
        client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.key or "none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(verify=_NO_TLS),
        )
        self.clients.append(client)
        return client

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.key or "none",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=_NO_TLS),
        )

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        client = httpx.Client(base_url=self.url, timeout=60, headers=headers, verify=_NO_TLS)
        self.clients.append(client)
        return client

    def call(self, function: Callable[[], None]) -> None:
        """Run on the server's event loop."""
        self.loop.call_soon_threadsafe(function)

    def gauges(self) -> dict[str, float]:
        """All samples of /metrics by name and labels, as Prometheus writes them."""
        text = self.http().get("/metrics").text
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


BYTES = ServedModel(ModelNames(MODEL), ByteTokenizer(), PlainChat(), 2048, created=1)
"""The model of FakeEngine, as the server sees it."""


@contextmanager
def live_server(
    engine: EngineClient,
    options: ServerOptions | None = None,
    *,
    model: ServedModel = BYTES,
    metrics: Metrics | None = None,
    drain_s: float = 5.0,
    batches: Callable[[Gate], APIRouter] | None = None,
    insight: Insight | None = None,
    tls: tuple[Path, Path] | None = None,
    key: str | None = None,
    front: Front | None = None,
    admin_port: int | None = None,
    protocol: type[Connection] = Connection,
) -> Iterator[LiveServer]:
    """Serve `engine` on 127.0.0.1 until the block ends."""
    metrics = metrics or Metrics()
    gate = Gate()
    front = front or Front(None if key is None else KeyRing(key, None, monotonic))
    options = options or ServerOptions(keep_alive_s=5)
    service = Service(engine, model, metrics, gate, options)
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    socks = [sock] if admin_port is None else [sock, bind("127.0.0.1", admin_port)]
    app = build_app(service, None if batches is None else batches(gate), insight, front)
    listener = Listener(app, gate, socks, drain_s, tls, protocol)
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(listener.run(ready.set))
        loop.close()

    thread = threading.Thread(target=run, name="live-server")
    thread.start()
    server = LiveServer("127.0.0.1", port, loop, listener, metrics, key)
    try:
        if not ready.wait(10):
            raise TimeoutError("the server did not start")
        yield server
    finally:
        for client in server.clients:
            client.close()
        if thread.is_alive():
            loop.call_soon_threadsafe(listener.stop)
            loop.call_soon_threadsafe(listener.stop)
        thread.join(10)


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until `condition` holds; AssertionError if it doesn't in time. That is counted in looks,
    so that a machine which stands still in between does not end it."""
    for _ in range(round(timeout_s / _LOOK_S)):
        if condition():
            return
        sleep(_LOOK_S)
    raise AssertionError("did not come true in time")
