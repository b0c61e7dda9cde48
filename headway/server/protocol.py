"""The connection's protocol: uvicorn's on httptools, with limits for what a client may take."""

import asyncio
import sys
from typing import TYPE_CHECKING, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one request, beyond the first piece that is read from the socket."""

MIN_BODY_BYTES = 8 * 1024
"""What a body must bring while patience lasts; any modem does."""

_GOODBYE_S = 0.3
"""Within which a goodbye over TLS has left, when the server stops."""


def _refusal(status: bytes) -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


_TOO_LONG = _refusal(b"431 Request Header Fields Too Large")
_TOO_SLOW = _refusal(b"408 Request Timeout")


def _end_with_the_connection(cycle: RequestResponseCycle) -> None:
    """Have an answer of unknown length end where its connection does: HTTP/1.0 knows no chunks, and
    uvicorn would send some."""
    framed, bare = cycle.send, False

    async def send(message: "ASGISendEvent") -> None:
        nonlocal bare
        if message["type"] == "http.response.start":
            bare = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if bare:
                cycle.chunked_encoding = False
        elif bare and message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await framed(message)

    cycle.send = send  # type: ignore[method-assign]


class NoUpgrade(HttpToolsProtocol):
    """Reads a request that offers another protocol, as Java's client offers HTTP/2 with its first
    one, as if it had not: its parser would take the body for that protocol's, and drop it."""

    _offered = False
    _piece = b""

    def on_headers_complete(self) -> None:
        """A head is there; one with an offer is read again, without it."""
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is there; with an offer, the parser thinks it ends with its head."""
        if not self._offered:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Take in a piece."""
        self._piece = data
        super().data_received(data)

    def _unsupported_upgrade_warning(self) -> None:
        """Called where the parser stops, with its exception, which says where in the piece."""
        stopped = sys.exc_info()[1]
        if not self._offered or not isinstance(stopped, httptools.HttpParserUpgrade):
            return
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        rest = self._piece[stopped.args[0] :]
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)


class HeadLimit(NoUpgrade):
    """Ends connections whose request has an endless head. The parser takes any, in memory that
    grows and time that grows with its square, before a key could be asked for."""

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take in a piece; the last one of a connection whose head has become too long."""
        in_head, headers = self._in_head, self.headers
        super().data_received(data)
        if in_head and self._in_head and headers is self.headers:  # nothing but head
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LONG)
                self.transport.close()


class Connection(HeadLimit):
    """Ends connections of clients that keep the server waiting, and what it holds for them.

    patience_s: how long the head of a request may take, a body to bring MIN_BODY_BYTES, a client to
        read the 64 KiB of an answer that it has let pile up, and a closed connection to end.
    """

    patience_s = 30.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._reading, self._window_bytes = True, 0
        self._window_s = self.loop.time()
        self._paused_s: float | None = None
        self._closing_s: float | None = None
        self._cycles: list[RequestResponseCycle] = []
        self._look_later()

    def shutdown(self) -> None:
        """The server stops: end where there is no request, or after this one."""
        super().shutdown()
        if self.transport.is_closing() and self.transport.get_extra_info("sslcontext"):
            # It has said goodbye, and would wait for the client to do so too.
            self.loop.call_later(_GOODBYE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._timer.cancel()
        for cycle in self._cycles:  # uvicorn tells the latest only, which may still be waiting
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._open_window()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is there, and now the body."""
        self._open_window()
        super().on_headers_complete()
        # More than one where the client sends the next before it has its answer.
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        if self.cycle is not None and self.cycle not in self._cycles:
            self._cycles.append(self.cycle)
            if self.scope["http_version"] == "1.0":
                _end_with_the_connection(self.cycle)

    def on_message_complete(self) -> None:
        """It is there."""
        self._reading = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Take in a piece."""
        self._window_bytes += len(data)
        super().data_received(data)

    def pause_writing(self) -> None:
        """The client doesn't read as fast as we write."""
        self._paused_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._paused_s = None
        super().resume_writing()

    def _open_window(self) -> None:
        self._reading, self._window_s, self._window_bytes = True, self.loop.time(), 0

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(self.patience_s / 4, self._look)

    def _look(self) -> None:
        """See whether the client is worth waiting for."""
        self._look_later()
        now_s = self.loop.time()
        if self.transport.is_closing():
            self._closing_s = self._closing_s or now_s
        long_ago_s = now_s - self.patience_s
        if any(s is not None and s < long_ago_s for s in (self._paused_s, self._closing_s)):
            self.transport.abort()
        elif self._reading and self._window_s < long_ago_s and not self.transport.is_closing():
            self._judge_reading()

    def _judge_reading(self) -> None:
        in_body = not self._in_head and self.cycle is not None
        if in_body and (self.flow.read_paused or self._window_bytes >= MIN_BODY_BYTES):
            self._open_window()
            return
        if self._in_head or in_body:  # a connection without a request needs no answer
            self.transport.write(_TOO_SLOW)
        self.transport.close()
