"""Small things with sensible defaults, so that a test names only what it is about."""

from collections.abc import Sequence

from headway.core.plan import Capacity, SamplingSpec
from headway.core.request import Limits, Request
from headway.core.types import RequestId, ServiceClass


def make_capacity(
    kv_blocks: int = 64,
    host_blocks: int = 0,
    block_size: int = 16,
    max_seqs: int = 8,
    max_step_tokens: int = 256,
    max_model_len: int = 512,
    vocab_size: int = 1000,
    units: int = 1,
) -> Capacity:
    """Sizes of a tiny executor: 64 blocks of 16 tokens."""
    return Capacity(
        kv_blocks=kv_blocks,
        host_blocks=host_blocks,
        block_size=block_size,
        max_seqs=max_seqs,
        max_step_tokens=max_step_tokens,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        block_bytes=block_size * 1024,
        units=units,
    )


def make_prompt(request: int, num_tokens: int, vocab_size: int = 1000) -> tuple[int, ...]:
    """A prompt of its own for each request: no two share a first token's successor."""
    return tuple((request * 7919 + i * i * 31 + i + 1) % vocab_size for i in range(num_tokens))


def make_request(
    request: int,
    service_class: ServiceClass = ServiceClass.STANDARD,
    prompt: Sequence[int] | int = 16,
    max_tokens: int = 8,
    arrival_s: float = 0.0,
    sampling: SamplingSpec | None = None,
    stop_ids: frozenset[int] = frozenset(),
    deadline_s: float = float("inf"),
    tenant: str = "",
    group: int | None = None,
) -> Request:
    """A core request. `prompt` as a number gives that many tokens of the request's own."""
    return Request(
        id=RequestId(request),
        service_class=service_class,
        prompt=make_prompt(request, prompt) if isinstance(prompt, int) else prompt,
        limits=Limits(max_tokens, stop_ids, deadline_s),
        sampling=sampling or SamplingSpec(),
        arrival_s=arrival_s,
        tenant=tenant,
        group=None if group is None else RequestId(group),
    )
