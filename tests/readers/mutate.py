"""Breaks bytes in the ways that hostile and damaged files are broken."""

import random
from collections.abc import Callable, Sequence

_SMALL = (0, 1, 2, 3, 7, 8, 9, 31, 32, 255)
_LARGE = (2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_MOST_BYTES = 1 << 20

Change = Callable[[bytearray, random.Random], None]


def mutated(seeds: Sequence[bytes], words: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds with one to eight changes. words: what may be written anywhere."""
    data = bytearray(rng.choice(seeds))
    changes: list[Change] = [*_CHANGES, _spliced_with(rng.choice(seeds)), _with_words(words)]
    for _ in range(min(rng.randrange(1, 9), rng.randrange(1, 9))):
        rng.choice(changes)(data, rng)
    return bytes(data[:_MOST_BYTES])


def _place(data: bytearray, rng: random.Random) -> int:
    """Heads of files are looked at closest, so every second change is there."""
    end = len(data) if rng.random() < 0.5 else min(len(data), 512)
    return rng.randrange(end + 1)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[_place(data, rng) % len(data)] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    at = _place(data, rng)
    fresh = rng.randbytes(rng.randrange(1, 9))
    data[at : at + len(fresh)] = fresh


def _number(data: bytearray, rng: random.Random) -> None:
    at, size = _place(data, rng), rng.choice((1, 2, 4, 8))
    value = rng.choice(_SMALL + _LARGE) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, "little")


def _cut_out(data: bytearray, rng: random.Random) -> None:
    at = _place(data, rng)
    del data[at : at + rng.randrange(1, 65)]


def _cut_short(data: bytearray, rng: random.Random) -> None:
    del data[_place(data, rng) :]


def _double(data: bytearray, rng: random.Random) -> None:
    at = _place(data, rng)
    part = data[at : at + rng.randrange(1, 257)]
    data[at:at] = part * rng.choice((1, 1, 2, 50))


def _digits(data: bytearray, rng: random.Random) -> None:
    """Another number where a text has one."""
    places = [i for i, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
    if places:
        at = rng.choice(places)
        data[at : at + 1] = rng.choice((b"-1", b"1e999", b"0", b"99999999999999999999", b"1.5"))


_CHANGES: list[Change] = [
    _flip,
    _overwrite,
    _number,
    _number,
    _cut_out,
    _cut_short,
    _double,
    _digits,
]


def _spliced_with(other: bytes) -> Change:
    def splice(data: bytearray, rng: random.Random) -> None:
        data[_place(data, rng) :] = other[rng.randrange(len(other) + 1) :]

    return splice


def _with_words(words: Sequence[bytes]) -> Change:
    def write(data: bytearray, rng: random.Random) -> None:
        at, word = _place(data, rng), rng.choice(words)
        over = rng.choice((0, len(word)))
        data[at : at + over] = word

    return write
