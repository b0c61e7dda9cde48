"""`headway keys`."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headway.cli import main
from headway.core.types import ServiceClass
from headway.server.keys import Allowance, Rights, digest, read_keys


def test_add_list_and_revoke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    monkeypatch.setenv("HEADWAY_KEYS_FILE", str(path))
    monkeypatch.setenv("HEADWAY_PORT", "9000")  # of the server; no error here
    line = "keys add --tenant acme --top-class standard --downgrade --admin --concurrent 3"
    rates = ["--requests-per-minute", "standard=6", "--tokens-per-minute", "standard=9,batch=8"]
    assert main([*line.split(), *rates]) == 0
    shown = capsys.readouterr()
    presented = shown.out.strip()
    (key,) = read_keys(path)
    assert (key.sha256, key.tenant) == (digest(presented), "acme")
    assert key.rights == Rights(None, ServiceClass.STANDARD, True, True)
    standard, batch = ServiceClass.STANDARD, ServiceClass.BATCH
    assert key.allowance == Allowance({standard: 6}, {standard: 9, batch: 8}, 3)
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(word in listed for word in (key.id, "acme", "top=standard", "concurrent=3", "admin"))
    assert presented not in listed and key.sha256 not in listed
    assert main(["keys", "revoke", key.id]) == 0
    assert read_keys(path) == []


def test_what_cannot_be_written_leaves_the_keys_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    assert main(["keys", "add", "--keys-file", str(path), "--tenant", "acme"]) == 0
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    capsys.readouterr()
    for line in ("add --tenant other", f"revoke {read_keys(path)[0].id}"):
        assert main(["keys", *line.split(), "--keys-file", str(path)]) == 2
        shown = capsys.readouterr()
        assert not shown.out and "No space left" in shown.err
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"keys.json", "keys.json.lock"}


def test_a_key_that_cannot_be_shown_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing writes once more
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["keys", "add", "--keys-file", str(path), "--tenant", "acme"]) == 2
    (key,) = read_keys(path)
    assert f"key {key.id} can't be shown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("add --tenant a", "--keys-file"),
        ("add --keys-file k.json", "--tenant"),
        ("add --keys-file k.json --tenant a/b", "no tenant"),
        ("add --keys-file k.json --tenant a --concurrent 0", "less than 1"),
        ("add --keys-file k.json --tenant a --tokens-per-minute vip=3", "vip"),
        ("add --keys-file k.json --tenant a --tokens-per-minute batch=3,batch=4", "twice"),
        (
            "add --keys-file k.json --tenant a --default-class realtime --top-class batch",
            "is above --top-class",
        ),
        (
            "add --keys-file k.json --tenant a --top-class batch --tokens-per-minute standard=9",
            "a rate for standard is above --top-class batch",
        ),
        (
            "add --keys-file k.json --tenant a --top-class standard --downgrade "
            "--requests-per-minute standard=9,realtime=9",
            "a rate for realtime is above --top-class standard",
        ),
        ("add --keys-file /no/such/k.json --tenant a", "can't be written"),
        ("list --keys-file /no/such/k.json", "can't be read"),
        ("revoke --keys-file k.json x", "no key 'x'"),
    ],
)
def test_what_is_wrong_takes_one_line(
    line: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_KEYS_FILE", raising=False)
    try:
        status = main(["keys", *line.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    err = capsys.readouterr().err
    assert (status, err.count("\n")) == (2, 1)
    assert reason in err
