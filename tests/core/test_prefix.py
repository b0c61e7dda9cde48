"""Digests that make equal prefixes findable: of what, and as far as they are asked for."""

from headway.core.prefix import PrefixChain, chain_digest, root_digest

TOKENS = list(range(100, 112))


def test_a_chain_is_the_digest_of_each_block_on_top_of_the_one_before() -> None:
    root = root_digest(b"model", "tenant")
    first = chain_digest(root, TOKENS[:4])
    second = chain_digest(first, TOKENS[4:8])
    third = chain_digest(second, TOKENS[8:])
    assert PrefixChain(root, 4).digests(TOKENS, 3) == [first, second, third]
    assert PrefixChain(root, 4).digest(TOKENS, 1) == second
    assert [len(digest) for digest in (root, first)] == [16, 16]


def test_a_chain_goes_on_where_it_was_left() -> None:
    """What was worked out once is not looked at again: the tokens before may be gone."""
    chain = PrefixChain(b"", 4)
    first = chain.digests(TOKENS, 1)
    assert chain.published == 0
    assert chain.digests([0] * 4 + TOKENS[4:], 2) == PrefixChain(b"", 4).digests(TOKENS, 2)
    assert chain.digests(TOKENS, 1) == first, "as many as were asked for"
    assert chain.digest(TOKENS, 0) == first[0]


def test_a_block_that_is_not_full_yet_is_not_digested_with_the_one_before_it() -> None:
    """A digest of half a block would stay, and be offered once the block is full."""
    chain = PrefixChain(b"", 4)
    chain.digest(TOKENS[:6], 0)
    assert chain.digest(TOKENS, 1) == PrefixChain(b"", 4).digest(TOKENS, 1)


def test_roots_differ_by_model_and_tenant_wherever_one_ends_and_the_other_begins() -> None:
    pairs = ((b"", ""), (b"ab", "c"), (b"a", "bc"), (b"abc", ""), (b"", "abc"))
    assert len({root_digest(*pair) for pair in pairs}) == len(pairs)
