"""A Hugging Face hub on 127.0.0.1: repositories in memory, the part of its API that matters."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit

_COMMIT = "0123456789abcdef0123456789abcdef01234567"

Repositories = Mapping[str, Mapping[str, bytes]]


@contextmanager
def fake_hub(repositories: Repositories) -> Iterator[str]:
    """Serve files by repository and path; yields the endpoint's address."""

    class Handler(_Handler):
        held = repositories

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    held: ClassVar[Repositories] = {}

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests read exceptions, not logs."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        for repo, files in self.held.items():
            if path.startswith(f"/api/models/{repo}/tree/"):
                return self._json([_entry(name, data) for name, data in files.items()])
            if path.startswith(f"/api/models/{repo}"):
                return self._json(_info(repo, files))
            prefix = f"/{repo}/resolve/"
            if path.startswith(prefix):
                return self._file(files.get(path[len(prefix) :].partition("/")[2]))
        return self._missing("RepoNotFound")

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, data: bytes | None) -> None:
        if data is None:
            return self._missing("EntryNotFound")
        etag = hashlib.sha256(data).hexdigest()
        return self._send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": _COMMIT})

    def _missing(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code, "X-Repo-Commit": _COMMIT})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _info(repo: str, files: Mapping[str, bytes]) -> dict[str, object]:
    siblings = [{"rfilename": name} for name in files]
    return {"id": repo, "sha": _COMMIT, "siblings": siblings, "private": False, "tags": []}


def _entry(name: str, data: bytes) -> dict[str, object]:
    oid = hashlib.sha1(data).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": oid}
