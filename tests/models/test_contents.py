"""Contents of a conversation that spell control tokens mean the characters."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidRequestError
from headway.models.chat import ChatTemplate
from headway.models.contents import MARK, marked, name_pattern, shielded, shielded_turns
from headway.models.gguf import read_gguf
from headway.models.templates import _CHATML
from headway.models.tokenizer import Tokenizer
from headway.models.tokenizer_gguf import load_tokenizer_gguf

NAMES = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
PIECES = st.sampled_from([*NAMES, "<|im_", "end|>", "<", "hi", " ", "\n", "é"])


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer_gguf(read_gguf(smollm2_path).metadata)


def prompt_of(tokenizer: Tokenizer, *contents: str) -> list[int]:
    turns = [{"role": "user", "content": content} for content in contents]
    text = ChatTemplate(_CHATML, {}).render(shielded_turns(turns, tokenizer.shield))
    return tokenizer.encode(text, add_special=False)


def test_a_control_token_in_a_message_is_plain_text(smollm2: Tokenizer) -> None:
    ids = prompt_of(smollm2, "<|im_end|>")
    literal = smollm2.encode("user\n<|im_end|>", add_special=False, parse_special=False)
    after = smollm2.encode("\n<|im_start|>assistant\n", add_special=False)
    assert ids == [1, *literal, 2, *after]


@settings(max_examples=100, deadline=None)
@given(contents=st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=3))
def test_contents_make_no_control_tokens_and_lose_nothing(
    smollm2: Tokenizer, contents: list[str]
) -> None:
    ids = prompt_of(smollm2, *contents)
    own = prompt_of(smollm2, *("x" for _ in contents))
    assert list(filter(smollm2.is_special, ids)) == list(filter(smollm2.is_special, own))
    turns = [{"role": "user", "content": content} for content in contents]
    text = ChatTemplate(_CHATML, {}).render(turns)
    assert smollm2.decode(ids, skip_special=False) == text


def test_between_control_tokens_text_is_encoded_as_one(smollm2: Tokenizer) -> None:
    text = "<|im_start|>a b<|im_end|>"
    assert smollm2.encode(text, add_special=True) == [1, *smollm2.encode("a b", False), 2]
    shielded_text = "<|im_start|>" + smollm2.shield("ab<|im_end|>cd") + "<|im_end|>"
    plain = smollm2.encode("ab<|im_end|>cd", False, parse_special=False)
    assert smollm2.encode(shielded_text, add_special=True) == [1, *plain, 2]


def test_overlapping_names_are_all_marked() -> None:
    names = name_pattern(["ab", "bc", "abc", ""])
    assert names is not None
    text = marked("abc ab xbc", names)
    assert names.search(text) is None
    assert text.replace(MARK, "") == "abc ab xbc"
    assert name_pattern([]) is None
    assert name_pattern(["a"]) is None, "it could be marked without end"
    assert marked("abc", None) == "abc"


def test_the_mark_itself_is_no_text(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        smollm2.shield(f"<{MARK}|im_end|>")


def test_every_text_of_a_turn_is_shielded() -> None:
    turn: Mapping[str, object] = {
        "role": "tool",
        "content": "a",
        "tool_calls": [{"arguments": {"a": ["a", 1, None, True]}}],
    }
    assert shielded_turns([turn], lambda text: text.replace("a", "b")) == [
        {
            "role": "tool",
            "content": "b",
            "tool_calls": [{"brguments": {"b": ["b", 1, None, True]}}],
        }
    ]
    assert shielded(3, str.upper) == 3


def test_tags_of_reasoning_are_the_assistants_own() -> None:
    text = "<think>no</think>yes"
    turns = [{"role": role, "content": text} for role in ("assistant", "user")]
    spared, whole = shielded_turns(turns, lambda part: f"({part})" if "<" in part else part)
    assert spared["content"] == text
    assert whole["content"] == f"({text})"
