"""Headway: an LLM inference server for mixed traffic."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.llm import LLM, Result
    from headway.sampling import SamplingParams

__all__ = ["LLM", "Result", "SamplingParams"]


def __getattr__(name: str) -> object:
    """The offline names, loaded at first use: importing a room alone stays light."""
    if name in __all__:
        home = "headway.sampling" if name == "SamplingParams" else "headway.llm"
        value: object = getattr(import_module(home), name)
        return value
    raise AttributeError(f"module 'headway' has no attribute {name!r}")
