"""The connection's protocol: uvicorn's on httptools, with a limit for the head of a request."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers of one request, beyond the first piece that is read from the socket."""

_REFUSAL = b"\r\n".join(
    (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"Content-Length: 0",
        b"Connection: close",
        b"",
        b"",
    )
)


class HeadLimit(HttpToolsProtocol):
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
                self.transport.write(_REFUSAL)
                self.transport.close()
