"""The residents: who runs, in which order, and who of them has a seat.

The order and the counts are kept as residents come and go, never worked out anew in a step.
"""

from bisect import insort

from headway.core.sequence import Sequence, blocks_for
from headway.core.types import Lane, RequestId, ServiceClass


class Roster:
    """Running requests by rank and seniority.

    members: all of them, in the order they entered.
    """

    def __init__(self) -> None:
        """Nobody yet."""
        self.members: dict[RequestId, Sequence] = {}
        self.seats_taken = 0
        self._order: dict[ServiceClass, list[Sequence]] = {c: [] for c in ServiceClass}
        self._ranked: dict[ServiceClass, tuple[Sequence, ...]] = dict.fromkeys(ServiceClass, ())
        self._versions = dict.fromkeys(ServiceClass, 0)
        self._most_tokens = dict.fromkeys(ServiceClass, 0)
        self._leaving: list[Sequence] = []

    @property
    def all_seated(self) -> bool:
        """Whether every resident has a seat."""
        return self.seats_taken == len(self.members)

    def of(self, rank: ServiceClass) -> tuple[Sequence, ...]:
        """Residents of a rank, most senior first."""
        return self._ranked[rank]

    def version(self, rank: ServiceClass) -> int:
        """Another number whenever the rank's residents, their order, or who of them may compute
        has changed."""
        return self._versions[rank]

    def below(self, rank: ServiceClass) -> bool:
        """Whether there are residents of lower classes."""
        return any(self._ranked[lower] for lower in ServiceClass if lower > rank)

    def up_to(self, rank: ServiceClass) -> list[Sequence]:
        """Residents of a class and those above, in the order they entered."""
        return [s for s in self.members.values() if s.rank <= rank]

    def most_growth_blocks(self, rank: ServiceClass, block_size: int) -> int:
        """More than the residents of a class and those above can grow by, however long their
        answers: no forecast of `core.headroom` says more."""
        ranks = [r for r in ServiceClass if r <= rank]
        tokens = sum(self._most_tokens[r] for r in ranks)
        held = sum(sum([len(s.blocks) for s in self._ranked[r]]) for r in ranks)
        members = sum(len(self._ranked[r]) for r in ranks)
        return blocks_for(tokens, block_size) + members // 2 - held

    def add(self, sequence: Sequence) -> None:
        """Take in a request that has just been admitted or has come back; it takes a seat."""
        self.members[sequence.id] = sequence
        self._most_tokens[sequence.rank] += sequence.most_tokens
        insort(self._order[sequence.rank], sequence, key=_seniority)
        self._changed(sequence.rank)
        self.seat(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Let a resident go, its seat, and whoever wanted it."""
        sequence.wanted_by = None
        if sequence.seated:
            self.unseat(sequence)
        del self.members[sequence.id]
        self._most_tokens[sequence.rank] -= sequence.most_tokens
        self._order[sequence.rank].remove(sequence)
        self._changed(sequence.rank)

    def promote(self, sequence: Sequence) -> None:
        """Mark a request as promoted: it becomes senior to the others of its rank."""
        resident = sequence.id in self.members
        if resident:
            self._order[sequence.rank].remove(sequence)
        sequence.promoted = True
        if resident:
            insort(self._order[sequence.rank], sequence, key=_seniority)
            self._changed(sequence.rank)

    def seat(self, sequence: Sequence) -> None:
        """Give a resident a seat."""
        sequence.seated = True
        self.seats_taken += 1
        self._versions[sequence.rank] += 1

    def unseat(self, sequence: Sequence) -> None:
        """Take a resident's seat; it keeps its blocks."""
        sequence.seated = False
        self.seats_taken -= 1
        self._versions[sequence.rank] += 1

    def want(self, sequence: Sequence, lane: Lane) -> None:
        """Mark a resident in flight as leaving: the lane's next plan would displace it."""
        sequence.wanted_by = lane
        self._leaving.append(sequence)
        self._versions[sequence.rank] += 1

    def forget_wanted(self, lane: Lane) -> None:
        """What the lane wanted last time counts no more; on the unified lane, what any did."""
        for sequence in self._leaving:
            if sequence.wanted_by is lane or lane is Lane.UNIFIED:
                sequence.wanted_by = None
                self._versions[sequence.rank] += 1
        self._leaving = [s for s in self._leaving if s.wanted_by is not None]

    def check(self) -> None:
        """Raise RuntimeError unless order and counts are what they would be if worked out anew. For
        tests and debug runs."""
        members = self.members.values()
        for rank in ServiceClass:
            peers = [s for s in members if s.rank is rank]
            if list(self._ranked[rank]) != sorted(peers, key=_seniority):
                raise RuntimeError(f"{rank.label} residents are out of order")
            if self._most_tokens[rank] != sum(s.most_tokens for s in peers):
                raise RuntimeError(f"{rank.label} residents' most tokens are miscounted")
        if self.seats_taken != sum(s.seated for s in members):
            raise RuntimeError("seats are miscounted")

    def _changed(self, rank: ServiceClass) -> None:
        self._ranked[rank] = tuple(self._order[rank])
        self._versions[rank] += 1


def _seniority(sequence: Sequence) -> tuple[int, int, int, int]:
    return sequence.seniority
