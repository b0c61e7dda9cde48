"""Stop strings and incremental text: what is streamed is what the whole would be."""

from hypothesis import given
from hypothesis import strategies as st

from headway.engine.text import ChoiceText, StopMatcher
from headway.engine.types import TokenInfo
from headway.testing.text import ByteTokenizer

letters = st.text("ab", min_size=1, max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The reference: read one character at a time until a stop string is complete."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(st.lists(st.text("ab", max_size=5), max_size=8), st.lists(letters, max_size=3))
def test_pieces_give_what_the_whole_text_gives(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    expected, hit = cut("".join(pieces), stops)
    for piece in pieces:
        shown += matcher.push(piece)
        assert expected.startswith(shown), "text was shown that the stop string takes back"
    if not matcher.hit:
        shown += matcher.flush()
    assert (shown, matcher.hit) == (expected, hit)


@given(st.lists(st.text("ab", max_size=5), max_size=8), st.lists(letters, max_size=3))
def test_nothing_is_held_that_can_not_become_a_stop(pieces: list[str], stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for end, piece in enumerate(pieces, 1):
        shown += matcher.push(piece)
        held = "".join(pieces[:end])[len(shown) :]
        assert matcher.hit or not held or any(stop.startswith(held) for stop in stops)


def test_stop_complete_first_wins_then_the_longer() -> None:
    assert StopMatcher(["abcd", "bc"]).push("abcd") == "a"
    assert StopMatcher(["c", "bc"]).push("abcd") == "a"


@given(st.text(max_size=12), st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_multibyte_text_is_never_cut_in_a_character(text: str, stops: list[str]) -> None:
    choice = ChoiceText(ByteTokenizer().stream(), stops)
    shown = ""
    for token in text.encode():
        choice.push(TokenInfo(token))
        released = choice.take()
        assert "\ufffd" not in released.text or "\ufffd" in text
        shown += released.text
        if choice.hit:
            break
    choice.finish()
    shown += choice.take().text
    assert shown == cut(text, stops)[0]


words = {
    300 + i: word for i, word in enumerate([b"a", b"ab", b"ba", b"abb", b"\xc3", b"\xa4", b""])
}


@given(st.lists(st.sampled_from(sorted(words)), max_size=10), st.lists(letters, max_size=3))
def test_tokens_given_out_are_those_kept(tokens: list[int], stops: list[str]) -> None:
    tokenizer = ByteTokenizer(words)
    choice = ChoiceText(tokenizer.stream(), stops)
    text, out = "", 0
    keep = len(tokens)
    for token in tokens:
        choice.push(TokenInfo(token))
        if choice.hit:
            keep = choice.keep_tokens
        released = choice.take()
        text, out = text + released.text, out + len(released.tokens)
        if choice.hit:
            break
    choice.finish()
    released = choice.take()
    text, out = text + released.text, out + len(released.tokens)
    assert out == keep
    if choice.hit:
        assert tokenizer.decode(tokens[:keep]).startswith(text)


def test_half_character_at_the_end_is_marked() -> None:
    choice = ChoiceText(ByteTokenizer().stream())
    choice.push(TokenInfo(0xC3))
    assert choice.take().text == ""
    choice.finish()
    assert choice.take().text == "\ufffd"


def test_ending_token_has_no_text_and_is_not_shown() -> None:
    choice = ChoiceText(ByteTokenizer().stream(), silent=frozenset({65}))
    choice.push(TokenInfo(66))
    choice.push(TokenInfo(65))
    released = choice.take()
    assert released.text == "B"
    assert [info.shown for info in released.tokens] == [True, False]
