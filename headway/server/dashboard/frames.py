"""What the page is sent: moments of the engine as JSON, each coded against the one before.

    hello   {"capacity": …, "model": …}                     once
    frame   {"t", "step", "full",                           several a second
             "blocks", "host": [[start, length, holder], …] what changed, all of it if "full"
             "sequences": [[id, class, place, tokens, computed, generated, blocks, preempted], …]
             "last": the last step, "counts", "tiers", "rate", "pool", "jobs",
             "firsts", "preemptions", "seconds": new ones}

Classes and places are numbers, in the order of `ServiceClass` and `Place`. Times are seconds;
"age" is how long ago something was.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby

from headway.core.picture import Picture, SequenceView
from headway.core.record import StepRecord
from headway.core.request import ClassCounts, Snapshot, TierCounts
from headway.core.types import ServiceClass
from headway.server.dashboard.recent import Cursor, News, Preemption, Recent, Second

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobLine:
    """A live Batch job."""

    id: str
    status: str
    total: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The engine at one time. number: counts up."""

    number: int
    when_s: float
    picture: Picture
    snapshot: Snapshot
    jobs: Sequence[JobLine] = ()


@dataclass(slots=True)
class Reader:
    """What one page has been sent so far."""

    recent: Recent
    _cursor: Cursor = field(default_factory=Cursor)
    _shown: Picture | None = None

    def frame(self, moment: Moment) -> Json:
        """The frame for a moment, and everything new up to it."""
        picture, shown = moment.picture, self._shown
        news = self.recent.news(self._cursor)
        self._cursor, self._shown = news.cursor, picture
        return {
            "t": round(moment.when_s, 3),
            "step": picture.step,
            "full": shown is None,
            "blocks": list(runs(picture.device, None if shown is None else shown.device)),
            "host": list(runs(picture.host, None if shown is None else shown.host)),
            "sequences": [_sequence(view) for view in picture.sequences],
            "last": _last_step(picture.last, news),
            **_totals(moment.snapshot),
            "jobs": [asdict(job) for job in moment.jobs],
            **_news(news, moment.when_s),
        }


def hello(picture: Picture, model: str) -> Json:
    """What doesn't change."""
    capacity = picture.capacity
    return {
        "model": model,
        "blocks": capacity.kv_blocks,
        "host_blocks": capacity.host_blocks,
        "block_size": capacity.block_size,
        "seats": capacity.max_seqs,
        "step_tokens": capacity.max_step_tokens,
        "model_len": capacity.max_model_len,
    }


def event(name: str, data: Json) -> bytes:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def runs(holders: Sequence[int], before: Sequence[int] | None) -> Iterator[tuple[int, int, int]]:
    """(start, length, holder) of the blocks whose holder changed, all where there is no before."""
    if before is None:
        changed = list(enumerate(holders))
    else:
        pairs = zip(holders, before, strict=True)
        changed = [(i, now) for i, (now, then) in enumerate(pairs) if now != then]
    # Neighbours in a run have the same distance between block and place in the list.
    keyed = enumerate(changed)
    for (_, holder), group in groupby(keyed, key=lambda e: (e[1][0] - e[0], e[1][1])):
        members = list(group)
        yield members[0][1][0], len(members), holder


def _last_step(record: StepRecord | None, news: News) -> Json | None:
    if record is None:
        return None
    limit_s = record.limit_s
    return {
        "step": record.step,
        "lane": record.lane.name.lower(),
        "limit": None if limit_s == float("inf") else round(limit_s, 5),
        "seconds": round(news.step_s, 5),
        "predicted": round(news.predicted_s, 5),
        "computed": [(c.request, c.tokens, c.decoding) for c in record.computed],
    }


def _totals(snapshot: Snapshot) -> Json:
    counts = [_places(snapshot.classes.get(c, ClassCounts())) for c in ServiceClass]
    rate = snapshot.throughput
    return {
        "counts": counts,
        "tiers": {"device": _tier(snapshot.device), "host": _tier(snapshot.host)},
        "rate": {
            "achieved": round(rate.achieved, 1),
            "bound": round(rate.bound, 1),
            "ratio": round(rate.ratio, 4),
        },
        "pool": {
            "headroom": snapshot.headroom_blocks,
            "promoted": snapshot.promoted,
            "split": snapshot.arrangement.split,
        },
    }


def _places(counts: ClassCounts) -> tuple[int, ...]:
    """In the order of `Place`."""
    return counts.waiting, counts.running, counts.paused, counts.swapped


def _sequence(view: SequenceView) -> tuple[int, ...]:
    # By hand: `dataclasses.astuple` takes ten times as long.
    return (
        view.request,
        view.service_class,
        view.place,
        view.length,
        view.computed,
        view.generated,
        view.blocks,
        view.preemptions,
    )


def _tier(counts: TierCounts) -> Json:
    return asdict(counts)


def _news(news: News, now_s: float) -> Json:
    return {
        "firsts": [
            (round(now_s - f.when_s, 3), f.service_class, round(f.ttft_s, 5)) for f in news.firsts
        ],
        "preemptions": [_preemption(p, now_s) for p in news.preemptions],
        "seconds": [_second(s, now_s) for s in news.seconds],
    }


def _preemption(preemption: Preemption, now_s: float) -> Json:
    return {
        "number": preemption.number,
        "age": round(now_s - preemption.when_s, 3),
        "kind": preemption.kind,
        "request": preemption.request,
        "class": preemption.service_class,
        "for": preemption.wanted_by,
        "for_class": preemption.wanted_by_class,
        "blocks": preemption.blocks,
    }


def _second(second: Second, now_s: float) -> Json:
    return {
        "age": round(now_s - second.when_s, 3),
        "classes": [
            (c.tokens, round(c.itl_p50_s, 5), round(c.itl_p95_s, 5), c.pauses)
            for c in (second.classes[service_class] for service_class in ServiceClass)
        ],
    }
