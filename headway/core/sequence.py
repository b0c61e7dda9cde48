"""The scheduler's record of one request while it lives."""

from dataclasses import dataclass, field

from headway.core.prefix import PrefixChain
from headway.core.request import Limits, Request
from headway.core.types import BlockId, Lane, RequestId, ServiceClass, State


def blocks_for(tokens: int, block_size: int) -> int:
    """k(r) = ceil(tokens / block_size)."""
    return -(-tokens // block_size)


def seniority_key(
    rank: ServiceClass, promoted: bool, admission_step: int, number: int
) -> tuple[int, int, int, int]:
    """Sort key of the residents' total order, most senior first: class, then whoever was promoted,
    then the step of admission, then arrival."""
    return (rank, not promoted, admission_step, number)


def protected_until(computed_high: int, block_size: int) -> int:
    """How far a resumed sequence computes, in tokens, before growth of its own class may take it
    again: a block beyond what it had computed, so that every preemption is paid for by progress."""
    return computed_high + block_size


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable; owned and changed by the scheduler alone.

        tokens:   [ prompt ............ | generated ....... ]
        computed: [ KV in cache ................ ) next chunk

    rank: the class it is scheduled as: its own, or one for all where the policy ignores classes.
    number: order of arrival. admission_step: step of the first admission, -1 before; kept through
    preemption, so that a resumed sequence is as senior as it was.
    decoding: whether its next chunk is a decode row. `has_computed` and `sampled` keep it true.
    computed_high: most tokens ever computed; tokens computed below it are recomputed ones.
    protected_until: once resumed, growth of its own class may not take it while computed < this.
    held: waits for the first choice of its group to prefill their prompt.
    in_flight: a submitted plan computes it or copies its KV; it is left alone until the commit.
    wanted_by: a lane whose plan would have displaced it, had it not been in flight (leaving).
    most_tokens: of prompt and answer, as the request limits them.
    may_stop: whether there are tokens that end it before that.
    """

    request: Request
    number: int
    tokens: list[int]
    prefix: PrefixChain
    block_size: int
    rank: ServiceClass
    state: State = State.WAITING
    computed: int = 0
    decoding: bool = False
    computed_high: int = 0
    cached: int = 0
    recomputed: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    host_blocks: list[BlockId] = field(default_factory=list)
    seated: bool = False
    in_flight: bool = False
    wanted_by: Lane | None = None
    aborted: bool = False
    held: bool = False
    promoted: bool = False
    opened: bool = False
    admission_step: int = -1
    last_step: int = -1
    preemptions: int = 0
    protected_until: int = 0
    progress_s: float = 0.0
    id: RequestId = field(init=False)
    service_class: ServiceClass = field(init=False)
    limits: Limits = field(init=False)
    prompt_tokens: int = field(init=False)
    most_tokens: int = field(init=False)
    may_stop: bool = field(init=False)

    def __post_init__(self) -> None:
        """What every step asks for is taken out of the request once."""
        self.id = self.request.id
        self.service_class = self.request.service_class
        self.limits = self.request.limits
        self.prompt_tokens = len(self.request.prompt)
        self.most_tokens = self.prompt_tokens + self.limits.max_tokens
        self.may_stop = bool(self.limits.stop_ids)

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed; 1 while decoding."""
        return len(self.tokens) - self.computed

    def has_computed(self, tokens: int) -> None:
        """So many of its tokens have their KV in the cache now."""
        self.computed = tokens
        self.decoding = tokens == len(self.tokens) - 1 and tokens >= self.prompt_tokens

    def sampled(self, token: int) -> None:
        """All its tokens were computed, and gave the next one."""
        self.tokens.append(token)
        self.decoding = True

    def works_on(self, lane: Lane) -> bool:
        """Whether its next work is the lane's: decode rows on one, all else on the other."""
        return lane is Lane.UNIFIED or self.decoding is (lane is Lane.DECODE)

    @property
    def resuming(self) -> bool:
        """Whether it was preempted and has not come back yet."""
        return self.admission_step >= 0 and self.state in (State.WAITING, State.SWAPPED)

    @property
    def seniority(self) -> tuple[int, int, int, int]:
        """Sort key of the residents' total order, most senior first."""
        return seniority_key(self.rank, self.promoted, self.admission_step, self.number)
