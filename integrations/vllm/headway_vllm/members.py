"""What the policy remembers of each request, and how a step sees it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.sequence import protected_until, seniority_key
from headway.core.types import BlockId, ServiceClass


@dataclass(slots=True, eq=False)
class Member:
    """One live request's history; owned by the ledger.

    number: order of arrival. admission_step: step of the first admission, -1 before.
    progress_s: when it last had tokens computed, or arrived, on the scheduler's clock.
    computed_high: most tokens ever computed.
    protected_until: once resumed, growth of its own class may not take it while it has computed
        fewer tokens.
    """

    service_class: ServiceClass
    number: int
    arrival_s: float
    progress_s: float
    admission_step: int = -1
    preemptions: int = 0
    promoted: bool = False
    computed_high: int = 0
    protected_until: int = 0

    @property
    def resuming(self) -> bool:
        """Whether it ran before; asked of waiting requests."""
        return self.admission_step >= 0

    @property
    def seniority(self) -> tuple[int, int, int, int]:
        """Sort key of running requests, most senior first."""
        return seniority_key(self.service_class, self.promoted, self.admission_step, self.number)

    @property
    def turn(self) -> tuple[bool, int, int, int, int]:
        """Sort key of who gets a step's tokens: promoted ones, which realtime's prompts would else
        keep waiting, then by seniority."""
        return (not self.promoted, *self.seniority)

    @property
    def place(self) -> tuple[bool, bool, int, int]:
        """Sort key of waiting requests of its class: promoted, resumed, then by arrival."""
        return (not self.promoted, not self.resuming, self.admission_step, self.number)

    def enters(self, step: int, block_size: int) -> None:
        """It was given blocks and a seat."""
        if self.resuming:
            self.protected_until = protected_until(self.computed_high, block_size)
        else:
            self.admission_step = step

    def leaves(self, computed: int) -> None:
        """It was preempted with `computed` tokens in cache."""
        self.preemptions += 1
        self.computed_high = max(self.computed_high, computed)


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """A running request in one step.

    growth_blocks: blocks its next tokens need beyond those it holds. tokens: how many those are.
    computed: tokens in cache. freeable: whether its blocks would come free at once; they do not
        while a step in flight may write them.
    hold: its blocks, looked up only for those who may be victims.
    """

    member: Member
    growth_blocks: int
    tokens: int
    computed: int
    freeable: bool
    hold: Callable[[], Sequence[BlockId]]

    @property
    def rank(self) -> ServiceClass:
        """Its class."""
        return self.member.service_class

    @property
    def number(self) -> int:
        """Order of arrival."""
        return self.member.number

    @property
    def blocks(self) -> Sequence[BlockId]:
        """The blocks it holds."""
        return self.hold()


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A waiting request in one step. need_blocks: blocks that entering takes from those free.
    tokens: what it would compute at first."""

    member: Member
    need_blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What a step begins with. waiting: by class, in the order of their line.
    step_tokens: most tokens of a step. seats: free ones."""

    residents: Sequence[Resident]
    waiting: Mapping[ServiceClass, Sequence[Candidate]]
    free_blocks: int
    seats: int
    step_tokens: int
    now_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do before vLLM's own step. victims: to be preempted. paused: keep everything and
    compute nothing in this step. entering: the order to admit waiting requests in."""

    victims: tuple[Resident, ...] = ()
    paused: tuple[Resident, ...] = ()
    entering: tuple[Candidate, ...] = field(default=())
