"""What makes equal prefixes findable: digests of full blocks, chained from the first one on."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST_BYTES = 16


def chain_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Digest of a full block: its tokens and, through `parent`, everything before them."""
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=_DIGEST_BYTES).digest()


def root_digest(model_key: bytes, tenant: str) -> bytes:
    """Start of a chain: prefixes are shared within one model, KV type and tenant only."""
    tenant_bytes = tenant.encode()
    return blake2b(
        len(model_key).to_bytes(4, "little") + model_key + tenant_bytes, digest_size=_DIGEST_BYTES
    ).digest()


class PrefixChain:
    """Digests of one sequence's full blocks, worked out as far as they are asked for.

    published: leading blocks already offered to the prefix index.
    """

    __slots__ = ("_block_size", "_digests", "_root", "published")

    def __init__(self, root: bytes, block_size: int) -> None:
        """`root`: see `root_digest`."""
        self.published = 0
        self._root = root
        self._block_size = block_size
        self._digests: list[bytes] = []

    def digests(self, tokens: Sequence[int], count: int) -> list[bytes]:
        """Of the first `count` blocks of the sequence's tokens, all of which must be full."""
        self._extend(tokens, count)
        return self._digests[:count]

    def digest(self, tokens: Sequence[int], block: int) -> bytes:
        """Of one block of the sequence's tokens, which must be full as those before it."""
        self._extend(tokens, block + 1)
        return self._digests[block]

    def _extend(self, tokens: Sequence[int], count: int) -> None:
        size, digests = self._block_size, self._digests
        for i in range(len(digests), count):
            parent = digests[i - 1] if i else self._root
            digests.append(chain_digest(parent, tokens[i * size : (i + 1) * size]))
