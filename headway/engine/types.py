"""What callers hand to the engine and what they get back. The only engine types a server needs."""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from headway.core.picture import Picture
from headway.core.plan import (
    Penalties,
    StepFailure,
    StepPlan,
    StepResult,
    TokenLogprobs,
    Truncation,
)
from headway.core.record import StepRecord
from headway.core.request import Snapshot, Usage
from headway.core.types import FinishReason, RequestId, ServiceClass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens.

    seed: keys the generator with choice and position; None draws one at arrival.
    bias: token id → value added to its logit.
    logprobs: -1 none, else the top k beside the sampled token's.
    """

    temperature: float = 1.0
    truncation: Truncation = Truncation()
    penalties: Penalties = Penalties()
    seed: int | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int = -1


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When an answer ends.

    max_tokens: None = whatever the model's length leaves.
    stop: strings that end the answer and are not part of it.
    stop_ids: further token ids that end it.
    ignore_eos: go on past end of sequence.
    deadline_s: seconds from arrival after which it ends; None = never.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    deadline_s: float | None = None


class GrammarState(Protocol):
    """Where one answer stands in its grammar: a function of its tokens. For one thread at a time.
    Methods raise HeadwayError where the answer can't go on."""

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        ...

    def mask(self) -> bytes:
        """The tokens that may come next, as in `core.plan.Masks`."""
        ...

    def accept(self, token: int) -> None:
        """Go on by a token."""
        ...


class Grammar(Protocol):
    """What answers may be, compiled; shared by any number of them."""

    @property
    def first_mask(self) -> bytes:
        """What `mask` of a fresh state gives."""
        ...

    def start(self) -> GrammarState:
        """The state of an answer without tokens."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, `n` answers. Validated by `Engine.submit`, which raises InvalidRequestError.

    grammar: what the answers may be; None leaves them free.
    shown: control tokens that appear in the text, by their names; others have no text.
    whole: whether nobody looks at an answer before its end: then its deltas come with that.
    """

    prompt: Sequence[int]
    service_class: ServiceClass = ServiceClass.STANDARD
    sampling: SamplingParams = SamplingParams()
    stop: StopConditions = StopConditions()
    n: int = 1
    tenant: str = ""
    grammar: Grammar | None = None
    shown: Set[int] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """One generated token: id, and log probabilities if the request asked for them.

    shown: False for the token that ended the answer (end of sequence, a stop id): it counts, but
        has no text and no place among the log probabilities that OpenAI's API gives.
    """

    token: int
    logprobs: TokenLogprobs | None = None
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice.

    text: valid text, never half a character, never part of a stop string. May be empty.
    tokens: the tokens since the last delta. One that a stop string may still cut comes together
        with its text, so that all tokens together are those the answer keeps.
    finish: set on the last delta of the choice, with `usage`; `message` explains ERROR.
    """

    choice: int
    text: str
    tokens: tuple[TokenInfo, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    message: str = ""


class Generation(Protocol):
    """The answer under way: an async iterator of deltas of all choices, which ends after each
    choice has had its last delta. `aclose` (or leaving an `async for` through `aclosing`) aborts
    what still runs."""

    @property
    def requests(self) -> Sequence[RequestId]:
        """The scheduler's numbers of its choices, as step records have them."""
        ...

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def aclose(self) -> None:
        """Abort; idempotent, and without effect on a finished generation."""
        ...


class EngineClient(Protocol):
    """What the HTTP server sees of an engine. All methods may be called from any thread."""

    def submit(self, request: GenerationRequest, limited: bool = True) -> Generation:
        """Start a generation on the running event loop. One that is not `limited` is let in however
        many wait.

        Raises InvalidRequestError, NeverFitsError, OverloadedError or EngineStoppedError at once.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The scheduler after its last commit."""
        ...

    def explain(self, step: int | None = None) -> StepRecord | None:
        """What a step decided and why, the last one by default; None if it is no longer kept."""
        ...

    @property
    def healthy(self) -> bool:
        """False once the step loop has died, stalled, or failed twice in a row."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together; /v1/models advertises what submit enforces."""
        ...


class PictureSource(Protocol):
    """Who can be asked for a picture of the scheduler in detail."""

    async def picture(self) -> Picture:
        """Every block and sequence as it is between two steps. Costs nothing while nobody asks.

        Raises EngineStoppedError.
        """
        ...


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """A request that ended, aborted and failed ones too.

    decode_s: seconds from its first token to its last one; 0 for fewer than two.
    """

    service_class: ServiceClass
    tenant: str
    reason: FinishReason
    usage: Usage
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A step that an executor was given, and how it ended.

    classes: of the requests that `record` names, as far as they are still under way.
    when_s: when it was committed, on the engine's clock.
    """

    plan: StepPlan
    record: StepRecord
    outcome: StepResult | StepFailure
    classes: Mapping[RequestId, ServiceClass]
    when_s: float


class Observer(Protocol):
    """Told of a request's milestones, on the engine thread. Must not block; an exception is logged
    and the observer dropped, the loop goes on."""

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None: ...

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Tokens of one request in one step: gaps since its previous token (ITL), or, with
        `first`, the one time since arrival (TTFT)."""
        ...

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None: ...

    def on_finished(self, end: RequestEnd) -> None: ...

    def on_step(self, end: StepEnd) -> None:
        """Comes after what the step brought. Not called where the scheduler keeps no records."""
        ...
