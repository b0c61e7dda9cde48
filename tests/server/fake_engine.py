"""An engine without a model: it answers with bytes a test chose, when the test lets it."""

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.plan import TokenLogprobs
from headway.core.record import StepRecord
from headway.core.request import ClassCounts, Snapshot, TierCounts, Usage
from headway.core.types import FinishReason, RequestId, ServiceClass
from headway.engine.arrivals import check_request
from headway.engine.options import ModelLimits
from headway.engine.types import (
    Delta,
    Generation,
    GenerationRequest,
    Observer,
    RequestEnd,
    TokenInfo,
)


class PlainChat:
    """`role: content` lines."""

    source = "{{ messages }}"
    takes_tools = False

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        /,
        **variables: object,
    ) -> str:
        return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: "


@dataclass
class Script:
    """What the engine does with requests.

    reply: the answer's bytes, one token each; the request's max_tokens cuts it.
    hold_after: tokens after which an answer waits for `FakeEngine.release`; None never waits.
    refuse: raised by submit.
    fail_after: tokens after which the answer ends with an error.
    cached: prompt tokens reported as found in the prefix cache.
    """

    reply: bytes = b"Hello there."
    hold_after: int | None = None
    refuse: Exception | None = None
    fail_after: int | None = None
    fail_reason: FinishReason = FinishReason.ERROR
    cached: int = 0


@dataclass
class FakeEngine:
    """Implements EngineClient. Lives on the server's event loop; tests only read its lists."""

    script: Script = field(default_factory=Script)
    max_model_len: int = 2048
    healthy: bool = True
    observers: list[Observer] = field(default_factory=list)
    submitted: list[GenerationRequest] = field(default_factory=list)
    live: list["FakeGeneration"] = field(default_factory=list)
    aborted: int = 0
    records: dict[int | None, StepRecord] = field(default_factory=dict)

    def submit(self, request: GenerationRequest, limited: bool = True) -> Generation:
        if self.script.refuse is not None:
            raise self.script.refuse
        check_request(request, ModelLimits(256, self.max_model_len, frozenset()), max_choices=128)
        self.submitted.append(request)
        generation = FakeGeneration(self, request, self.script)
        self.live.append(generation)
        return generation

    def snapshot(self) -> Snapshot:
        running = dict.fromkeys(ServiceClass, 0)
        for generation in list(self.live):
            running[generation.request.service_class] += generation.request.n
        used = sum(running.values())
        return Snapshot(
            step=0,
            device=TierCounts(free=64 - used, used=used, cached=0, total=64),
            host=TierCounts(free=8, used=0, cached=0, total=8),
            classes={c: ClassCounts(running=count) for c, count in running.items()},
        )

    def explain(self, step: int | None = None) -> StepRecord | None:
        return self.records.get(step)

    def release(self) -> None:
        """Let held answers go on; call on the event loop's thread."""
        for generation in self.live:
            generation.released.set()

    def ended(self, generation: "FakeGeneration", reason: FinishReason, usage: Usage) -> None:
        self.live.remove(generation)
        for observer in self.observers:
            for _ in range(generation.request.n):
                request = generation.request
                observer.on_finished(
                    RequestEnd(request.service_class, request.tenant, reason, usage)
                )


class FakeGeneration:
    """An answer: choices take turns, a token each."""

    def __init__(self, engine: FakeEngine, request: GenerationRequest, script: Script) -> None:
        self.engine = engine
        self.request = request
        self.requests = [RequestId(len(engine.submitted) * 128 + i) for i in range(request.n)]
        self.script = script
        self.released = asyncio.Event()
        self._running = True
        self._step = 0

    async def __aiter__(self) -> AsyncIterator[Delta]:
        choices = [self._choice(index) for index in range(self.request.n)]
        while choices:
            if self._step == self.script.hold_after:
                await self.released.wait()
            await asyncio.sleep(0)
            for choice in list(choices):
                try:
                    delta = next(choice)
                except StopIteration:
                    choices.remove(choice)
                    continue
                yield delta
            self._step += 1
        self._end(FinishReason.STOP)

    async def aclose(self) -> None:
        if self._running:
            self.engine.aborted += 1
            self._end(FinishReason.ABORT)

    def _end(self, reason: FinishReason) -> None:
        if self._running:
            self._running = False
            self.engine.ended(self, reason, self._usage(0))

    def _choice(self, index: int) -> Iterator[Delta]:
        limit = self.request.stop.max_tokens or self.engine.max_model_len
        tokens = self.script.reply[:limit]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for position, token in enumerate(tokens):
            if position == self.script.fail_after:
                yield Delta(index, "", finish=self.script.fail_reason, message="It broke.")
                return
            yield Delta(index, decoder.decode(bytes([token])), (self._info(token),))
        whole = len(tokens) == len(self.script.reply)
        reason = FinishReason.STOP if whole else FinishReason.LENGTH
        tail = decoder.decode(b"", final=True)
        yield Delta(index, tail, finish=reason, usage=self._usage(len(tokens)))

    def _info(self, token: int) -> TokenInfo:
        k = self.request.sampling.logprobs
        if k < 0:
            return TokenInfo(token)
        top = tuple((65 + rank, -1.0 - rank) for rank in range(k))
        return TokenInfo(token, TokenLogprobs(-0.5, top))

    def _usage(self, generated: int) -> Usage:
        return Usage(len(self.request.prompt), self.script.cached, generated)
