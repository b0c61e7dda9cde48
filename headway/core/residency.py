"""Residency: how requests come to hold blocks and a seat, and lose them again.

Who may enter in which order is the policy's affair (`core.admission`); here is what it costs the
others: whom growth and admission displace, and what is reserved.
"""

from collections import Counter
from collections.abc import Collection
from math import ceil

from headway.core.headroom import Forecast
from headway.core.plan import BlockCopy
from headway.core.record import Evicted, Notes
from headway.core.sequence import Sequence, blocks_for
from headway.core.types import Lane, PreemptKind, ServiceClass, State
from headway.core.victims import Cost, choose, preemption_cost, total_gain
from headway.core.world import World


class Residency:
    """Entering, growth and displacement of one plan. Lives for one plan.

    swap_out, swap_in: copies this plan has to make.
    moved: requests whose KV is being copied, by either way.
    entered: requests admitted or resumed. Their blocks may still be read by this plan's copies, so
        they count as in flight even if they have no chunk in it.
    """

    def __init__(self, world: World, lane: Lane, now: float) -> None:
        """Nothing decided yet; what the lane wanted last time is forgotten."""
        self.lane = lane
        self._world = world
        self._now = now
        self.swap_out: list[BlockCopy] = []
        self.swap_in: list[BlockCopy] = []
        self.moved: list[Sequence] = []
        self.preempted: dict[Sequence, None] = {}
        self.entered: dict[Sequence, None] = {}
        self.notes = Notes()
        self._spare: dict[ServiceClass, int] = {}
        self._forecasts: dict[ServiceClass, Forecast] = {}
        world.roster.forget_wanted(lane)

    # --- the reserve -------------------------------------------------------------------------

    def waiting_promoted(self) -> list[Sequence]:
        """Promoted requests that hold nothing yet: what comes free goes to them first."""
        promoted = self._world.promoted
        return [s for s in promoted if s.state is not State.RUNNING] if promoted else promoted

    def _claims(self, sequence: Sequence, leaving: Collection[Sequence] = ()) -> int:
        """Blocks that the request and the promoted ones ahead of it would take once those `leaving`
        have left: prefix hits that nobody else holds have to be taken too then."""
        if not leaving and not self._world.promoted:
            return self._world.demand(sequence, self.lane)
        dropped = Counter(b for s in leaving for b in s.blocks)
        ahead = [s for s in self.waiting_promoted() if s is not sequence]
        return sum(self._world.demand(s, self.lane, dropped) for s in (sequence, *ahead))

    def _reserved_seats(self, sequence: Sequence) -> int:
        """Seats kept from the request for promoted ones. One that still lacks blocks keeps none
        from a resident: those blocks may be the resident's, and only a seat lets it finish."""
        seatless = [s for s in self._world.promoted if not s.seated and s is not sequence]
        if seatless and sequence.state is State.RUNNING:
            free = self._world.device.available(self.lane)
            seatless = [
                s
                for s in seatless
                if s.state is State.RUNNING or self._world.demand(s, self.lane) <= free
            ]
        return len(seatless)

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
        shortage = need - world.device.available(self.lane)
        if shortage > 0 and not self._take_for_growth(sequence, shortage):
            return False
        sequence.blocks += world.device.allocate(need, self.lane)
        self._changed()
        return True

    def grow_at_any_cost(self, sequence: Sequence, tokens: int) -> bool:
        """As `grow`, for the most senior resident when nobody at all could compute: it takes from
        whoever is least senior, promoted and just resumed ones included."""
        if self.grow(sequence, tokens):
            return True
        members = sorted(self._world.residents.values(), key=lambda s: s.seniority, reverse=True)
        for victim in members:
            if victim is not sequence and not victim.in_flight and victim not in self.entered:
                self.preempt(victim, sequence)
                if self.grow(sequence, tokens):
                    return True
        return False

    def _take_for_growth(self, sequence: Sequence, shortage: int) -> bool:
        """Preempt others so that `shortage` more blocks come free; False, with nothing taken, if
        those it may take do not hold them."""
        lower = self._costs(self._displaceable(sequence.rank))
        victims = choose({s: c.seconds for s, c in lower.items()}, shortage, self._world.device)
        if victims is None:
            victims = list(lower)
            for junior in self._juniors(sequence):
                victims.append(junior)
                if total_gain(victims, self._world.device) >= shortage:
                    break
            else:
                self._want(sequence, shortage)
                self.notes.paused(sequence, "found no block to grow into but its seniors'")
                return False
            self._world.measured.caution.on_growth_preemption()
        for victim in victims:
            self.preempt(victim, sequence)
        return True

    def _juniors(self, sequence: Sequence) -> list[Sequence]:
        """Residents of the same class that its growth may take, least senior first."""
        members = self._world.by_seniority(sequence.rank)
        return [
            s
            for s in reversed(members)
            if s.seniority > sequence.seniority
            and not s.promoted
            and s.computed >= s.protected_until
            and not s.in_flight
            and s not in self.entered
        ]

    # --- entering ----------------------------------------------------------------------------

    def try_enter(self, sequence: Sequence) -> bool:
        """Admit or resume a request, displacing lower classes for blocks and a seat if need be."""
        if not self.may_enter(sequence):
            return False
        if not self.seat_obtainable(sequence):
            self.notes.passed(sequence, "no seat")
            return False
        victims = self._victims_for(sequence)
        if victims is None:
            return False
        self._take_seat(sequence)  # before a victim's own seat comes free for somebody else
        for victim in victims:
            self.preempt(victim, sequence)
        self._enter(sequence)
        return True

    def _victims_for(self, sequence: Sequence) -> list[Sequence] | None:
        """Whom to displace for the blocks a request needs, nobody if they are free; None, with the
        reason noted, if those it may displace do not hold them."""
        shortage = self._claims(sequence) - self._world.device.available(self.lane)
        if shortage <= 0 and self._has_room_to_grow(sequence, -shortage):
            return []
        spare = self.spare_blocks(sequence.rank)
        growth = self._headroom(sequence, spare) if shortage <= spare else 0
        victims = self._cheapest(sequence, shortage) if shortage + growth <= spare else None
        if victims is None:
            need = self._world.demand(sequence, self.lane)
            have = f"{need - shortage} blocks free, {spare} displaceable, {growth} kept for growth"
            self.notes.passed(sequence, f"needs {need} blocks: {have}")
            self._want(sequence, shortage)
        return victims

    def _cheapest(self, sequence: Sequence, shortage: int) -> list[Sequence] | None:
        """Victims of lower classes that cover a shortage, and what their leaving adds to it."""
        if shortage <= 0:
            return []
        device = self._world.device
        costs = self._costs(self._displaceable(sequence.rank))
        while victims := choose({s: c.seconds for s, c in costs.items()}, shortage, device):
            shortage = self._claims(sequence, victims) - device.available(self.lane)
            if total_gain(victims, device) >= shortage:
                break
        return victims

    def may_enter(self, sequence: Sequence) -> bool:
        """Whether this plan may bring a request in: its next work is this lane's, it has not just
        been displaced, and no copy of its KV is under way."""
        return (
            sequence.works_on(self.lane)
            and not sequence.in_flight
            and sequence not in self.preempted
        )

    def enter_if_free(self, sequence: Sequence) -> bool:
        """Admit or resume a request if it fits beside everyone who is there."""
        world = self._world
        need, free = world.demand(sequence, self.lane), world.device.available(self.lane)
        if need > free or world.seats_free < 1:
            seats = world.seats_free
            self.notes.passed(sequence, f"needs {need} blocks: {free} blocks, {seats} seats free")
            return False
        if not self.may_enter(sequence):
            return False
        self._enter(sequence)
        return True

    def _enter(self, sequence: Sequence) -> None:
        copies = self._world.enter(sequence, self.lane, self._now)
        self.entered[sequence] = None
        self._spare.clear()
        for rank, forecast in self._forecasts.items():
            if sequence.rank <= rank:
                forecast.add(sequence)
        if copies:
            self.swap_in += copies
            self.moved.append(sequence)

    def _headroom(self, sequence: Sequence, displaceable: int) -> int:
        """Blocks to leave for the growth of the same and higher classes; what lower classes hold
        serves it first. 0 for a promoted request, and where nobody of those classes runs."""
        if sequence.promoted:
            return 0
        growth = self.headroom_blocks(sequence.rank)
        return max(growth - displaceable, 0)

    def _has_room_to_grow(self, sequence: Sequence, left_blocks: int) -> bool:
        """Whether so many blocks left are enough for the others' growth without any more. The
        forecast takes long, and most of the time need not be asked."""
        world = self._world
        if sequence.rank not in self._forecasts:
            most = world.roster.most_growth_blocks(sequence.rank, world.capacity.block_size)
            if ceil(most * world.measured.caution.share) <= left_blocks:
                return True
        return self._headroom(sequence, 0) <= left_blocks

    def room(self, rank: ServiceClass) -> int:
        """Most blocks that a fresh request of the rank may need and still enter, if it isn't
        promoted."""
        world, spare = self._world, self.spare_blocks(rank)
        growth = max(self.headroom_blocks(rank) - spare, 0)
        reserved = sum(world.demand(s, self.lane) for s in self.waiting_promoted())
        return world.device.available(self.lane) + spare - growth - reserved

    def headroom_blocks(self, rank: ServiceClass) -> int:
        """Blocks to leave for the expected growth of the residents of a class and those above."""
        share = self._world.measured.caution.share
        return ceil(self.forecast(rank).headroom_blocks() * share)

    def forecast(self, rank: ServiceClass) -> Forecast:
        """What is expected of the residents of a class and those above."""
        forecast = self._forecasts.get(rank)
        if forecast is None:
            world = self._world
            peers = world.roster.up_to(rank)
            forecast = Forecast(peers, world.measured.lengths, world.capacity.block_size)
            self._forecasts[rank] = forecast
        return forecast

    # --- seats -------------------------------------------------------------------------------

    def try_seat(self, sequence: Sequence) -> bool:
        """Seat a resident that gave up its seat."""
        if not self._take_seat(sequence):
            return False
        self._world.roster.seat(sequence)
        return True

    def seat_obtainable(self, sequence: Sequence) -> bool:
        """Whether a seat is free for the request, or one of a lower class can be taken."""
        return self._free_seats(sequence) > 0 or self._seat_victim(sequence) is not None

    def _take_seat(self, sequence: Sequence) -> bool:
        """Make sure a seat is free for the request; one displaced for it stays resident."""
        if self._free_seats(sequence) > 0:
            return True
        victim = self._seat_victim(sequence)
        if victim is None:
            return False
        self._world.roster.unseat(victim)
        return True

    def _free_seats(self, sequence: Sequence) -> int:
        return self._world.seats_free - self._reserved_seats(sequence)

    def _seat_victim(self, sequence: Sequence) -> Sequence | None:
        """The least senior seated resident of the lowest class below the request's; one in flight
        ends its step and has no seat after that."""
        lower = (r for r in reversed(ServiceClass) if r > sequence.rank)
        juniors = (s for r in lower for s in reversed(self._world.by_seniority(r)))
        may_go = (s for s in juniors if s.seated and not s.promoted and s not in self.entered)
        return next(may_go, None)

    # --- victims -----------------------------------------------------------------------------

    def _displaceable(self, above: ServiceClass) -> list[Sequence]:
        """Residents of lower classes that may be displaced."""
        if not self._world.roster.below(above):
            return []
        return [
            s
            for s in self._world.residents.values()
            if s.rank > above and not s.promoted and not s.in_flight and s not in self.entered
        ]

    def _want(self, sequence: Sequence, shortage: int) -> None:
        """Mark lower-class residents in flight on another lane that would be displaced now: they
        are not planned again, so that the next plan here can take them."""
        if self.lane is Lane.UNIFIED or not self._world.roster.below(sequence.rank):
            return
        lower = [
            s
            for s in self._world.residents.values()
            if s.rank > sequence.rank and not s.promoted and s not in self.entered
        ]
        if not any(s.in_flight for s in lower):
            return
        costs = {s: c.seconds for s, c in self._costs(lower).items()}
        for victim in choose(costs, shortage, self._world.device) or []:
            if victim.in_flight:
                self._world.roster.want(victim, self.lane)

    def spare_blocks(self, above: ServiceClass) -> int:
        """Blocks that displacing all lower classes would free."""
        if above not in self._spare:
            self._spare[above] = total_gain(self._displaceable(above), self._world.device)
        return self._spare[above]

    def _costs(self, candidates: list[Sequence]) -> dict[Sequence, Cost]:
        world = self._world
        prefill_lane = Lane.UNIFIED if self.lane is Lane.UNIFIED else Lane.PREFILL
        rates, model = world.measured.copy_rates, world.step_model(prefill_lane)
        host_free = world.host.available(self.lane)
        return {s: preemption_cost(s, world.device, rates, model, host_free) for s in candidates}

    def _changed(self) -> None:
        """Blocks changed hands: what was worked out from who holds them is out of date."""
        self._spare.clear()
        self._forecasts.clear()

    def preempt(self, sequence: Sequence, wanted_by: Sequence) -> None:
        """Swap or recompute, by cost as it is now (the host pool may have filled meanwhile)."""
        cost, blocks = self._costs([sequence])[sequence], len(sequence.blocks)
        evicted = Evicted(sequence.id, wanted_by.id, cost.kind, cost.seconds, blocks)
        self.notes.evicted.append(evicted)
        copies = self._world.preempt(sequence, cost.kind, self.lane)
        self.preempted[sequence] = None
        self._changed()
        if cost.kind is PreemptKind.SWAP:
            self.swap_out += copies
            self.moved.append(sequence)
