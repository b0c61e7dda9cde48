"""The pass before each of vLLM's steps: whom to preempt, whom to pause, whom to admit first.

The rules are those of Headway's own scheduler: growth in order of seniority, then admission class
by class, victims of lower classes by cost per block whose last reference they hold. vLLM's loop
then finds that everything fits, so that its own choice of victims is left without work.
"""

from collections.abc import Callable, Iterable, Sequence

from headway.core.selection import Item, select
from headway.core.types import BlockId, ServiceClass
from headway.core.victims import References, choose, total_gain
from headway_vllm.members import Candidate, Decision, Picture, Resident


class _Left:
    """References as they are once those who were taken have let go of their blocks."""

    def __init__(self, pool: References) -> None:
        self._pool = pool
        self._dropped: dict[BlockId, int] = {}

    @property
    def shared(self) -> int:
        return self._pool.shared

    def references(self, block: BlockId) -> int:
        return self._pool.references(block) - self._dropped.get(block, 0)

    def drop(self, resident: Resident) -> None:
        if self._pool.shared:
            for block in resident.blocks:
                self._dropped[block] = self._dropped.get(block, 0) + 1


class Planner:
    """Decides one step; changes nothing."""

    def __init__(
        self,
        picture: Picture,
        pool: References,
        cost: Callable[[Resident], float],
        pass_s: float,
    ) -> None:
        """cost: seconds that giving up a resident's blocks costs, by the cheaper way.
        pass_s: a head of the line that waited so long is not passed any more."""
        self._picture = picture
        self._pool = _Left(pool)
        self._cost = cost
        self._pass_s = pass_s
        self._seniors = sorted(picture.residents, key=lambda r: r.member.seniority)
        self._free = picture.free_blocks
        self._seats = picture.seats
        self._taken: dict[Resident, None] = {}
        self._paused: dict[Resident, None] = {}
        self._grown: dict[Resident, int] = {}
        self._entering: list[Candidate] = []

    def decide(self) -> Decision:
        """Growth, admission, then step tokens for those admitted."""
        for resident in self._seniors:
            if resident not in self._taken:
                self._grow(resident)
        self._keep_going()
        self._admit()
        self._yield_tokens()
        return Decision(tuple(self._taken), tuple(self._paused), tuple(self._entering))

    # --- growth ------------------------------------------------------------------------------

    def _grow(self, resident: Resident) -> None:
        """Free blocks, then lower classes by cost, then juniors of the same class; one that finds
        only its seniors keeps its blocks and pauses."""
        shortage = resident.growth_blocks - self._free
        if shortage > 0 and resident.growth_blocks:
            victims = self._for_growth(resident, shortage)
            if victims is None:
                self._paused[resident] = None
                return
            self._take(victims)
        self._free -= resident.growth_blocks
        self._grown[resident] = resident.growth_blocks

    def _for_growth(self, resident: Resident, shortage: int) -> list[Resident] | None:
        lower = self._displaceable(resident.rank)
        victims = self._cheapest(lower, shortage)
        if victims is not None:
            return victims
        victims = list(lower)
        for junior in self._juniors(resident):
            victims.append(junior)
            if total_gain(victims, self._pool) >= shortage:
                return victims
        return None

    def _juniors(self, resident: Resident) -> list[Resident]:
        """Residents of the same class that its growth may take, least senior first: not those who
        have only just come back."""
        return [
            r
            for r in reversed(self._seniors)
            if r.rank is resident.rank
            and r.member.seniority > resident.member.seniority
            and r.computed >= r.member.protected_until
            and self._may_leave(r)
        ]

    def _keep_going(self) -> None:
        """Where nobody at all could compute, the most senior takes from whoever is least senior,
        promoted and just resumed ones included, so that every step makes progress."""
        staying = [r for r in self._seniors if r not in self._taken]
        if not staying or any(r not in self._paused for r in staying):
            return
        senior = staying[0]
        for victim in reversed(staying[1:]):
            if senior.growth_blocks <= self._free:
                break
            if victim.freeable:
                self._take([victim])
        if senior.growth_blocks <= self._free:
            del self._paused[senior]
            self._free -= senior.growth_blocks
            self._grown[senior] = senior.growth_blocks

    # --- entering ----------------------------------------------------------------------------

    def _admit(self) -> None:
        """Promoted requests first, then class by class; behind a head that can't enter others of
        its line may pass, unless it has waited too long."""
        for candidate in self._promoted():
            if not self._enter(candidate):
                # What comes free is its: the others have to find their blocks and seat beside it.
                self._free -= candidate.need_blocks
                self._seats -= 1
        for rank in ServiceClass:
            line = [c for c in self._picture.waiting.get(rank, ()) if not c.member.promoted]
            for place, candidate in enumerate(line):
                if self._tokens_left(rank) <= 0:
                    return
                if self._enter(candidate):
                    continue
                if self._picture.now_s - candidate.member.arrival_s >= self._pass_s:
                    return
                self._pack(line[place + 1 :])
                break

    def _promoted(self) -> list[Candidate]:
        lines = self._picture.waiting.values()
        return [c for line in lines for c in line if c.member.promoted]

    def _enter(self, candidate: Candidate) -> bool:
        """Admit a request, displacing lower classes for blocks and a seat if need be."""
        victims = self._for_entering(candidate)
        if victims is None:
            return False
        self._take(victims)
        self._free -= candidate.need_blocks
        self._seats -= 1
        self._entering.append(candidate)
        return True

    def _for_entering(self, candidate: Candidate) -> list[Resident] | None:
        lower = self._displaceable(candidate.member.service_class)
        victims = self._cheapest(lower, candidate.need_blocks - self._free)
        if victims is None:
            return None
        while max(self._seats, 0) + len(victims) < 1:
            seated = [r for r in lower if r not in victims]
            if not seated:
                return None
            lowest = max(r.rank for r in seated)
            last = [r for r in seated if r.rank is lowest]
            victims.append(min(last, key=lambda r: (self._cost(r), -r.number)))
        return victims

    def _pack(self, line: Sequence[Candidate]) -> None:
        """Eq. 1 over those behind a head that does not fit: into what is free, displacing none."""
        if not line or self._free <= 0 or self._seats <= 0:
            return
        items = [Item(c.member.service_class.weight, max(c.need_blocks, 1)) for c in line]
        for index in select(items, self._free, self._seats).chosen:
            self._enter(line[index])

    # --- step tokens -------------------------------------------------------------------------

    def _tokens_left(self, rank: ServiceClass) -> int:
        """Tokens of the step that a class can have: prompts of lower classes stand back."""
        used = sum(
            r.tokens if r.rank <= rank or r.member.promoted else min(r.tokens, 1)
            for r in self._computing()
        )
        return self._picture.step_tokens - used - sum(c.tokens for c in self._entering)

    def _yield_tokens(self) -> None:
        """Pause prompts of lower classes whose tokens those entering need in this step."""
        if not self._entering:
            return
        top = min(c.member.service_class for c in self._entering)
        wanted = sum(r.tokens for r in self._computing()) + sum(c.tokens for c in self._entering)
        over = wanted - self._picture.step_tokens
        for resident in reversed(self._seniors):
            prompt = resident.tokens > 1 and not resident.member.promoted
            if over > 0 and prompt and resident.rank > top and self._computes(resident):
                self._paused[resident] = None
                over -= resident.tokens

    def _computing(self) -> list[Resident]:
        return [r for r in self._seniors if self._computes(r)]

    def _computes(self, resident: Resident) -> bool:
        return resident not in self._taken and resident not in self._paused

    # --- victims -----------------------------------------------------------------------------

    def _may_leave(self, resident: Resident) -> bool:
        return resident.freeable and not resident.member.promoted and resident not in self._taken

    def _displaceable(self, above: ServiceClass) -> list[Resident]:
        return [r for r in self._seniors if r.rank > above and self._may_leave(r)]

    def _cheapest(self, among: Sequence[Resident], shortage: int) -> list[Resident] | None:
        """Victims that cover a shortage, nobody where there is none; None if all do not."""
        if shortage <= 0:
            return []
        return choose({r: self._cost(r) for r in among}, shortage, self._pool)

    def _take(self, victims: Iterable[Resident]) -> None:
        for victim in victims:
            self._free += total_gain([victim], self._pool) + self._grown.pop(victim, 0)
            self._pool.drop(victim)
            self._seats += 1
            self._taken[victim] = None
            self._paused.pop(victim, None)
