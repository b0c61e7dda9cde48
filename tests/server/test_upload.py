"""Uploads as they arrive, in pieces of any size."""

import random

import httpx
import pytest

from headway.server.errors import ApiError
from headway.server.upload import UploadForm

CONTENT = b"line\r\n--not the boundary\r\n" * 20 + bytes(range(256))


def form_of(fields: dict[str, str], filename: str = "in.jsonl") -> tuple[str, bytes]:
    """A form as a client writes it: content type and body."""
    request = httpx.Request("POST", "http://x", data=fields, files={"file": (filename, CONTENT)})
    return request.headers["content-type"], request.read()


@pytest.mark.parametrize("seed", range(8))
def test_the_size_of_pieces_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    kind, body = form_of({"purpose": "batch", "expires_after[seconds]": "3600"}, "a ö.jsonl")
    got = bytearray()
    form = UploadForm(kind, got.extend)
    at = 0
    while at < len(body):
        size = rng.choice((1, 2, 3, 7, 100))
        form.feed(body[at : at + size])
        at += size
    assert form.finish() == "a ö.jsonl"
    assert got == CONTENT
    assert form.fields == {"purpose": "batch", "expires_after[seconds]": "3600"}


def test_a_body_cut_anywhere_is_incomplete() -> None:
    kind, body = form_of({"purpose": "batch"})
    for end in range(0, len(body) - 4, 13):
        form = UploadForm(kind, bytearray().extend)
        form.feed(body[:end])
        with pytest.raises(ApiError):
            form.finish()


@pytest.mark.parametrize("fields", [{"x": "y" * 70_000}, {str(i): "" for i in range(100)}])
def test_what_is_held_is_bounded(fields: dict[str, str]) -> None:
    kind, body = form_of(fields)
    with pytest.raises(ApiError):
        UploadForm(kind, bytearray().extend).feed(body)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 257,
    ],
)
def test_other_bodies_are_refused(kind: str) -> None:
    with pytest.raises(ApiError, match="multipart/form-data"):
        UploadForm(kind, bytearray().extend)


def test_garbage_is_refused_and_never_breaks_the_reader() -> None:
    rng = random.Random(5)
    kind, body = form_of({"purpose": "batch"})
    for _ in range(300):
        broken = bytearray(body)
        for _ in range(rng.randrange(1, 8)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        form = UploadForm(kind, bytearray().extend)
        try:
            form.feed(bytes(broken))
            form.finish()
        except ApiError as error:
            assert error.status == 400
