"""Takes an uploaded file out of a multipart body as it arrives; only small fields are held."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from headway.server.errors import bad_request
from headway.server.parse import check_head, too_large

_PIECE_BYTES = 256 * 1024
_FIELD_BYTES = 64 * 1024
_MAX_FIELDS = 64
_MAX_NAME_CHARS = 255
_MAX_BOUNDARY_BYTES = 70  # RFC 2046, section 5.1.1
_EARLY_END = "The body ended early."

Sink = Callable[[bytes], None]


class UploadForm:
    """One form with one file, fed in pieces of any size.

    sink: gets the file's bytes.
    fields: the other fields, as text.
    filename: the file's; None until its part has begun.
    """

    def __init__(self, content_type: str, sink: Sink) -> None:
        """Raises ApiError (400) if the body is no multipart form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 1 <= len(boundary) <= _MAX_BOUNDARY_BYTES:
            raise bad_request("The body must be multipart/form-data with a 'file' and a 'purpose'.")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._sink = sink
        self._ended = False
        self._in_file = False
        self._part = ""
        self._value = bytearray()
        self._header = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        """Take in more of the body. Raises ApiError (400), and what the sink raises."""
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise bad_request(f"The multipart body is malformed: {error}.") from error

    def finish(self) -> str:
        """The file's name, once the body is there. Raises ApiError (400) if it isn't complete."""
        if not self._ended:
            raise bad_request(_EARLY_END)
        if self.filename is None:
            raise bad_request("'file' is missing.", "file", "missing_field")
        return self.filename

    def _begin_part(self) -> None:
        self._value.clear()
        self._disposition = b""
        if len(self.fields) >= _MAX_FIELDS:
            raise bad_request(f"The form has more than {_MAX_FIELDS} fields.")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._part = options.get(b"name", b"").decode("utf-8", "replace")
        self._in_file = self._part == "file"
        if not self._in_file:
            return
        if self.filename is not None:
            raise bad_request("The form has more than one 'file'.", "file")
        name = options.get(b"filename", b"").decode("utf-8", "replace")
        self.filename = name[:_MAX_NAME_CHARS] or "file"

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._sink(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > _FIELD_BYTES:
            raise bad_request(f"{self._part!r} is too long.", self._part)

    def _end_part(self) -> None:
        if not self._in_file:
            self.fields[self._part] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True


async def read_form(
    request: Request, sink: Sink, limit_bytes: int, threads: Executor
) -> UploadForm:
    """A form with all of its body taken in, `sink` being called in `threads`.

    limit_bytes: of the body; a client that sends more is cut off with 413. Up to there the body is
    read to its end whatever is wrong with it, for a client that is still sending would take an
    early answer for a broken connection. Raises ApiError, and what the sink raises.
    """
    check_head(request, limit_bytes)
    form = UploadForm(request.headers.get("content-type", ""), sink)
    problem: Exception | None = None
    size, held, pieces = 0, 0, list[bytes]()
    try:
        async for part in request.stream():  # the last one is empty
            size += len(part)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            if problem is not None:
                continue
            pieces.append(part)
            held += len(part)
            if held >= _PIECE_BYTES or not part:
                data, held = b"".join(pieces), 0
                pieces.clear()
                problem = await _fed(form, data, threads)
    except ClientDisconnect as error:
        raise bad_request(_EARLY_END) from error
    if problem is not None:
        raise problem
    return form


async def _fed(form: UploadForm, data: bytes, threads: Executor) -> Exception | None:
    """Feed a form in another thread; what it raised, if it did."""
    try:
        await asyncio.get_running_loop().run_in_executor(threads, form.feed, data)
    except Exception as error:
        return error
    return None
