"""`headway serve`."""

import argparse
import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.batches.desk import BatchDesk
from headway.cli.batching import batch_side, describe, job_lines, job_totals, open_desk
from headway.cli.loading import Loaded, engine_options, load, read_template
from headway.cli.serve_config import batch_config, resolved, serve_config
from headway.config import API_KEY_VARIABLE, ServeConfig
from headway.errors import ConfigError
from headway.server.dashboard.recent import Recent
from headway.server.gate import Gate
from headway.server.listen import Listener, bind, check_tls, is_loopback
from headway.server.logs import configure_logs
from headway.server.metrics import Metrics

if TYPE_CHECKING:
    from headway.engine.types import Observer
    from headway.server.operate import Insight

_CURL = """\
  curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}\\
    -d '{{"model": "{name}", "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'"""


def run(settings: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, ModelError."""
    started_s = time.monotonic()
    values = resolved(settings)
    config, batches = serve_config(values), batch_config(values, os.environ)
    options = engine_options(values)
    if config.listen.tls is not None:
        check_tls(config.listen.tls.certificate, config.listen.tls.key)
    template = None if config.chat_template is None else read_template(config.chat_template)
    configure_logs(config.logs.level, config.logs.form)
    metrics, recent = Metrics(), Recent(time.monotonic)
    with ExitStack() as stack:
        sock = stack.enter_context(closing(_bound(config)))
        desk = open_desk(batches)
        if desk is not None:
            stack.callback(desk.close)
        with ThreadPoolExecutor(1) as loader:
            # The model loads while this thread imports the HTTP libraries, which takes as long.
            observers: list[Observer] = [metrics, recent]
            loading = loader.submit(load, values.model, options, observers, template)
            from headway.server import app  # noqa: F401

            loaded = loading.result()
        house = _House(config, loaded, Observed(metrics, recent), desk)
        for line in house.describe():
            print(line, flush=True)
        listener = house.listener(sock)

        def ready() -> None:
            elapsed_s = time.monotonic() - started_s
            print(_greeting(config, sock, _names(config, loaded)[0], elapsed_s), flush=True)

        stack.enter_context(house.running())
        asyncio.run(_until_stopped(listener, ready))
    return 0


def _bound(config: ServeConfig) -> socket.socket:
    """The server's socket. Raises ConfigError, too where strangers could reach it without a key."""
    listen = config.listen
    sock = bind(listen.host, listen.port)
    if config.api_key is None and not is_loopback(sock):
        sock.close()
        raise ConfigError(
            f"{listen.host} can be reached from other machines: give a key with --api-key or "
            f"{API_KEY_VARIABLE}, or listen on 127.0.0.1"
        )
    return sock


@dataclass(frozen=True, slots=True)
class Observed:
    """What the engine tells its observers, kept."""

    metrics: Metrics
    recent: Recent


class _House:
    """Everything that serves, put together; nothing runs before `running`."""

    def __init__(
        self, config: ServeConfig, loaded: Loaded, observed: "Observed", desk: BatchDesk | None
    ) -> None:
        from headway.server.model import ServedModel
        from headway.server.tiers import ModelNames

        self._config = config
        self._loaded = loaded
        self._observed = observed
        self._desk = desk
        self._gate = Gate()
        self._model = ServedModel(
            ModelNames(*_names(config, loaded)),
            loaded.model.tokenizer,
            loaded.model.chat_template,
            loaded.engine.max_model_len,
            created=int(time.time()),
            grammars=loaded.model.grammars(),
        )
        self._side = None
        if desk is not None:
            self._side = batch_side(desk, loaded.engine, self._model, self._gate)

    def describe(self) -> Iterator[str]:
        """What is served, a line each."""
        yield from self._loaded.describe()
        if self._desk is not None:
            yield describe(self._desk)

    def listener(self, sock: socket.socket) -> Listener:
        """The application on a socket."""
        from headway.server.app import build_app
        from headway.server.routes import ServerOptions, Service

        config, listen = self._config, self._config.listen
        options = ServerOptions(
            config.api_key,
            config.default_class,
            max_body_bytes=config.max_body_bytes,
            root_path=listen.root_path,
            cors_origins=listen.cors_origins,
            log_prompts=config.logs.prompts,
        )
        service = Service(
            self._loaded.engine, self._model, self._observed.metrics, self._gate, options
        )
        routes = None if self._side is None else self._side.routes
        app = build_app(service, routes, self._insight())
        tls = None if listen.tls is None else (listen.tls.certificate, listen.tls.key)
        return Listener(app, self._gate, sock, config.drain_s, tls)

    def _insight(self) -> "Insight":
        from importlib.metadata import version

        from headway.server.dashboard.feed import Sources
        from headway.server.metrics_families import Build
        from headway.server.operate import Insight

        desk, engine, name = self._desk, self._loaded.engine, self._loaded.name
        page = Sources(
            engine,
            engine.snapshot,
            self._observed.recent,
            None if desk is None else lambda: job_lines(desk),
            time.monotonic,
            self._model.names.all[0],
        )
        totals = None if desk is None else lambda: job_totals(desk)
        return Insight(Build(version("headway"), name), totals, page)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Engine and batch runner at work, until the block ends."""
        self._loaded.engine.start()
        try:
            if self._side is not None:
                self._side.runner.start()
            yield
        finally:
            # Before the engine: lines that it cut off would pass for answers that failed.
            if self._side is not None:
                self._side.runner.stop()
            self._loaded.engine.stop()


async def _until_stopped(listener: Listener, ready: Callable[[], None]) -> None:
    with listener.signals():
        await listener.run(ready)


def _names(config: ServeConfig, loaded: Loaded) -> tuple[str, tuple[str, ...]]:
    """The model's first name, and its others."""
    first, *others = config.served_names or (loaded.name,)
    return first, tuple(others)


def _greeting(config: ServeConfig, sock: socket.socket, name: str, elapsed_s: float) -> str:
    listen = config.listen
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    url = f"http{'s' if listen.tls else ''}://{host}:{sock.getsockname()[1]}"
    key = "" if config.api_key is None else f'-H "Authorization: Bearer ${API_KEY_VARIABLE}" '
    curl = _CURL.format(url=url, key=key, name=name)
    return f"Ready on {url} after {elapsed_s:.1f} s. Try:\n{curl}"
