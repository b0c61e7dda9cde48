"""Clients of every kind, good and bad, who watch what they get."""

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import httpx

from tests.soak.process import MAX_MODEL_LEN

PATIENCE_S = 120.0
"""After which a request counts as lost."""

CLASSES = ("realtime", "standard", "batch")
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "bc"]}, "sure": {"type": "boolean"}},
    "required": ["kind", "sure"],
    "additionalProperties": False,
}

Body = dict[str, object]


class Phase(Enum):
    """What the server is doing."""

    UP = auto()
    STOPPING = auto()


class LostError(Exception):
    """A request did not get what it was due."""


@dataclass
class Ledger:
    """What became of every request: outcomes by (kind, outcome), and what should not have been."""

    phase: Phase = Phase.UP
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.outcomes.total()


def asks() -> list[Body]:
    """Requests whose answers are known once they were answered alone."""
    return [
        {
            "model": "tiny",
            "prompt": [(i * 37 + j * (i + 3)) % 250 + 20 for j in range(4 + 13 * i)],
            "max_tokens": 4 + (7 * i) % 45,
            "temperature": i % 2,
            "seed": i,
            "ignore_eos": True,
        }
        for i in range(14)
    ]


class Traffic:
    """Sends requests of random kinds to a server, until told to stop."""

    def __init__(self, url: str, port: int, ledger: Ledger, seed: int) -> None:
        self._port = port
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._asks = asks()
        self._texts: list[str] = []
        # A connection a request, so that none is sent into one that is just being closed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits)
        self._kinds: Mapping[str, tuple[int, Callable[[], Awaitable[str]]]] = {
            "plain": (6, self._plain),
            "streamed": (6, self._streamed),
            "chat": (3, self._chat),
            "several choices": (2, self._several),
            "schema": (2, self._schema),
            "leaves": (3, self._leaves),
            "cancels": (2, self._cancels),
            "resets": (2, self._resets),
            "in a hurry": (2, self._hurried),
            "too long": (1, self._too_long),
            "wrong": (1, self._wrong),
        }

    async def close(self) -> None:
        await self._http.aclose()

    async def learn(self) -> None:
        """Ask everything once, alone: what it is answered must be answered ever after."""
        for ask in self._asks:
            answer = await self._http.post(_COMPLETIONS, json=ask)
            self._texts.append(answer.json()["choices"][0]["text"])

    async def client(self, until: asyncio.Event) -> None:
        """One client: a request after the other."""
        names = list(self._kinds)
        weights = [weight for weight, _ in self._kinds.values()]
        while not until.is_set():
            name = self._rng.choices(names, weights)[0]
            if await self._sent(name, self._kinds[name][1]) != "unreachable":
                continue
            await asyncio.sleep(0.05)

    async def crowd(self, count: int) -> None:
        """So many streams at once, each with its known answer."""
        await asyncio.gather(*(self._sent("in a crowd", self._streamed) for _ in range(count)))

    async def _sent(self, name: str, send: Callable[[], Awaitable[str]]) -> str:
        began = self._ledger.phase
        try:
            outcome = await asyncio.wait_for(send(), PATIENCE_S)
        except httpx.TransportError as error:
            # Nothing of an answer came. Before SIGTERM that must not be.
            outcome = "unreachable"
            if began is Phase.UP:
                self._ledger.faults.append(f"{name}: {type(error).__name__}: {error}")
        except (LostError, TimeoutError, ValueError, KeyError, IndexError) as error:
            outcome = "lost"
            self._ledger.faults.append(f"{name}: {type(error).__name__}: {error}")
        self._ledger.outcomes[name, outcome] += 1
        return outcome

    async def _plain(self) -> str:
        number = self._rng.randrange(len(self._asks))
        answer = await self._post(_COMPLETIONS, self._classed(self._asks[number]))
        if answer.status_code != 200:
            return self._refusal(answer.status_code, answer.text)
        return self._compared(number, answer.json()["choices"][0]["text"])

    async def _streamed(self) -> str:
        number = self._rng.randrange(len(self._asks))
        stream = await self._stream(_COMPLETIONS, self._classed(self._asks[number]))
        return stream.outcome or self._compared(number, stream.texts.get(0, ""))

    async def _chat(self) -> str:
        words = "hello " * self._rng.randrange(1, 30)
        fields = {"max_tokens": self._rng.randrange(1, 60), "logprobs": True, "top_logprobs": 2}
        stream = await self._stream(_CHAT, self._classed(_turn(words) | fields))
        return stream.outcome or "answered"

    async def _several(self) -> str:
        body = self._classed(_turn("hello " * 20) | {"n": 3, "max_tokens": 20, "temperature": 1})
        if self._rng.random() < 0.5:
            stream = await self._stream(_CHAT, body)
            if stream.outcome:
                return stream.outcome
            ended = stream.ended
        else:
            answer = await self._post(_CHAT, body)
            if answer.status_code != 200:
                return self._refusal(answer.status_code, answer.text)
            ended = {choice["index"] for choice in answer.json()["choices"]}
        if ended != {0, 1, 2}:
            raise LostError(f"choices {ended} of three")
        return "answered"

    async def _schema(self) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": _SCHEMA}}
        body = _turn("which?") | {"response_format": form, "max_tokens": 60, "temperature": 1}
        answer = await self._post(_CHAT, self._classed(body))
        if answer.status_code != 200:
            return self._refusal(answer.status_code, answer.text)
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {
            "kind",
            "sure",
        }:
            raise LostError("an answer that does not keep to its schema")
        return "answered"

    async def _leaves(self) -> str:
        stay = self._rng.randrange(6)
        stream = await self._stream(_COMPLETIONS, self._classed(self._long()), stay)
        return stream.outcome or "left"

    async def _cancels(self) -> str:
        sending = asyncio.create_task(self._post(_COMPLETIONS, self._classed(self._long())))
        done, _ = await asyncio.wait({sending}, timeout=self._rng.random() * 0.4)
        if done:
            answer = sending.result()
            return self._refusal(answer.status_code, answer.text)
        sending.cancel()
        await asyncio.wait({sending})
        return "left"

    async def _resets(self) -> str:
        text = json.dumps(self._classed(self._long()) | {"stream": self._rng.random() < 0.5})
        head = f"POST {_COMPLETIONS} HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(text)}\r\n\r\n"
        cut = self._rng.choice([len(text), len(text), len(text) // 2])
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        writer.write((head + text[:cut]).encode())
        await asyncio.sleep(self._rng.random() * 0.4)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        return "left"

    async def _hurried(self) -> str:
        body = self._long() | {"timeout": 0.01 + 0.2 * self._rng.random()}
        if self._rng.random() < 0.5:
            stream = await self._stream(_COMPLETIONS, self._classed(body))
            return stream.outcome or "answered"
        answer = await self._post(_COMPLETIONS, self._classed(body))
        return self._refusal(answer.status_code, answer.text)

    async def _too_long(self) -> str:
        ids = [7] * (MAX_MODEL_LEN + self._rng.randrange(500))
        return await self._refused({"model": "tiny", "prompt": ids}, "context_length_exceeded")

    async def _wrong(self) -> str:
        return await self._refused(self._long() | {"temperature": 9}, "invalid_value")

    async def _refused(self, body: Body, code: str) -> str:
        answer = await self._post(_COMPLETIONS, self._classed(body))
        outcome = self._refusal(answer.status_code, answer.text, (400,))
        if answer.status_code == 400 and answer.json()["error"]["code"] != code:
            raise LostError(answer.text)
        return outcome

    def _long(self) -> Body:
        ids = [self._rng.randrange(20, 260) for _ in range(self._rng.randrange(5, 120))]
        return {"model": "tiny", "prompt": ids, "max_tokens": 120, "ignore_eos": True}

    def _classed(self, body: Body) -> Body:
        return body | {"service_tier": self._rng.choice(CLASSES)}

    def _compared(self, number: int, text: str) -> str:
        if text != self._texts[number]:
            raise LostError(f"ask {number}: {text!r} is not {self._texts[number]!r}")
        return "answered"

    def _refusal(self, status: int, text: str, allowed: tuple[int, ...] = (200, 504)) -> str:
        """The outcome of an answer that may be an explicit error. Raises LostError for others."""
        if status == 503 and self._ledger.phase is Phase.STOPPING:
            allowed += (503,)
        if status not in allowed:
            raise LostError(f"status {status}: {text[:200]}")
        return "answered" if status == 200 else f"error {status}"

    async def _post(self, path: str, body: Body) -> httpx.Response:
        return await self._http.post(path, json=body)

    async def _stream(self, path: str, body: Body, stay: int = 10**6) -> "_Stream":
        """Read a stream, of at most `stay` chunks, and check that it ends as streams do."""
        read = _Stream()
        async with self._http.stream("POST", path, json=body | {"stream": True}) as answer:
            try:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode()
                    read.outcome = self._refusal(answer.status_code, text)
                    return read
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        read.take(line.removeprefix("data: "))
                        stay -= 1
                        if stay < 0:
                            return read
            except httpx.TransportError as error:
                raise LostError(f"cut off in its middle: {error!r}") from error
        if read.error is not None:
            status = 504 if read.error == "deadline_exceeded" else 503
            read.outcome = self._refusal(status, f"error event {read.error}") + " in a stream"
        elif not read.done or not read.ended:
            raise LostError(f"a stream ended without saying so: {read}")
        return read


@dataclass
class _Stream:
    """What a stream brought. outcome: set where it was no answer."""

    texts: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    done: bool = False
    error: str | None = None
    outcome: str = ""

    def take(self, data: str) -> None:
        if self.done or self.error is not None:
            raise LostError("more after the end of a stream")
        if data == "[DONE]":
            self.done = True
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            self.error = str(event["error"]["code"])
            return
        for choice in event["choices"]:
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice.get("text", "")
            if choice["finish_reason"] is not None:
                if index in self.ended:
                    raise LostError("a choice ended twice")
                self.ended.add(index)


def _turn(text: str) -> Body:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]}
