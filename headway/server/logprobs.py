"""Log probabilities in the shapes of the two endpoints."""

from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Protocol

from headway.engine.types import TokenInfo
from headway.server.jsontext import Json
from headway.server.model import TextCodec

_LOWEST_LOGPROB = -9999.0


def _finite(logprob: float) -> float:
    # JSON has no -Infinity; OpenAI writes -9999 for "impossible".
    return max(logprob, _LOWEST_LOGPROB)


class Logprobs(Protocol):
    """Log probabilities of one choice in one endpoint's shape."""

    def json(self, tokens: Iterable[TokenInfo]) -> Json:
        """The object for these tokens, which follow those of the calls before."""
        ...


class ChatLogprobs:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec

    def json(self, tokens: Iterable[TokenInfo]) -> Json:
        """The object for these tokens."""
        content = []
        for info in tokens:
            if info.logprobs is not None:
                entry = self._entry(info.token, info.logprobs.logprob)
                entry["top_logprobs"] = [self._entry(*pair) for pair in info.logprobs.top]
                content.append(entry)
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> Json:
        raw = self._codec.token_bytes(token)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": _finite(logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`, four lists of one length.

    A token that is part of a character is written `bytes:\\xe2\\x82`, as OpenAI does, so that no
    two of them fall together. Offsets count characters of the answer.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def json(self, tokens: Iterable[TokenInfo]) -> Json:
        """The object for these tokens."""
        names: list[str] = []
        logprobs: list[float] = []
        tops: list[dict[str, float]] = []
        offsets: list[int] = []
        for info in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._codec.token_bytes(info.token)))
            names.append(self._name(info.token))
            if info.logprobs is not None:
                top = {self._name(token): _finite(value) for token, value in info.logprobs.top}
                top.setdefault(names[-1], _finite(info.logprobs.logprob))
                logprobs.append(_finite(info.logprobs.logprob))
                tops.append(top)
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        raw = self._codec.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
