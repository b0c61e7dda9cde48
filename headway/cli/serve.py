"""`headway serve`."""

import argparse
import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from threading import Event
from typing import TYPE_CHECKING

from headway.batches.desk import BatchDesk
from headway.cli.batching import batch_side, describe, job_lines, job_totals, open_desk
from headway.cli.interrupts import noted_interrupts
from headway.cli.loading import (
    Loaded,
    StillLoadingError,
    engine_options,
    load,
    load_beside,
    loop_options,
    read_template,
)
from headway.cli.serve_config import batch_config, resolved, serve_config
from headway.config import API_KEY_VARIABLE, AccessConfig, ServeConfig
from headway.errors import ConfigError
from headway.server.dashboard.recent import Recent
from headway.server.gate import Gate
from headway.server.keyring import KeyRing
from headway.server.listen import Listener, bind, check_tls, is_loopback
from headway.server.logs import configure_logs
from headway.server.metrics import Metrics
from headway.server.usage import UsageBook, UsageRecorder

if TYPE_CHECKING:
    from headway.engine.types import Observer
    from headway.server.operate import Insight

_CURL = """\
  curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}\\
    -d '{{"model": "{name}", "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'"""

_INTERRUPTED = 130


def run(settings: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Raises ConfigError, ModelError."""
    try:
        return _serve(settings)
    except StillLoadingError:
        # Nothing ends the thread that downloads or computes, and the interpreter waits for it.
        os._exit(_INTERRUPTED)


def _serve(settings: argparse.Namespace) -> int:
    started_s = time.monotonic()
    values = resolved(settings)
    config, batches = serve_config(values), batch_config(values, os.environ)
    options = replace(engine_options(values), loop=loop_options(config.limits))
    if config.listen.tls is not None:
        check_tls(config.listen.tls.certificate, config.listen.tls.key)
    template = None if config.chat_template is None else read_template(config.chat_template)
    configure_logs(config.logs.level, config.logs.form)
    ring = _ring(config.access)
    metrics, recent = Metrics(), Recent(time.monotonic)
    with ExitStack() as stack:
        interrupted = stack.enter_context(noted_interrupts())
        socks = [stack.enter_context(closing(sock)) for sock in _bound(config)]
        desk, notice = open_desk(batches)
        if desk is not None:
            stack.callback(desk.close)
        observers: list[Observer] = [metrics, recent]
        if batches.folder is not None:
            usage = UsageRecorder(UsageBook(batches.folder), time.time)
            observers.append(usage)
            usage.start()
            stack.callback(usage.stop)
        loaded = load_beside(
            lambda: load(values.model, options, observers, template),
            # Importing the HTTP libraries takes as long.
            lambda: import_module("headway.server.app"),
            interrupted,
        )
        house = _House(config, loaded, Observed(metrics, recent), desk)
        if notice:
            print(f"headway: {notice}", file=sys.stderr)
        for line in house.describe():
            print(line, flush=True)
        listener = house.listener(socks, ring)

        def ready() -> None:
            elapsed_s = time.monotonic() - started_s
            print(_greeting(config, socks, _names(config, loaded)[0], elapsed_s), flush=True)

        stack.enter_context(house.running())
        asyncio.run(_until_stopped(listener, ready, interrupted))
    return _INTERRUPTED if interrupted.is_set() else 0


def _ring(access: AccessConfig) -> KeyRing | None:
    """The keys; None where everybody is let in. Raises ConfigError."""
    return None if access.open else KeyRing(access.api_key, access.keys_file, time.monotonic)


def _bound(config: ServeConfig) -> list[socket.socket]:
    """The server's socket, and the operators' where they have their own. Raises ConfigError, too
    where strangers could reach it without a key."""
    listen = config.listen
    places = [(listen.host, listen.port)]
    if listen.admin_port is not None:
        places.append((listen.admin_host, listen.admin_port))
    socks: list[socket.socket] = []
    try:
        for host, port in places:
            socks.append(bind(host, port))
            if config.access.open and not is_loopback(socks[-1]):
                raise ConfigError(
                    f"{host} can be reached from other machines: give a key with --keys-file, "
                    f"--api-key or {API_KEY_VARIABLE}, or listen on 127.0.0.1"
                )
    except ConfigError:
        for sock in socks:
            sock.close()
        raise
    return socks


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
            grammars=loaded.model.grammars(guarded=True),
        )
        self._side = None
        if desk is not None:
            self._side = batch_side(desk, loaded.engine, self._model, self._gate)

    def describe(self) -> Iterator[str]:
        """What is served, a line each."""
        yield from self._loaded.describe()
        if self._desk is not None:
            yield describe(self._desk)

    def listener(self, socks: Sequence[socket.socket], ring: KeyRing | None) -> Listener:
        """The application on its sockets."""
        from headway.server.app import Front, build_app
        from headway.server.routes import ServerOptions, Service

        config, listen = self._config, self._config.listen
        options = ServerOptions(
            config.default_class,
            max_body_bytes=config.limits.max_body_bytes,
            timeouts_s=config.limits.timeouts_s.given(),
            log_prompts=config.logs.prompts,
        )
        service = Service(
            self._loaded.engine, self._model, self._observed.metrics, self._gate, options
        )
        admin_port = socks[1].getsockname()[1] if len(socks) > 1 else None
        front = Front(ring, admin_port, listen.root_path, listen.cors_origins, listen.allowed_hosts)
        routes = None if self._side is None else self._side.routes
        app = build_app(service, routes, self._insight(), front)
        tls = None if listen.tls is None else (listen.tls.certificate, listen.tls.key)
        return Listener(app, self._gate, socks, config.drain_s, tls)

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
            if self._model.grammars is not None:
                self._model.grammars.close()


async def _until_stopped(listener: Listener, ready: Callable[[], None], interrupted: Event) -> None:
    """Serve, unless ctrl-C came before there was anything to stop."""
    with listener.signals():
        if not interrupted.is_set():
            await listener.run(ready)


def _names(config: ServeConfig, loaded: Loaded) -> tuple[str, tuple[str, ...]]:
    """The model's first name, and its others."""
    first, *others = config.served_names or (loaded.name,)
    return first, tuple(others)


def _greeting(
    config: ServeConfig, socks: Sequence[socket.socket], name: str, elapsed_s: float
) -> str:
    hosts = (config.listen.host, config.listen.admin_host)
    scheme = "https" if config.listen.tls else "http"
    url, *admin = [_url(scheme, host, sock) for host, sock in zip(hosts, socks, strict=False)]
    key = "" if config.access.open else f'-H "Authorization: Bearer ${API_KEY_VARIABLE}" '
    curl = _CURL.format(url=url, key=key, name=name)
    operators = "".join(f"For operators: {url}/metrics\n" for url in admin)
    return f"{operators}Ready on {url} after {elapsed_s:.1f} s. Try:\n{curl}"


def _url(scheme: str, host: str, sock: socket.socket) -> str:
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{sock.getsockname()[1]}"
