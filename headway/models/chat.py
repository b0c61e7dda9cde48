"""Chat templates."""

from collections.abc import Mapping


class ChatTemplate:
    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source = source
