"""The OpenAPI document: what the routes say of themselves, and what types can't tell them.

Bodies are validated by hand (`server.parse`), streams and errors are written by hand; they are
described here, so that a client made from the document finds what is really answered.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from headway.server.answer_types import ChatAnswer, CompletionAnswer, ErrorAnswer
from headway.server.batch_routes import BATCH_BODIES
from headway.server.routes import BODIES, CHAT_PATH, COMPLETION_PATH
from headway.server.tiers import CLASS_HEADER, TIER_WORDS
from headway.server.tokenize import TOKEN_BODIES

Document = dict[str, Any]

_SCHEMAS = "#/components/schemas/{model}"
_BODIES: Mapping[str, type[BaseModel]] = {**BODIES, **BATCH_BODIES, **TOKEN_BODIES}
_ANSWERS: Mapping[str, type[BaseModel]] = {
    CHAT_PATH: ChatAnswer,
    COMPLETION_PATH: CompletionAnswer,
}
_OTHER_TYPES: Mapping[str, str] = {
    "/metrics": "text/plain",
    "/v1/files/{file_id}/content": "application/octet-stream",
}
_CLASS: Document = {
    "name": CLASS_HEADER,
    "in": "header",
    "required": False,
    "description": "Service class, where the body's `service_tier` doesn't say.",
    "schema": {"type": "string", "enum": list(TIER_WORDS)},
}


_EVENT: Document = {
    "type": "object",
    "description": "Each event of the stream.",
    "properties": {
        "data": {"type": "string", "description": "A chunk or an error as JSON, or `[DONE]`."}
    },
    "required": ["data"],
}


def complete(document: Document) -> None:
    """Add to FastAPI's own document what it doesn't know."""
    paths = document["paths"]
    kinds: list[type[BaseModel]] = [*_BODIES.values(), *_ANSWERS.values(), ErrorAnswer]
    document.setdefault("components", {})["schemas"] = {
        **document.get("components", {}).get("schemas", {}),
        **_schemas(kinds),
    }
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for path, operations in paths.items():
        for operation in operations.values():
            _complete_answers(path, operation["responses"])
    for path, kind in _BODIES.items():
        if path in paths:
            paths[path]["post"]["requestBody"] = {
                "content": _json(kind),
                "required": True,
            }
    for path, kind in _ANSWERS.items():
        operation = paths[path]["post"]
        operation["parameters"] = [*operation.get("parameters", []), _CLASS]
        operation["responses"]["200"]["content"] = {
            **_json(kind),
            "text/event-stream": {"schema": _EVENT},
        }


def _complete_answers(path: str, responses: Document) -> None:
    """Every answer that is none of success has one body; nothing is answered by 422."""
    responses.pop("422", None)
    responses["default"] = {"description": "An error.", "content": _json(ErrorAnswer)}
    other = _OTHER_TYPES.get(path)
    if other is not None:
        responses["200"]["content"] = {other: {"schema": {"type": "string"}}}


def _json(kind: type[BaseModel]) -> Document:
    return {"application/json": {"schema": {"$ref": _SCHEMAS.format(model=kind.__name__)}}}


def _schemas(kinds: Iterable[type[BaseModel]]) -> Document:
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [(kind, "validation") for kind in kinds]
    _, schemas = models_json_schema(wanted, ref_template=_SCHEMAS)
    found: Document = schemas["$defs"]
    return found
