"""What is sent to a server and when: open-loop arrivals and closed-loop floods, by class.

Everything is drawn from a seed before the first request goes out, so that two servers get the same
load, and a slow one delays nothing that is sent to it.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway.simulate.synthetic import Quantiles
from headway.simulate.traces import Trace
from headway.simulate.workload import Mix

_CLASSES = {c.label: c for c in ServiceClass}
_KEYS = ("rate", "cv", "streams", "prompt", "answer", "shared")
_MOST_ARRIVALS = 10_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """One request's lengths, in tokens. shared: of the prompt, the same for all of its class."""

    prompt_tokens: int
    answer_tokens: int
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is sent at a time of its own, whatever became of those before it.

    at_s: from the beginning of the load.
    """

    at_s: float
    service_class: ServiceClass
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Flood:
    """Closed loop: so many streams, each of which sends its next request when the last has ended.

    lengths: of its requests.
    """

    service_class: ServiceClass
    streams: int
    lengths: "Lengths"

    def requests(self, stream: int, seed: int) -> Iterator[Sizes]:
        """Without end."""
        for index in count():
            yield self.lengths.sizes(random.Random(f"flood {seed} {stream} {index}"))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distributions of the lengths of requests."""

    prompt: Quantiles
    answer: Quantiles
    shared_tokens: int = 0

    def sizes(self, draw: random.Random) -> Sizes:
        """One request's."""
        prompt = self.prompt.tokens(draw.random())
        answer = self.answer.tokens(draw.random())
        return Sizes(prompt, answer, min(self.shared_tokens, prompt - 1))


@dataclass(frozen=True, slots=True)
class Traffic:
    """A whole load: arrivals in order, and floods."""

    arrivals: Sequence[Arrival]
    floods: Sequence[Flood]


@dataclass(frozen=True, slots=True)
class Stream:
    """One class's traffic as written on a command line.

    rate: requests a second, 0 for a flood of `streams`. cv: of the gaps between arrivals; 1 is
        Poisson.
    """

    service_class: ServiceClass
    rate: float
    cv: float
    streams: int
    lengths: Lengths

    def arrivals(self, seconds: float, seed: int) -> Iterator[Arrival]:
        """Those within a time."""
        draw = random.Random(f"arrivals {seed} {self.service_class}")
        if not self.rate:
            return
        gap = (1 / self.cv**2, self.cv**2 / self.rate)
        at_s = draw.gammavariate(*gap)
        while at_s < seconds:
            yield Arrival(at_s, self.service_class, self.lengths.sizes(draw))
            at_s += draw.gammavariate(*gap)


def from_streams(streams: Sequence[Stream], seconds: float, seed: int) -> Traffic:
    """The load of a time in seconds. Raises ConfigError for one beyond all measure."""
    for stream in streams:
        if stream.rate * seconds > _MOST_ARRIVALS:
            raise ConfigError(
                f"rate={stream.rate:g} for {seconds:g} s is more than {_MOST_ARRIVALS:,} requests"
            )
    arrivals = [a for stream in streams for a in stream.arrivals(seconds, seed)]
    floods = [Flood(s.service_class, s.streams, s.lengths) for s in streams if s.streams]
    return Traffic(sorted(arrivals, key=lambda a: a.at_s), floods)


def from_trace(
    trace: Trace, mix: Mix, seconds: float, prompt: Quantiles | None, answer: Quantiles | None
) -> Traffic:
    """A trace's arrivals within a time, each with a class drawn by the mix.

    prompt, answer: lengths to take instead of the trace's.
    """
    arrivals = []
    for index, record in enumerate(trace.records):
        at_s = record.at_s / mix.rate_scale
        if at_s >= seconds:
            break
        draw = random.Random(f"lengths {mix.seed} {index}")
        sizes = Sizes(
            prompt.tokens(draw.random()) if prompt else record.prompt_tokens,
            answer.tokens(draw.random()) if answer else record.answer_tokens,
        )
        arrivals.append(Arrival(at_s, mix.service_class(index), sizes))
    return Traffic(arrivals, ())


def parse_stream(text: str) -> Stream:
    """`realtime:rate=0.5,prompt=80,answer=32` or `batch:streams=32,prompt=50/190/900,answer=128`.

    Raises ConfigError.
    """
    label, colon, rest = text.partition(":")
    if label not in _CLASSES or not colon:
        raise ConfigError(
            f"{text!r} is not CLASS:KEY=VALUE,… with a class of {', '.join(_CLASSES)}"
        )
    values: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if name not in _KEYS or not equals or name in values:
            raise ConfigError(f"{part!r} is not one KEY=VALUE with a key of {', '.join(_KEYS)}")
        values[name] = value
    if ("rate" in values) == ("streams" in values):
        raise ConfigError(f"{text!r} needs rate= (open loop) or streams= (closed loop), not both")
    lengths = Lengths(
        parse_lengths(_required(values, "prompt", text)),
        parse_lengths(_required(values, "answer", text)),
        _whole(values, "shared"),
    )
    return Stream(
        _CLASSES[label],
        _positive(values, "rate") if "rate" in values else 0.0,
        _positive(values, "cv") if "cv" in values else 1.0,
        _whole(values, "streams"),
        lengths,
    )


def parse_lengths(text: str) -> Quantiles:
    """`80`, or quantiles at even levels from the shortest to the longest: `10/80/200/900`.

    Raises ConfigError.
    """
    try:
        values = [int(part) for part in text.split("/")]
    except ValueError:
        values = []
    if not values or values[0] < 1 or sorted(values) != values:
        raise ConfigError(f"{text!r} is no length in tokens, or rising lengths like 10/80/900")
    if len(values) == 1:
        values *= 2
    last = len(values) - 1
    return Quantiles(tuple(i / last for i in range(last + 1)), tuple(map(float, values)))


def _required(values: Mapping[str, str], name: str, text: str) -> str:
    if name not in values:
        raise ConfigError(f"{text!r} lacks {name}=TOKENS")
    return values[name]


def _positive(values: Mapping[str, str], name: str) -> float:
    try:
        number = float(values[name])
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"{name}={values[name]} is no number above 0")
    return number


def _whole(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "0")
    if not text.isascii() or not text.isdigit() or (name in values and int(text) < 1):
        raise ConfigError(f"{name}={text} is no whole number above 0")
    return int(text)


_WORDS = (
    *("river", "stone", "market", "winter", "letter", "engine", "garden", "signal", "copper"),
    *("window", "history", "planet", "silver", "border", "harbor", "ticket", "theory", "branch"),
    *("mirror", "canyon", "forest", "bridge", "kitchen", "doctor", "summer", "music", "paper"),
)


def prompt_text(words: int, shared: int, label: str, draw: random.Random) -> str:
    """Words of about a token each; `shared` of them are the same for every prompt of a label, and
    what follows differs from its first word, so that a prefix cache finds no more."""
    common = random.Random(f"shared {label}")
    parts = [common.choice(_WORDS) for _ in range(shared)]
    rest = max(words - shared, 1)
    # The first word is a number: no two prompts begin alike.
    parts += [f"{draw.randrange(10**9)}", *(draw.choice(_WORDS) for _ in range(rest - 1))]
    return " ".join(parts)
