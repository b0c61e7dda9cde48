"""How deltas of several choices are put together."""

from collections.abc import Sequence

import pytest

from headway.core.request import Usage
from headway.core.types import FinishReason, RequestId
from headway.engine.types import Delta, GenerationRequest, TokenInfo
from headway.server.answer import MAX_BEHIND_TOKENS, Choices
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, live_server


async def batches_of(engine: FakeEngine, prompts: int, n: int) -> list[list[Delta]]:
    choices = Choices(n)
    choices.submit(engine, [GenerationRequest([1], n=n) for _ in range(prompts)])
    batches = [list(batch) async for batch in choices.batches()]
    await choices.aclose()
    assert engine.aborted == 0
    return [batch for batch in batches if batch]


@pytest.mark.parametrize(("prompts", "n"), [(1, 1), (1, 3), (2, 1), (2, 3)])
async def test_choices_are_numbered_through_and_whole(prompts: int, n: int) -> None:
    batches = await batches_of(FakeEngine(Script(b"abcd")), prompts, n)
    texts = dict.fromkeys(range(prompts * n), "")
    for batch in batches:
        for delta in batch:
            texts[delta.choice] += delta.text
    assert set(texts.values()) == {"abcd"}
    # A write for each step, however many choices have news in it: four tokens and the end.
    assert len(batches) == 5


async def test_a_failing_generation_ends_the_others() -> None:
    class Failing(FakeEngine):
        def submit(self, request: GenerationRequest, limited: bool = True) -> "BrokenGeneration":
            return BrokenGeneration()

    choices = Choices(1)
    choices.submit(FakeEngine(Script(b"abcd", hold_after=2)), [GenerationRequest([1])])
    choices.submit(Failing(), [GenerationRequest([1])])
    with pytest.raises(OSError, match="broken"):
        async for _ in choices.batches():
            pass
    await choices.aclose()


class BrokenGeneration:
    """Raises at once."""

    requests: Sequence[RequestId] = ()

    def __aiter__(self) -> "BrokenGeneration":
        return self

    async def __anext__(self) -> Delta:
        raise OSError("broken")

    async def aclose(self) -> None:
        return None


@pytest.mark.parametrize("behind", [0, 1])
def test_a_stream_too_far_behind_is_ended(behind: int) -> None:
    tokens = (TokenInfo(65),) * (MAX_BEHIND_TOKENS + behind)
    heap = Heap([Delta(0, "A", tokens), Delta(0, "", finish=FinishReason.STOP, usage=Usage())])

    class Heaping(FakeEngine):
        def submit(self, request: GenerationRequest, limited: bool = True) -> Heap:
            return heap

    with live_server(Heaping()) as server:
        body = {"model": MODEL, "prompt": "x", "stream": True}
        answer = server.http().post("/v1/completions", json=body)
    assert ("reads so slowly" in answer.text) == bool(behind)
    assert ("[DONE]" in answer.text) != bool(behind)
    assert heap.closed


class Heap:
    """Deltas that had to wait for their reader."""

    requests: Sequence[RequestId] = ()

    def __init__(self, deltas: list[Delta]) -> None:
        self.deltas = deltas
        self.closed = False

    def __aiter__(self) -> "Heap":
        return self

    async def __anext__(self) -> Delta:
        if not self.deltas:
            raise StopAsyncIteration
        return self.deltas.pop(0)

    async def aclose(self) -> None:
        self.closed = True
