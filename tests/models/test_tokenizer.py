"""Tokenizers: known vectors, round trips, and streams that never show half a character."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidRequestError, ModelError
from headway.models.gguf import read_gguf
from headway.models.tokenizer import SpecialNames, Tokenizer, load_tokenizer_json
from headway.models.tokenizer_gguf import load_tokenizer_gguf
from tests.models.writers import Value, byte_level_json, byte_level_metadata, gguf_bytes

_TEXTS = (
    "Hello world",
    "  leading and trailing  ",
    "tabs\tand\n\nnew lines\r\n  x",
    "日本語のテキスト、漢字。",
    "Привет, мир! Ёлка",
    "مرحبا بالعالم हिन्दी ไทย",
    "🦙🎉👩\u200d👩\u200d👧\u200d👦 emoji",
    "é e\u0301 Å A\u030a",
    "a\u00a0b\u3000c\u200bd\x00\x7f",
    "def f(x):\n    return x**2  # hi\n\n\n",
)


def _from_metadata(folder: Path, metadata: dict[str, Value]) -> Tokenizer:
    path = folder / "vocabulary.gguf"
    path.write_bytes(gguf_bytes(metadata, []))
    return load_tokenizer_gguf(read_gguf(path).metadata)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer_gguf(read_gguf(smollm2_path).metadata)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return _from_metadata(tmp_path_factory.mktemp("small"), byte_level_metadata())


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19556, 905]),
        ("  leading", [216, 2899]),
        (
            "I'm you're HE'LL we'd'VE",
            [57, 5248, 346, 2316, 18209, 23, 16421, 392, 6737, 23, 18525],
        ),
        (
            "12345 6 78,900 ½ ²",
            [*range(33, 38), 216, 38, 216, 39, 40, 28, 41, 32, 32, 216, 16738, 216, 19133],
        ),
        (
            "Привет, мир! Ёлка",
            [155, 249, 46879, 16464, 32547, 28, 41337, 7872, 9175, 17, 5470, 219, 12681, 34536],
        ),
        ("é e\u0301 Å A\u030a", [2756, 297, 151, 219, 5549, 223, 330, 151, 228]),
        (
            "<|im_start|>user\nHi<|im_end|>\n<s>",
            [1, 4093, 198, 26843, 2, 198, 44, 99, 46],
        ),
        (
            "def f(x):\n    return x**2  # hi\n\n\n",
            [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 15876, 16506],
        ),
    ],
)
def test_smollm2_vectors(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    """Vectors that llama.cpp gives for the same file."""
    assert smollm2.encode(text, add_special=False) == ids
    assert smollm2.encode(text, add_special=True) == ids
    assert smollm2.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("text", _TEXTS)
def test_text_survives_the_round_trip(smollm2: Tokenizer, small: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, small):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(-2, 49_200), max_size=30), skip=st.booleans())
def test_a_stream_is_a_prefix_of_the_whole(smollm2: Tokenizer, ids: list[int], skip: bool) -> None:
    whole = smollm2.decode(ids, skip_special=skip)
    stream = smollm2.stream(shown=frozenset() if skip else frozenset(range(49_200)))
    shown = ""
    for token in ids:
        shown += stream.push(token)
        assert whole.startswith(shown)
    assert shown + stream.flush() == whole


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_a_stream_of_text_shows_whole_characters_only(small: Tokenizer, text: str) -> None:
    stream = small.stream(shown=frozenset(range(small.vocab_size)))
    ids = small.encode(text, add_special=False)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) == text
    assert stream.flush() == ""
    assert b"".join(map(small.token_bytes, ids)) == text.encode()


def test_half_a_character_at_the_end_becomes_a_mark(small: Tokenizer) -> None:
    llama = small.encode("🦙", add_special=False)
    assert len(llama) == 4
    stream = small.stream()
    assert [stream.push(token) for token in llama[:3]] == ["", "", ""]
    assert stream.flush() == small.decode(llama[:3]) == "\ufffd"


def test_control_tokens_show_only_on_request(small: Tokenizer) -> None:
    ids = small.encode("<|im_start|>hello<|im_end|>", add_special=False)
    assert (ids[0], ids[-1]) == (1, 2)
    assert small.decode(ids) == "hello"
    assert small.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"
    assert small.is_special(1)
    assert not small.is_special(100)
    assert small.token_text(2) == "<|im_end|>"
    assert small.token_id("<|im_end|>") == 2
    assert small.token_id("<|nothing|>") is None


def test_names_of_control_tokens_can_be_plain_text(small: Tokenizer) -> None:
    text = "<|im_end|> hello"
    ids = small.encode(text, add_special=False, parse_special=False)
    assert 2 not in ids
    assert small.decode(ids) == text
    assert small.encode(text, add_special=False)[0] == 2


def test_half_a_surrogate_pair_is_the_caller_s_error(small: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        small.encode("a\ud83e", add_special=False)


def test_ids_outside_the_vocabulary_stand_for_nothing(small: Tokenizer) -> None:
    assert small.vocab_size == 269
    assert small.decode([-1, 269, 1 << 40]) == ""


def test_beginning_and_end_are_added_as_the_file_says(tmp_path: Path) -> None:
    keys = byte_level_metadata()
    both: dict[str, Value] = {
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    tokenizer = _from_metadata(tmp_path, keys | both)
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello", add_special=True) == [1, *plain, 2]
    assert _from_metadata(tmp_path, keys).encode("hello", add_special=True) == plain
    # Llama 3 begins texts without being told.
    llama3 = _from_metadata(tmp_path, byte_level_metadata("llama-bpe"))
    assert llama3.encode("hello", add_special=True)[0] == 1


def test_words_differ_by_pre_tokenizer(tmp_path: Path) -> None:
    def pieces(pre: str, text: str) -> list[str]:
        tokenizer = _from_metadata(tmp_path, byte_level_metadata(pre) | merges)
        return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False)]

    digits = [f"{a}{b}" for a in "0123456789" for b in "0123456789"]
    names = byte_level_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(names, list)
    merges: dict[str, Value] = {
        "tokenizer.ggml.tokens": [*names, *digits],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(names) + 97),
        "tokenizer.ggml.merges": [f"{pair[0]} {pair[1]}" for pair in digits],
    }
    assert pieces("gpt-2", "1234") == ["12", "34"]
    assert pieces("smollm", "1234") == ["1", "2", "3", "4"]
    assert pieces("qwen2", "1234") == ["1", "2", "3", "4"]
    assert pieces("llama-bpe", "1234") == ["12", "3", "4"]
    # Qwen's text is brought to normal form C first, the others' is not.
    assert len(pieces("qwen2", "e\u0301")) == 2
    assert len(pieces("llama-bpe", "e\u0301")) == 3


def test_unused_slots_are_never_met(tmp_path: Path) -> None:
    keys = byte_level_metadata()
    names = keys["tokenizer.ggml.tokens"]
    assert isinstance(names, list)
    keys["tokenizer.ggml.tokens"] = [*names, "[PAD]"]
    keys["tokenizer.ggml.token_type"] = [3] * 3 + [1] * (len(names) - 3) + [5]
    tokenizer = _from_metadata(tmp_path, keys)
    assert tokenizer.vocab_size == len(names) + 1
    assert tokenizer.token_bytes(len(names)) == b""


def test_ids_without_a_token_are_not_remembered(small: Tokenizer) -> None:
    assert small.token_bytes(0)
    before = len(small._bytes)
    assert {small.token_bytes(i) for i in range(10**6, 10**6 + 1000)} == {b""}
    assert len(small._bytes) == before


_NAMES = SpecialNames(bos=None, eos="<|im_end|>", stop=frozenset({0}))


def test_tokenizer_json_equals_the_gguf_tokenizer(tmp_path: Path, small: Tokenizer) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_json()))
    other = load_tokenizer_json(tmp_path / "tokenizer.json", _NAMES)
    assert other.special.stop == {0, 2}
    assert other.vocab_size == small.vocab_size
    for text in (*_TEXTS, "<|im_start|>hello world<|im_end|>"):
        ids = other.encode(text, add_special=False)
        assert ids == small.encode(text, add_special=False)
        assert other.decode(ids, skip_special=False) == text


def _json_with(**changes: object) -> str:
    return json.dumps({**byte_level_json(), **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "can't be read"),
        ("[]", "not a tokenizer"),
        ("[" * 100_000, "can't be read"),
        (_json_with(model={"type": "Unigram"}), "Unigram"),
        (_json_with(model={"type": "WordPiece"}), "WordPiece"),
        (_json_with(decoder={"type": "CTC"}), "CTC"),
        (_json_with(decoder=None), "decoder"),
        (_json_with(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}), "tokenizer"),
        (_json_with(pre_tokenizer={"type": "Nonsense"}), "tokenizer"),
        (_json_with(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}}), "tokenizer"),
        (_json_with(added_tokens=7), "tokenizer"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=reason) as error:
        load_tokenizer_json(tmp_path / "tokenizer.json", _NAMES)
    assert "\n" not in str(error.value)
