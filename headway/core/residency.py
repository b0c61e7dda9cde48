"""Residency: who holds blocks and a seat. The first of the two decisions of a step.

Policy `tiered` is Eq. 1 class by class, realtime first, over fixed residents: within a class all
weights are equal, so most requests fit when the smallest go first, around the head of the line.
"""

from headway.core.headroom import Forecast, Relief
from headway.core.plan import BlockCopy
from headway.core.sequence import Sequence, blocks_for
from headway.core.types import PreemptKind, ServiceClass, State
from headway.core.victims import Cost, choose, preemption_cost, total_gain
from headway.core.world import World


class Residency:
    """Admission, growth and displacement of one plan. Lives for one plan.

    swap_out, swap_in: copies this plan has to make.
    moved: requests whose KV is being copied, by either way.
    """

    def __init__(self, world: World, now: float) -> None:
        """Nothing decided yet."""
        self._world = world
        self._now = now
        self.swap_out: list[BlockCopy] = []
        self.swap_in: list[BlockCopy] = []
        self.moved: list[Sequence] = []
        self.preempted: set[Sequence] = set()
        self._entered: set[Sequence] = set()
        self._spare: dict[ServiceClass, int] = {}

    # --- the reserve -------------------------------------------------------------------------

    def promote(self) -> None:
        """Promote the batch request that lacks progress longest, if the reserve has room, and let
        promoted requests take what is free before anyone else."""
        world = self._world
        if world.config.reserve.share > 0 and len(world.promoted) < world.config.reserve.seats:
            for sequence in sorted(self._longest_stuck(), key=lambda s: (s.progress_s, s.number)):
                if self._deserves(sequence) and self._reserve_takes(sequence):
                    world.promote(sequence)
        for sequence in self._waiting_promoted():
            self._try_enter(sequence)
        for sequence in world.promoted:
            if sequence.state is State.RUNNING and not sequence.seated:
                self._try_seat(sequence)

    def _longest_stuck(self) -> list[Sequence]:
        """Batch requests among which those without progress longest are: of the waiting ones only
        the oldest counts."""
        queue = self._world.queues[ServiceClass.BATCH]
        oldest = queue.oldest()
        return [
            *self._world.by_seniority(ServiceClass.BATCH),
            *queue.resumed(),
            *([oldest] if oldest else []),
        ]

    def _deserves(self, sequence: Sequence) -> bool:
        reserve = self._world.config.reserve
        if sequence.promoted:
            return False
        stuck_s = self._now - sequence.progress_s
        return stuck_s >= reserve.guard_s or sequence.preemptions >= reserve.preemptions

    def _reserve_takes(self, sequence: Sequence) -> bool:
        reserve, promoted = self._world.config.reserve, self._world.promoted
        if not promoted:
            return True
        blocks = sum(self._held_or_wanted(s) for s in [*promoted, sequence])
        room = int(reserve.share * self._world.capacity.kv_blocks)
        return len(promoted) < reserve.seats and blocks <= room

    def _held_or_wanted(self, sequence: Sequence) -> int:
        return len(sequence.blocks) or self._world.total_blocks(sequence)

    def _waiting_promoted(self) -> list[Sequence]:
        return [s for s in self._world.promoted if s.state is not State.RUNNING]

    def _reserved_blocks(self, but: Sequence) -> int:
        return sum(self._world.demand(s) for s in self._waiting_promoted() if s is not but)

    def _reserved_seats(self, but: Sequence) -> int:
        return sum(1 for s in self._world.promoted if not s.seated and s is not but)

    # --- growth ------------------------------------------------------------------------------

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give a resident the blocks to compute up to `tokens`; False if it has to pause.

        Takes free blocks and evictable prefix cache, then lower-class victims by cost, then the
        least senior of its own class. A resident that finds only its seniors keeps its blocks and
        waits: it is the first victim if they need them, and loses nothing if they do not.
        """
        world = self._world
        need = blocks_for(tokens, world.capacity.block_size) - len(sequence.blocks)
        if need <= 0:
            return True
        shortage = need - world.device.available
        if shortage > 0 and not self._take_for_growth(sequence, shortage):
            return False
        sequence.blocks += world.device.allocate(need)
        self._spare.clear()
        return True

    def grow_at_any_cost(self, sequence: Sequence, tokens: int) -> bool:
        """As `grow`, for the most senior resident when nobody at all could compute: it takes from
        whoever is least senior, promoted and just resumed ones included."""
        if self.grow(sequence, tokens):
            return True
        members = sorted(self._world.residents.values(), key=lambda s: s.seniority, reverse=True)
        for victim in members:
            if victim is not sequence and victim not in self._entered:
                self._preempt(victim)
                if self.grow(sequence, tokens):
                    return True
        return False

    def _take_for_growth(self, sequence: Sequence, shortage: int) -> bool:
        """Preempt others so that `shortage` more blocks come free; False, with nothing taken, if
        those it may take do not hold them."""
        lower = self._costs(self._displaceable(sequence.service_class))
        victims = choose({s: c.seconds for s, c in lower.items()}, shortage, self._world.device)
        if victims is None:
            victims = list(lower)
            for junior in self._juniors(sequence):
                victims.append(junior)
                if total_gain(victims, self._world.device) >= shortage:
                    break
            else:
                return False
        for victim in victims:
            self._preempt(victim)
        return True

    def _juniors(self, sequence: Sequence) -> list[Sequence]:
        """Residents of the same class that its growth may take, least senior first."""
        members = self._world.by_seniority(sequence.service_class)
        return [
            s
            for s in reversed(members)
            if s.seniority > sequence.seniority
            and not s.promoted
            and s.computed >= s.protected_until
            and s not in self._entered
        ]

    # --- admission ---------------------------------------------------------------------------

    def admit(self, service_class: ServiceClass) -> None:
        """Seats for residents without one, then resumed work, then fresh work of the class."""
        for sequence in self._world.by_seniority(service_class):
            if not sequence.seated and not self._try_seat(sequence):
                return
        blocked: Sequence | None = None
        for sequence in self._world.queues[service_class].resumed():
            if not self._try_enter(sequence):
                blocked = sequence
                break
        while self._admit_one_fresh(service_class, blocked):
            pass

    def _admit_one_fresh(self, service_class: ServiceClass, blocked: Sequence | None) -> bool:
        """Admit the head of the line, or what may pass it; False if nobody can be admitted."""
        queue = self._world.queues[service_class]
        head = queue.head()
        if head is None or not self._seat_obtainable(head):
            return False
        if blocked is None:
            if self._try_enter(head):
                return True
            if self._now - head.request.arrival_s >= self._world.config.pass_s:
                blocked = head
        gate = self._relief(blocked) if blocked else None
        for sequence in queue.candidates():
            if (gate is None or self._backfills(sequence, gate)) and self._try_enter(sequence):
                return True
        return False

    def _relief(self, blocked: Sequence) -> Relief:
        """When blocks for a request that has to wait will have come free."""
        world, service_class = self._world, blocked.service_class
        peers = [s for s in world.residents.values() if s.service_class <= service_class]
        free = world.device.available + self._spare_blocks(service_class)
        forecast = Forecast(peers, world.measured.lengths, world.capacity.block_size)
        return forecast.relief(world.demand(blocked) - free)

    def _backfills(self, sequence: Sequence, gate: Relief) -> bool:
        """Whether admitting a request does not delay the one that blocks accumulate for."""
        world = self._world
        steps = world.measured.lengths.remaining(sequence)
        total = blocks_for(len(sequence.tokens) + steps, world.capacity.block_size)
        return steps <= gate.steps or total <= gate.spare_blocks

    def _try_enter(self, sequence: Sequence) -> bool:
        """Admit or resume a request, displacing lower classes for blocks and a seat if need be."""
        world = self._world
        if not self._seat_obtainable(sequence) or sequence in self.preempted:
            return False
        spare = self._spare_blocks(sequence.service_class)
        free = world.device.available - self._reserved_blocks(sequence)
        if world.demand(sequence) + self._headroom(sequence, spare) > free + spare:
            return False
        while (shortage := world.demand(sequence) + self._reserved_blocks(sequence)) > (
            world.device.available
        ):
            costs = self._costs(self._displaceable(sequence.service_class))
            seconds = {s: c.seconds for s, c in costs.items()}
            victims = choose(seconds, shortage - world.device.available, world.device)
            if victims is None:
                return False
            for victim in victims:
                self._preempt(victim)
        if not self._take_seat(sequence):
            return False
        copies = world.enter(sequence, self._now)
        self._entered.add(sequence)
        self._spare.clear()
        if copies:
            self.swap_in += copies
            self.moved.append(sequence)
        return True

    def _headroom(self, sequence: Sequence, displaceable: int) -> int:
        """Blocks to leave for the growth of the same and higher classes; what lower classes hold
        serves it first. 0 for a promoted request, and where nobody of those classes runs."""
        if sequence.promoted:
            return 0
        growth = self.headroom_blocks(sequence.service_class)
        return max(growth - displaceable, 0)

    def headroom_blocks(self, service_class: ServiceClass) -> int:
        """Expected growth of the residents of a class and those above it, in blocks."""
        world = self._world
        peers = [s for s in world.residents.values() if s.service_class <= service_class]
        forecast = Forecast(peers, world.measured.lengths, world.capacity.block_size)
        return forecast.headroom_blocks()

    # --- seats -------------------------------------------------------------------------------

    def _try_seat(self, sequence: Sequence) -> bool:
        if not self._take_seat(sequence):
            return False
        sequence.seated = True
        return True

    def _seat_obtainable(self, sequence: Sequence) -> bool:
        return self._free_seats(sequence) > 0 or self._seat_victim(sequence) is not None

    def _take_seat(self, sequence: Sequence) -> bool:
        """Make sure a seat is free for the request; one displaced for it stays resident."""
        if self._free_seats(sequence) > 0:
            return True
        victim = self._seat_victim(sequence)
        if victim is None:
            return False
        victim.seated = False
        return True

    def _free_seats(self, sequence: Sequence) -> int:
        return self._world.seats_free - self._reserved_seats(sequence)

    def _seat_victim(self, sequence: Sequence) -> Sequence | None:
        """The least senior seated resident of the lowest class below the request's."""
        seated = [s for s in self._displaceable(sequence.service_class) if s.seated]
        return max(seated, key=lambda s: s.seniority, default=None)

    # --- victims -----------------------------------------------------------------------------

    def _displaceable(self, above: ServiceClass) -> list[Sequence]:
        """Residents of lower classes that may be displaced."""
        return [
            s
            for s in self._world.residents.values()
            if s.service_class > above and not s.promoted and s not in self._entered
        ]

    def _spare_blocks(self, above: ServiceClass) -> int:
        """Blocks that displacing all lower classes would free."""
        if above not in self._spare:
            self._spare[above] = total_gain(self._displaceable(above), self._world.device)
        return self._spare[above]

    def _costs(self, candidates: list[Sequence]) -> dict[Sequence, Cost]:
        world = self._world
        rates, model = world.measured.copy_rates, world.measured.step
        host_free = world.host.available
        return {s: preemption_cost(s, world.device, rates, model, host_free) for s in candidates}

    def _preempt(self, sequence: Sequence) -> None:
        """Swap or recompute, by cost as it is now (the host pool may have filled meanwhile)."""
        kind = self._costs([sequence])[sequence].kind
        copies = self._world.preempt(sequence, kind)
        self.preempted.add(sequence)
        self._spare.clear()
        if kind is PreemptKind.SWAP:
            self.swap_out += copies
            self.moved.append(sequence)
