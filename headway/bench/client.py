"""A small HTTP client for load: streamed completions over plain sockets, standard library only.

It reads server-sent events as they arrive and notes when, so that what is measured is the server.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from urllib.parse import urlsplit

from headway.errors import HeadwayError

_MOST_SAID = 500


class BenchError(HeadwayError):
    """A server that can't be measured: it refuses, or breaks off.

    kind: in a word or two, to count by.
    """

    def __init__(self, message: str, kind: str = "failure") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Streamed:
    """A streamed answer. times_s: when each event with tokens came; sent_s: when it was asked.

    usage: where the server tells it (`stream_options.include_usage`).
    """

    sent_s: float
    times_s: list[float] = field(default_factory=list)
    text: str = ""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    usage: Usage | None = None

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
        now_s = perf_counter()
        body = json.loads(event)
        if "error" in body:
            raise BenchError(f"the server says: {body['error']['message']}", "error in the stream")
        for choice in body["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            logprobs = choice.get("logprobs")
            if text or logprobs:
                self.times_s.append(now_s)
            self.text += text or ""
            if logprobs and "tokens" in logprobs:
                self.tokens += logprobs["tokens"]
                self.logprobs += logprobs["token_logprobs"]
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if usage := body.get("usage"):
            self.usage = Usage(usage["prompt_tokens"], usage["completion_tokens"])


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a streamed answer: where, the JSON body, further headers."""

    path: str
    body: dict[str, object]
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """A server by its URL, `http[s]://HOST[:PORT][/PATH]`."""

    url: str
    api_key: str = ""

    async def complete(self, body: dict[str, object]) -> Streamed:
        """Stream a text completion to its end. Raises BenchError."""
        streamed = Streamed(perf_counter())
        await self.stream(Ask("/v1/completions", body), streamed)
        return streamed

    async def stream(self, ask: Ask, streamed: Streamed) -> None:
        """Stream an answer into `streamed`, which keeps what came should it break off.
        Raises BenchError."""
        body = ask.body | {"stream": True}
        async with self._request("POST", ask.path, body, ask.headers) as parts:
            pending = b""
            async for part in parts:
                *events, pending = (pending + part).split(b"\n\n")
                for event in events:
                    data = event.removeprefix(b"data: ")
                    if event.startswith(b"data: ") and data != b"[DONE]":
                        streamed.add(data)
        if not streamed.finish_reason:
            raise BenchError("the server broke off an answer", "broken off")

    async def models(self) -> list[str]:
        """Names of the models served. Raises BenchError."""
        async with self._request("GET", "/v1/models", None) as parts:
            listed = json.loads(b"".join([part async for part in parts]))
        return [model["id"] for model in listed["data"]]

    async def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels."""
        async with self._request("GET", "/metrics", None) as parts:
            text = b"".join([part async for part in parts]).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: dict[str, object] | None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer's body in parts. Raises BenchError for a status other than 200."""
        place = urlsplit(self.url)
        secure = ssl.create_default_context() if place.scheme == "https" else None
        port = place.port or (443 if secure else 80)
        try:
            reader, writer = await asyncio.open_connection(place.hostname, port, ssl=secure)
        except OSError as error:
            raise BenchError(f"{self.url}: {error}", "no connection") from error
        try:
            content = b"" if body is None else json.dumps(body).encode()
            lines = [
                f"{method} {place.path.rstrip('/')}{path} HTTP/1.1",
                f"Host: {place.netloc}",
                "Connection: close",
                f"Authorization: Bearer {self.api_key}",
                "Content-Type: application/json",
                f"Content-Length: {len(content)}",
                *(f"{name}: {value}" for name, value in headers),
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            answer = await reader.readuntil(b"\r\n\r\n")
            parts = _chunks(reader) if b"chunked" in answer.lower() else _rest(reader)
            status = int(answer.split(None, 2)[1])
            if status != 200:
                problem = b"".join([part async for part in parts]).decode()
                raise BenchError(f"{self.url}{path}: {_said(problem)}", f"status {status}")
            yield parts
        except (OSError, asyncio.IncompleteReadError) as error:
            raise BenchError(f"{self.url}{path}: {error}", "broken off") from error
        finally:
            writer.close()


def _said(body: str) -> str:
    """What a refusal says, in one line: OpenAI's message, else the body's beginning."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = body
    return " ".join(str(message).split())[:_MOST_SAID] or "no reason given"


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body in chunked encoding."""
    while size := _chunk_size(await reader.readline()):
        yield (await reader.readexactly(size + 2))[:-2]


def _chunk_size(line: bytes) -> int:
    """Raises IncompleteReadError for a line that says none, as where the connection ended."""
    try:
        return int(line, 16)
    except ValueError:
        raise asyncio.IncompleteReadError(line, None) from None


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body that ends with the connection."""
    while part := await reader.read(1 << 16):
        yield part
