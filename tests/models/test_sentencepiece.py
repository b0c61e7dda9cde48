"""SentencePiece vocabularies as byte pairs: against SentencePiece's own rule, written out."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.models.gguf import read_gguf
from headway.models.tokenizer import Tokenizer
from headway.models.tokenizer_gguf import load_tokenizer_gguf
from tests.models.writers import Value, gguf_bytes

_ALPHABET = "▁abcdé"
_SPECIAL = 3


def _pieces() -> list[str]:
    """Random pieces, each the union of two earlier ones; singles last, as real files have them."""
    rng = random.Random(5)
    known = list(_ALPHABET)
    while len(known) < 80:
        piece = rng.choice(known) + rng.choice(known)
        if len(piece) <= 6 and piece not in known:
            known.append(piece)
    return known[len(_ALPHABET) :] + list(_ALPHABET)


_PIECES = _pieces()
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES, "[INST]"]
_IDS = {token: i for i, token in enumerate(_TOKENS)}


def _metadata() -> dict[str, Value]:
    scores = [0.0] * (_SPECIAL + 256) + [-float(i) for i in range(len(_PIECES))] + [0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(_PIECES) + [4],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("spm") / "vocabulary.gguf"
    path.write_bytes(gguf_bytes(_metadata(), []))
    return load_tokenizer_gguf(read_gguf(path).metadata)


def _by_the_rule(text: str) -> list[int]:
    """Join the neighbours whose union scores highest, the leftmost of equals, until none is left;
    characters without a piece become bytes."""
    if not text:
        return []
    parts = list("▁" + text.replace(" ", "▁"))
    rank = {piece: i for i, piece in enumerate(_PIECES)}
    while True:
        unions = [(rank[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in rank]
        if not unions:
            break
        at = min(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        bytes_of = [_IDS[f"<0x{byte:02X}>"] for byte in part.encode()]
        ids += [_IDS[part]] if part in rank else bytes_of
    return ids


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=" abcdé", max_size=24) | st.text(max_size=12))
def test_equals_sentencepiece(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, add_special=False, parse_special=False) == _by_the_rule(text)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=20))
def test_bytes_come_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    expected = " " + text if text else ""
    # U+2581 is how the vocabulary writes a space.
    assert tokenizer.decode(ids) == expected.replace("▁", " ")
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids)


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("ab", add_special=True)[0] == 1
    ids = tokenizer.encode("a[INST]b</s>", add_special=False)
    assert _IDS["[INST]"] in ids
    assert ids[-1] == 2
    assert tokenizer.special.stop == {2}
    assert tokenizer.decode(ids).endswith("b")
