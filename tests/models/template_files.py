"""Chat templates in the conventions of model families, for tests."""

from pathlib import Path

from headway.models.chat import ChatTemplate

FAMILIES = ("hermes", "qwen3", "llama3", "mistral")
_FOLDER = Path(__file__).parent / "templates"


def family(name: str) -> ChatTemplate:
    """The template of a family."""
    source = (_FOLDER / f"{name}.jinja").read_text()
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
