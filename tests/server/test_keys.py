"""Keys in their file and in a server's memory, and the rates that hold for them."""

import json
import logging
import stat
import threading
from pathlib import Path

import pytest

from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway.server.caller import Caller
from headway.server.errors import ApiError
from headway.server.keyring import KeyRing
from headway.server.keys import Allowance, Key, Rights, edited, new_key, read_keys
from headway.server.tiers import Tier
from headway.testing import ManualClock

REALTIME, STANDARD, BATCH = ServiceClass
ALL_OF_IT = (
    Rights(BATCH, STANDARD, downgrade=True, admin=True),
    Allowance({STANDARD: 60}, {STANDARD: 1000, BATCH: 5000}, 4),
)


def added(
    path: Path, tenant: str, rights: Rights | None = None, allowance: Allowance | None = None
) -> str:
    """A new key in the file."""
    given = rights or Rights(), allowance or Allowance()
    presented, key = new_key(tenant, *given, 1_700_000_000)
    with edited(path) as keys:
        keys.append(key)
    return presented


def test_a_file_keeps_all_of_a_key_but_the_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    presented, key = new_key("acme", *ALL_OF_IT, 1_700_000_000)
    with edited(path) as keys:
        keys.append(key)
    assert read_keys(path) == [key]
    assert presented.split("_", 2)[2] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert added(path, "other") != added(path, "other")
    assert [k.tenant for k in read_keys(path)] == ["acme", "other", "other"]


def test_two_that_edit_a_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    threads = [threading.Thread(target=added, args=(path, f"t{i}")) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {key.tenant for key in read_keys(path)} == {f"t{i}" for i in range(16)}
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


def test_an_edit_that_fails_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    added(path, "acme")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="no tenant"), edited(path) as keys:
        keys.append(new_key("a\nb", Rights(), Allowance(), 0)[1])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content | {"version": 2},
        lambda content: content | {"keys": [content["keys"][0] | {"colour": "red"}]},
        lambda content: content | {"keys": [content["keys"][0] | {"admin": "yes"}]},
        lambda content: content | {"keys": [content["keys"][0] | {"top_class": "vip"}]},
        lambda content: content | {"keys": [content["keys"][0] | {"concurrent": True}]},
        lambda content: (
            content | {"keys": [content["keys"][0] | {"tokens_per_minute": {"batch": -1}}]}
        ),
        lambda content: content | {"keys": [content["keys"][0] | {"tenant": "a b"}]},
        lambda content: {"version": 1},
        lambda content: [],
    ],
)
def test_a_file_that_is_not_as_written_is_refused(tmp_path: Path, change: object) -> None:
    path = tmp_path / "keys.json"
    added(path, "acme")
    assert callable(change)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=r"keys\.json"):
        read_keys(path)


def test_a_ring_knows_its_keys_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    one, two = added(path, "one"), added(path, "two", Rights(admin=True))
    ring = KeyRing("single", path, ManualClock())
    found = {key: ring.find(key) for key in (one, two, "single")}
    tenants = [caller.tenant if caller else None for caller in found.values()]
    assert tenants == ["one", "two", ""]
    single = found["single"]
    assert single is not None and single.key.rights.admin
    head, _, secret = one.rpartition("_")
    id_of_two = two.split("_")[1]
    for wrong in ("", "x", one + "x", one[:-1], head, f"{head}_", f"hw_{id_of_two}_{secret}"):
        assert ring.find(wrong) is None
    assert KeyRing(None, path, ManualClock()).find("") is None


def test_a_ring_sees_changes_within_a_second_and_keeps_what_was_used(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.json", ManualClock()
    old = added(path, "old", allowance=Allowance({STANDARD: 1}))
    ring = KeyRing(None, path, clock)
    first = ring.find(old)
    assert first is not None
    first.begin(STANDARD)
    new = added(path, "new")
    assert ring.find(new) is None
    clock.advance(1)
    assert ring.find(new) is not None
    again = ring.find(old)
    assert again is first
    with pytest.raises(ApiError):
        again.begin(STANDARD)
    with edited(path) as keys:
        keys[:] = [key for key in keys if key.tenant != "old"]
    clock.advance(1)
    assert ring.find(old) is None
    assert ring.find(new) is not None


def test_a_file_that_has_become_unreadable_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "keys.json", ManualClock()
    key = added(path, "acme")
    ring = KeyRing(None, path, clock)
    with caplog.at_level(logging.ERROR):
        for spoil in (lambda: path.write_text("{"), path.unlink):
            spoil()
            clock.advance(1)
            assert ring.find(key) is not None
            clock.advance(1)
            assert ring.find(key) is not None
    assert len(caplog.records) == 2  # once each
    later = added(path, "later")
    clock.advance(1)
    assert ring.find(later) is not None
    with pytest.raises(ConfigError):
        KeyRing(None, tmp_path / "none", clock)


def caller(allowance: Allowance, clock: ManualClock) -> Caller:
    return Caller(Key("id", "", "acme", 0, Rights(), allowance), clock)


def refused(who: Caller, service_class: ServiceClass) -> int:
    """The Retry-After of a request that is refused."""
    with pytest.raises(ApiError) as caught:
        who.begin(service_class)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return int(caught.value.headers["Retry-After"])


def test_requests_have_a_rate_by_class() -> None:
    clock = ManualClock()
    who = caller(Allowance({STANDARD: 6}), clock)
    for _ in range(6):
        who.begin(STANDARD)
    assert refused(who, STANDARD) == 10
    for _ in range(100):
        who.begin(BATCH)
    clock.advance(9)
    assert refused(who, STANDARD) == 1
    clock.advance(1)
    who.begin(STANDARD)
    clock.advance(3600)  # no more than a minute's worth is saved up
    for _ in range(6):
        who.begin(STANDARD)
    refused(who, STANDARD)


def test_tokens_beyond_the_rate_are_owed() -> None:
    clock = ManualClock()
    who = caller(Allowance({}, {REALTIME: 600}), clock)
    who.begin(REALTIME)
    who.charge(REALTIME, 500)
    who.begin(REALTIME)
    who.charge(REALTIME, 700)  # the answer: 600 owed
    who.charge(BATCH, 10**9)
    assert refused(who, REALTIME) == 61
    clock.advance(60)
    assert refused(who, REALTIME) == 1
    clock.advance(1)
    who.begin(REALTIME)
    who.begin(BATCH)


def test_a_class_above_the_top_is_refused_or_lowered() -> None:
    strict = Caller(Key("id", "", "acme", 0, Rights(BATCH, STANDARD)), ManualClock())
    lenient = Caller(Key("id", "", "a", 0, Rights(None, BATCH, downgrade=True)), ManualClock())
    with pytest.raises(ApiError) as caught:
        strict.permit(Tier(REALTIME, "priority"))
    assert (caught.value.status, caught.value.code) == (403, "class_not_allowed")
    assert strict.permit(Tier(STANDARD, "auto")) == Tier(STANDARD, "auto")
    assert lenient.permit(Tier(REALTIME, "priority")) == Tier(BATCH, "flex")
    assert lenient.permit(Tier(STANDARD, "standard")) == Tier(BATCH, "batch")
    assert (strict.default_class(STANDARD), lenient.default_class(STANDARD)) == (BATCH, BATCH)
    assert Caller(Key("id", "", "a", 0), ManualClock()).default_class(STANDARD) is STANDARD


def test_the_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    added(path, "acme")
    path.chmod(0o640)
    added(path, "other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
