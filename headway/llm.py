"""The offline door: prompts in, answers out, no server.

from headway import LLM, SamplingParams

with LLM("smollm2") as llm:
    for result in llm.generate(["Once upon a time", "It was a dark"], SamplingParams(seed=1)):
        print(result.text)
"""

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from headway.assembly import EngineOptions, Sizes, build_engine, lane_mode
from headway.assembly import weight_cache as weight_cache_at
from headway.core.plan import Capacity, TokenLogprobs
from headway.core.request import Usage
from headway.core.types import FinishReason, ServiceClass
from headway.engine.engine import Engine
from headway.engine.options import LoopOptions, QueueLimits
from headway.engine.streams import SyncGeneration
from headway.engine.types import Delta
from headway.errors import InvalidRequestError
from headway.models.answers import PartKind, PlainReader
from headway.models.contents import shielded_turns
from headway.models.grammars import Grammar, GrammarCompiler, Names, marker_term
from headway.models.loader import load_model
from headway.models.pull import resolve_model
from headway.models.reasoning import CLOSES, OPENS, ReasoningReader, Thinking, thinking_of
from headway.sampling import SamplingParams
from headway.server.errors import ApiError
from headway.server.tiers import parse_tier

WINDOW = 1024
"""Prompts under way at once; more are submitted as the first ones end, so that memory stays flat
however many there are."""

_ALL = QueueLimits(1 << 40, 1 << 40, 1 << 40)
"""The window limits what waits; there is no other client to protect."""

Prompt = str | Sequence[int]
Message = Mapping[str, str]

_CLOSED = "This LLM has been closed."

_Pending = TypeVar("_Pending")


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer.

    reasoning: what a model that thinks wrote before the text, in conversations.
    token_ids: its tokens; one that ended it (end of sequence) is the last of them.
    finish_reason: "stop", "length", or "error", which `error` explains.
    logprobs: for each token, if they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...] | None
    usage: Usage
    error: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The answers to one prompt. What it says of itself is said of the first."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first answer."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Log probabilities of the first answer's tokens."""
        return self.choices[0].logprobs


class Codec(Names, Protocol):
    """Text to token ids."""

    def encode(self, text: str, add_special: bool) -> Sequence[int]: ...

    def shield(self, text: str) -> str: ...


class Template(Protocol):
    """A conversation as one text."""

    @property
    def source(self) -> str: ...

    def render(self, messages: Sequence[Mapping[str, object]], /) -> str: ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as a prompt, and how the answer to it begins."""

    ids: Sequence[int]
    thinking: Thinking


class Pending:
    """A prompt under way. `deltas` streams its answers, reasoning and all; `result` waits for
    them."""

    def __init__(self, prompt: Rendered, n: int, deltas: SyncGeneration) -> None:
        self.deltas = deltas
        self._prompt = prompt
        self._n = n

    def result(self) -> Result:
        """Wait for the answers. Call once, and only if `deltas` was not read."""
        by_choice: list[list[Delta]] = [[] for _ in range(self._n)]
        self.deltas.hold()
        for delta in self.deltas:
            by_choice[delta.choice].append(delta)
        choices = (_choice(deltas, self._prompt.thinking) for deltas in by_choice)
        return Result(tuple(self._prompt.ids), tuple(choices))


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes grammars for a model."""

    codec: Codec
    grammars: GrammarCompiler | None

    def term(self, marker: str) -> str:
        return marker_term(self.codec, marker)

    def compile(self, source: str, param: str) -> Grammar:
        if self.grammars is None:
            raise InvalidRequestError(f"{param!r} is not supported with this model", param)
        return self.grammars.compile(source, param)


class LLM:
    """A model with an engine of its own, for programs that need no server.

    model: a GGUF file, a Hugging Face folder, `smollm2`, or `hf:ORG/REPO[:FILE]`.
    sizes: as in `assembly.Sizes`; what isn't given fits the machine.
    policy, lanes: as `headway serve --policy` and `--lanes`.
    weight_cache: folder where packed weights are kept, "none" for none; None = in the user's cache.
    Raises ModelError or ConfigError.
    """

    def __init__(
        self,
        model: str | Path = "smollm2",
        *,
        kv_blocks: int | None = None,
        host_blocks: int | None = None,
        max_seqs: int | None = None,
        max_step_tokens: int | None = None,
        max_model_len: int | None = None,
        threads: int | None = None,
        policy: str = "tiered",
        lanes: str = "auto",
        weight_cache: str | Path | None = None,
    ) -> None:
        loaded = load_model(resolve_model(str(model)).path)
        sizes = Sizes(
            kv_blocks=kv_blocks,
            host_blocks=host_blocks,
            max_seqs=max_seqs,
            max_step_tokens=max_step_tokens,
            max_model_len=max_model_len,
            threads=threads,
        )
        options = EngineOptions(
            sizes,
            policy,
            loop=LoopOptions(queues=_ALL, queue_tokens=_ALL),
            lanes=lane_mode(lanes),
            weight_cache=weight_cache_at(None if weight_cache is None else str(weight_cache)),
        )
        engine = build_engine(loaded, options)
        self._start(engine, loaded.tokenizer, loaded.chat_template, loaded.grammars())

    @classmethod
    def around(
        cls,
        engine: Engine,
        codec: Codec,
        template: Template | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> "LLM":
        """The same around an engine that is there and not started yet."""
        llm = cls.__new__(cls)
        llm._start(engine, codec, template, grammars)
        return llm

    def _start(
        self,
        engine: Engine,
        codec: Codec,
        template: Template | None,
        grammars: GrammarCompiler | None,
    ) -> None:
        self._engine = engine
        self._codec = codec
        self._template = template
        self._maker = _Maker(codec, grammars)
        engine.start()
        self._stop = weakref.finalize(self, engine.stop, 0.0, _CLOSED)

    @property
    def capacity(self) -> Capacity:
        """Sizes of the executor."""
        return self._engine.capacity

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._engine.max_model_len

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | None = None,
        service_tier: str = "default",
        progress: bool = False,
    ) -> list[Result]:
        """Answer prompts, strings or lists of token ids; results come in their order.

        service_tier: OpenAI's word for the class (priority, default, flex) or ours.
        progress: draw a bar on stderr.
        Raises InvalidRequestError for a prompt or setting that can't be served; answers under way
        are then given up.
        """
        listed = _as_list(prompts)
        jobs = (self.submit(prompt, params, service_tier) for prompt in listed)
        return [p.result() for p in track(in_window(jobs, _give_up), len(listed), progress)]

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        service_tier: str = "default",
    ) -> Result:
        """Answer a conversation in the model's chat format. Raises InvalidRequestError."""
        return self.submit(self.render(messages), params, service_tier).result()

    def submit(
        self,
        prompt: Prompt | Rendered,
        params: SamplingParams | None = None,
        service_tier: str = "default",
    ) -> Pending:
        """Start on one prompt and return at once. Raises InvalidRequestError."""
        params, rendered = params or SamplingParams(), self._rendered(prompt)
        thinking = rendered.thinking
        request = replace(
            params.request(tuple(rendered.ids), class_of(service_tier)),
            grammar=params.grammar(thinking, self._maker),
            shown=frozenset() if thinking is Thinking.NEVER else self._tags(),
        )
        return Pending(rendered, request.n, self._engine.submit_sync(request))

    def render(self, messages: Sequence[Message]) -> Rendered:
        """A conversation as a prompt. Raises InvalidRequestError where it has none."""
        if self._template is None:
            raise InvalidRequestError("this model has no chat template", "messages")
        for message in messages:
            if not all(isinstance(message.get(key), str) for key in ("role", "content")):
                raise InvalidRequestError("a message needs a role and content", "messages")
        text = self._template.render(shielded_turns(messages, self._codec.shield))
        thinking = thinking_of(self._template.source, text)
        return Rendered(self._codec.encode(text, add_special=False), thinking)

    def _rendered(self, prompt: Prompt | Rendered) -> Rendered:
        if isinstance(prompt, Rendered):
            return prompt
        ids = self._codec.encode(prompt, add_special=True) if isinstance(prompt, str) else prompt
        return Rendered(ids, Thinking.NEVER)

    def _tags(self) -> frozenset[int]:
        """Control tokens that enclose reasoning, and have to be seen for that."""
        ids = (self._codec.token_id(tag) for tag in (OPENS, CLOSES))
        return frozenset(i for i in ids if i is not None and self._codec.is_special(i))

    def close(self) -> None:
        """Stop the engine and free its memory; idempotent."""
        self._stop()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def class_of(service_tier: str) -> ServiceClass:
    """The class a word means. Raises InvalidRequestError for an unknown one."""
    try:
        return parse_tier(service_tier, "service_tier").service_class
    except ApiError as error:
        raise InvalidRequestError(error.message, "service_tier") from error


def in_window(
    jobs: Iterable[_Pending], give_up: Callable[[_Pending], None], size: int = WINDOW
) -> Generator[_Pending, None, None]:
    """Draw `jobs` at most `size` ahead, and give them back in order. Drawing one starts it; those
    started are given up if the drawing of a later one raises, or the reader stops early."""
    started: deque[_Pending] = deque()
    source = iter(jobs)
    try:
        for job in source:
            started.append(job)
            if len(started) >= size:
                yield started.popleft()
        while started:
            yield started.popleft()
    finally:
        for job in started:
            give_up(job)


def track(items: Iterator[_Pending], total: int | None, shown: bool) -> Iterator[_Pending]:
    """The items, with a progress bar on stderr if it is to be shown."""
    if not shown:
        return items
    from tqdm import tqdm

    return iter(tqdm(items, total=total, unit="prompt", dynamic_ncols=True))


def _as_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt or many: a string is one, and so is a list of token ids."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    ids = [item for item in items if isinstance(item, int)]
    if ids and len(ids) == len(items):
        return [ids]
    return [item for item in items if not isinstance(item, int)]


def _give_up(pending: Pending) -> None:
    pending.deltas.close()


def _choice(deltas: Sequence[Delta], thinking: Thinking) -> Choice:
    tokens = [info for delta in deltas for info in delta.tokens]
    logprobs = tuple(info.logprobs for info in tokens if info.logprobs is not None)
    last = deltas[-1]
    reason = last.finish or FinishReason.ERROR
    reasoning, text = _apart("".join(delta.text for delta in deltas), thinking)
    return Choice(
        text=text,
        token_ids=tuple(info.token for info in tokens),
        finish_reason=reason.value,
        logprobs=logprobs if len(logprobs) == len(tokens) and logprobs else None,
        usage=last.usage or Usage(),
        error=last.message,
        reasoning=reasoning,
    )


def _apart(text: str, thinking: Thinking) -> tuple[str, str]:
    """An answer's reasoning, and the rest."""
    if thinking is Thinking.NEVER:
        return "", text
    reader = ReasoningReader(thinking, PlainReader())
    parts = [*reader.push(text), *reader.finish()]
    reasoning = "".join(part.text for part in parts if part.kind is PartKind.REASONING)
    return reasoning, "".join(part.text for part in parts if part.kind is PartKind.CONTENT)
