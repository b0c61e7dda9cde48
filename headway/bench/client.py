"""A small HTTP client for load: streamed completions over plain sockets, standard library only.

It reads server-sent events as they arrive and notes when, so that what is measured is the server.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from urllib.parse import urlsplit

from headway.errors import HeadwayError


class BenchError(HeadwayError):
    """A server that can't be measured: it refuses, or breaks off."""


@dataclass(slots=True)
class Streamed:
    """A streamed answer. times_s: when each event with tokens came; sent_s: when it was asked."""

    sent_s: float
    times_s: list[float] = field(default_factory=list)
    text: str = ""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.times_s[0] - self.sent_s

    @property
    def content(self) -> tuple[str, list[str], list[float]]:
        """What must be the same whenever the request is repeated."""
        return self.text, self.tokens, self.logprobs

    def add(self, event: bytes) -> None:
        """Take in one event's data. Raises BenchError if it reports a failure."""
        body = json.loads(event)
        if "error" in body:
            raise BenchError(f"the server says: {body['error']['message']}")
        for choice in body["choices"]:
            if choice["text"] or choice["logprobs"]:
                self.times_s.append(perf_counter())
            self.text += choice["text"]
            if choice["logprobs"]:
                self.tokens += choice["logprobs"]["tokens"]
                self.logprobs += choice["logprobs"]["token_logprobs"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclass(frozen=True, slots=True)
class Client:
    """A server by its URL, `http://HOST:PORT`."""

    url: str
    api_key: str = ""

    async def complete(self, body: dict[str, object]) -> Streamed:
        """Stream a text completion to its end. Raises BenchError."""
        streamed = Streamed(perf_counter())
        async with self._request("POST", "/v1/completions", body | {"stream": True}) as parts:
            pending = b""
            async for part in parts:
                *events, pending = (pending + part).split(b"\n\n")
                for event in events:
                    data = event.removeprefix(b"data: ")
                    if event.startswith(b"data: ") and data != b"[DONE]":
                        streamed.add(data)
        if not streamed.finish_reason:
            raise BenchError("the server broke off an answer")
        return streamed

    async def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels."""
        async with self._request("GET", "/metrics", None) as parts:
            text = b"".join([part async for part in parts]).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: dict[str, object] | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer's body in parts. Raises BenchError for a status other than 200."""
        place = urlsplit(self.url)
        try:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
        except OSError as error:
            raise BenchError(f"{self.url}: {error}") from error
        try:
            content = b"" if body is None else json.dumps(body).encode()
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
                f"Authorization: Bearer {self.api_key}\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            writer.write(head.encode() + content)
            answer = await reader.readuntil(b"\r\n\r\n")
            parts = _chunks(reader) if b"chunked" in answer.lower() else _rest(reader)
            if int(answer.split(None, 2)[1]) != 200:
                problem = b"".join([part async for part in parts]).decode()
                raise BenchError(f"{self.url}{path}: {problem}")
            yield parts
        except (OSError, asyncio.IncompleteReadError) as error:
            raise BenchError(f"{self.url}{path}: {error}") from error
        finally:
            writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body in chunked encoding."""
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body that ends with the connection."""
    while part := await reader.read(1 << 16):
        yield part
