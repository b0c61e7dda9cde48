"""How deltas of several choices are put together."""

from collections.abc import Sequence

import pytest

from headway.core.types import RequestId
from headway.engine.types import Delta, GenerationRequest
from headway.server.answer import Choices
from tests.server.fake_engine import FakeEngine, Script


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
