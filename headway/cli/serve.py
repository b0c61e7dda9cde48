"""`headway serve`."""

import argparse
import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from headway.cli.loading import Loaded, engine_options, load
from headway.config import API_KEY_VARIABLE, ServeConfig, api_key
from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway.server.gate import Gate
from headway.server.listen import Listener, bind, is_loopback
from headway.server.metrics import Metrics

_CURL = """\
  curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}\\
    -d '{{"model": "{name}", "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'"""


def run(settings: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, ModelError."""
    started_s = time.monotonic()
    config = _config(settings)
    options = engine_options(settings)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    metrics = Metrics()
    with closing(_bound(config)) as sock:
        with ThreadPoolExecutor(1) as loader:
            # The model loads while this thread imports the HTTP libraries, which takes as long.
            loading = loader.submit(load, settings.model, options, [metrics])
            from headway.server import app  # noqa: F401

            loaded = loading.result()
        for line in loaded.describe():
            print(line, flush=True)
        listener = _listener(config, loaded, metrics, sock)

        def ready() -> None:
            elapsed_s = time.monotonic() - started_s
            print(_greeting(config, sock, loaded.name, elapsed_s), flush=True)

        loaded.engine.start()
        try:
            asyncio.run(_until_stopped(listener, ready))
        finally:
            loaded.engine.stop()
    return 0


def _config(settings: argparse.Namespace) -> ServeConfig:
    return ServeConfig(
        host=settings.host,
        port=settings.port,
        api_key=api_key(settings.api_key, os.environ),
        served_name=settings.served_model_name,
        default_class=ServiceClass[settings.default_class.upper()],
        drain_s=settings.drain_timeout,
        log_level=settings.log_level,
    )


def _bound(config: ServeConfig) -> socket.socket:
    """The server's socket. Raises ConfigError, too where strangers could reach it without a key."""
    sock = bind(config.host, config.port)
    if config.api_key is None and not is_loopback(sock):
        sock.close()
        raise ConfigError(
            f"{config.host} can be reached from other machines: give a key with --api-key or "
            f"{API_KEY_VARIABLE}, or listen on 127.0.0.1"
        )
    return sock


def _listener(
    config: ServeConfig, loaded: Loaded, metrics: Metrics, sock: socket.socket
) -> Listener:
    from headway.server.app import build_app
    from headway.server.model import ServedModel
    from headway.server.routes import ServerOptions, Service
    from headway.server.tiers import ModelNames

    metrics.snapshot = loaded.engine.snapshot
    gate = Gate()
    model = ServedModel(
        ModelNames(config.served_name or loaded.name),
        loaded.model.tokenizer,
        loaded.model.chat_template,
        loaded.engine.max_model_len,
        created=int(time.time()),
    )
    options = ServerOptions(config.api_key, config.default_class)
    app = build_app(Service(loaded.engine, model, metrics, gate, options))
    return Listener(app, gate, sock, config.drain_s)


async def _until_stopped(listener: Listener, ready: Callable[[], None]) -> None:
    with listener.signals():
        await listener.run(ready)


def _greeting(config: ServeConfig, sock: socket.socket, name: str, elapsed_s: float) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{sock.getsockname()[1]}"
    key = "" if config.api_key is None else f'-H "Authorization: Bearer ${API_KEY_VARIABLE}" '
    curl = _CURL.format(url=url, key=key, name=config.served_name or name)
    return f"Ready on {url} after {elapsed_s:.1f} s. Try:\n{curl}"
