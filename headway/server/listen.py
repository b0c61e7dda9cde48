"""Serves an application on a socket, and stops gracefully."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from headway.errors import ConfigError
from headway.server.gate import Gate
from headway.server.protocol import Connection

_LOG = logging.getLogger(__name__)

_FAREWELL_S = 2
"""After cutting answers off: time for their last words to leave."""

_BACKLOG = 2048
"""Connections that may wait to be accepted; a burst of clients is not turned away."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that doesn't listen yet: the port is ours while the model still loads.

    Raises ConfigError if the address is unknown or taken.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is no address of this machine: {error}") from error
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _taken((host, port), error) from error
    return sock


def _taken(address: tuple[str | int, ...], error: OSError) -> ConfigError:
    host, port = address[:2]
    reason = error.strerror or str(error)
    option = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
    return ConfigError(f"can't listen on {host}:{port}: {reason}; try another {option}")


def check_tls(certificate: Path, key: Path) -> None:
    """Raise ConfigError for PEM files that can't be used, or don't belong together."""
    try:
        # An empty password is tried rather than one asked for at a terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, "")
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or error
        raise ConfigError(f"no TLS with {certificate} and {key}: {reason}") from error


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach a bound socket."""
    return ipaddress.ip_address(sock.getsockname()[0]).is_loopback


class Listener:
    """One application on one or more sockets.

    gate: the application's; closed and emptied when the server stops.
    drain_s: how long running answers may go on then.
    tls: serves HTTPS with these PEM files, certificate chain and key.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        socks: Sequence[socket.socket],
        drain_s: float,
        tls: tuple[Path, Path] | None = None,
        protocol: type[Connection] = Connection,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_FAREWELL_S,
            backlog=_BACKLOG,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
            ssl_keyfile_password="",
        )
        self._server = _Server(config)
        self._gate = gate
        self._socks = list(socks)
        self._drain_s = drain_s
        self._stopping: asyncio.Task[None] | None = None
        self._hurried = False

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop` was called and everybody has left or been cut off.

        on_ready: called on the event loop once connections are accepted.
        Raises ConfigError if another server came first on the same port.
        """
        try:
            # Two may bind a port that neither listens on yet; the second one fails here.
            for sock in self._socks:
                sock.listen(_BACKLOG)
        except OSError as error:
            raise _taken(sock.getsockname(), error) from error
        serving = asyncio.create_task(self._server.serve(sockets=self._socks))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        if self._server.started and on_ready is not None:
            on_ready()
        await serving

    def stop(self) -> None:
        """Refuse new requests (503), let running ones end within the drain time, then end.

        On the event loop's thread. The second call cuts running answers off, the third waits for
        nothing.
        """
        if self._stopping is None:
            if self._gate.inside:
                _LOG.warning(
                    "stopping; running requests (%d) may go on for %g s, or until the next signal",
                    self._gate.inside,
                    self._drain_s,
                )
            self._stopping = asyncio.ensure_future(self._drain())
        elif not self._hurried:
            self._hurried = True
            self._gate.cut()
        else:
            self._server.should_exit = self._server.force_exit = True

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """`stop` on SIGTERM and SIGINT, and on SIGHUP unless the process was started to ignore it
        (nohup). In the main thread, inside the running event loop."""
        loop = asyncio.get_running_loop()
        handled = [signal.SIGTERM, signal.SIGINT]
        for number in handled:
            loop.add_signal_handler(number, self.stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handled.append(signal.SIGHUP)
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _hang_up(self) -> None:
        """A terminal that is closed may say so twice: that is no wish to hurry."""
        if self._stopping is None:
            self.stop()

    async def _drain(self) -> None:
        await self._gate.drain(self._drain_s)
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Leaves signals alone: uvicorn's own handling stops accepting at once, so that new requests
    would see a refused connection instead of 503, and ends the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
