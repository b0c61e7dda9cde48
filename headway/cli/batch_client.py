"""Files and jobs of a server, over HTTP with the standard library alone."""

import http.client
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from headway.cli.urls import check_url
from headway.errors import ConfigError, HeadwayError

_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 300.0

Json = dict[str, Any]


class ServerError(HeadwayError):
    """The server can't be reached, or doesn't do what is asked."""


@dataclass(frozen=True, slots=True)
class BatchClient:
    """A server by its URL, `http://HOST:PORT`. Every method may raise ServerError."""

    url: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        check_url(self.url)

    def upload(self, path: Path) -> Json:
        """Upload a file of requests; its entry. Raises ConfigError if it can't be read."""
        boundary = secrets.token_hex(16)
        # As browsers write names that would end the field.
        name = path.name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        field = f"--{boundary}\r\nContent-Disposition: form-data; name="
        purpose = f'{field}"purpose"\r\n\r\nbatch\r\n'
        head = f'{purpose}{field}"file"; filename="{name}"\r\n\r\n'.encode("utf-8", "replace")
        tail = f"\r\n--{boundary}--\r\n".encode()
        try:
            with path.open("rb") as stream:
                size = len(head) + path.stat().st_size + len(tail)
                headers = {
                    "Content-Type": f"multipart/form-data; boundary={boundary}",
                    "Content-Length": str(size),
                }
                body = _form(head, stream, tail)
                return self._json("POST", "/v1/files", body, headers)
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error

    def create(self, file_id: str, endpoint: str, window: str) -> Json:
        """Hand a job in; the job."""
        order = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        content = json.dumps(order).encode()
        return self._json("POST", "/v1/batches", content, {"Content-Type": "application/json"})

    def batch(self, id: str) -> Json:
        """A job as it is now."""
        return self._json("GET", f"/v1/batches/{quote(id, safe='')}")

    def batches(self, limit: int) -> list[Json]:
        """The newest jobs."""
        listed = self._json("GET", f"/v1/batches?{urlencode({'limit': limit})}")
        return list(listed["data"])

    def cancel(self, id: str) -> Json:
        """Ask for a job's end; the job."""
        return self._json("POST", f"/v1/batches/{quote(id, safe='')}/cancel", b"")

    def contents(self, file_id: str) -> Iterator[bytes]:
        """A file's contents, piece by piece."""
        with self._answer("GET", f"/v1/files/{quote(file_id, safe='')}/content") as answer:
            while piece := answer.read(_PIECE_BYTES):
                yield piece

    def _json(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Json:
        with self._answer(method, path, body, headers) as answer:
            return _object(answer.read(), path)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        try:
            connection.request(
                method, parts.path.rstrip("/") + path, body, {**key, **(headers or {})}
            )
            answer = connection.getresponse()
            if answer.status != 200:
                raise ServerError(_reason(answer))
            yield answer
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServerError(f"{self.url} can't be reached: {reason}") from error
        finally:
            connection.close()


def _form(head: bytes, stream: BinaryIO, tail: bytes) -> Iterator[bytes]:
    yield head
    while piece := stream.read(_PIECE_BYTES):
        yield piece
    yield tail


def _object(content: bytes, path: str) -> Json:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ServerError(f"{path} is not answered as by OpenAI's API; is this another server?")
    return value


def _reason(answer: http.client.HTTPResponse) -> str:
    """What the server says about a status other than 200."""
    try:
        message = json.loads(answer.read())["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.reason
    return f"the server answers {answer.status}: {message}"
