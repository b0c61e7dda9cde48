"""What the OpenAPI document says of the Batch API beyond what types tell: the upload's form, and
the queries of lists."""

from typing import Any

from headway.batches.types import INPUT_PURPOSE
from headway.server.batch_types import MAX_FILES_LISTED, MAX_JOBS_LISTED, MAX_LIFE_S, MIN_LIFE_S

Schema = dict[str, Any]

_ORDER: Schema = {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
_FORM: Schema = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": [INPUT_PURPOSE]},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": MIN_LIFE_S,
            "maximum": MAX_LIFE_S,
        },
    },
}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _limit(most: int) -> Schema:
    return _query("limit", {"type": "integer", "minimum": 1, "maximum": most})


_AFTER = _query("after", {"type": "string"})

UPLOAD_SCHEMA: Schema = {
    "requestBody": {"content": {"multipart/form-data": {"schema": _FORM}}, "required": True}
}
FILES_SCHEMA: Schema = {
    "parameters": [
        _AFTER,
        _limit(MAX_FILES_LISTED),
        _query("order", _ORDER),
        _query("purpose", {"type": "string"}),
    ]
}
BATCHES_SCHEMA: Schema = {"parameters": [_AFTER, _limit(MAX_JOBS_LISTED)]}
