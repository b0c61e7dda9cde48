"""Strict bodies: what a field may be, and which fields are refused by name."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from headway.server.errors import bad_request

Neutral = tuple[object, ...]
"""Values of an unsupported field that ask for nothing."""


def describe(schema: dict[str, Any], kind: type["Body"]) -> None:
    """Fields that are refused or ignored, for the OpenAPI document."""
    properties = schema.setdefault("properties", {})
    for name, neutral in kind.unsupported.items():
        properties.setdefault(
            name, {"description": "Not supported.", "enum": [None, *neutral], "default": None}
        )
    for name in sorted(kind.ignored):
        properties.setdefault(name, {"description": "Ignored."})
    schema["additionalProperties"] = {"type": "null"}


class Body(BaseModel):
    """Strict, and finite: `NaN` and `Infinity` are refused. Unknown fields are kept for
    `check_extra`. `null` always means "not given"."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, json_schema_extra=describe
    )

    unsupported: ClassVar[Mapping[str, Neutral]] = {}
    ignored: ClassVar[frozenset[str]] = frozenset()

    def check_extra(self, path: str = "") -> None:
        """Raise ApiError (400) for a field, here or further inside, that is neither honoured nor
        without effect."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in self.ignored:
                continue
            neutral = self.unsupported.get(name)
            if neutral is None:
                raise bad_request(f"Unknown field {path + name!r}.", path + name, "unknown_field")
            if value not in neutral:
                raise bad_request(
                    f"{path + name!r} is not supported.", path + name, "unsupported_field"
                )
        for name in type(self).model_fields:
            _check_inside(getattr(self, name), f"{path}{name}")


def _check_inside(value: object, path: str) -> None:
    if isinstance(value, Body):
        value.check_extra(path + ".")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, Body):
                item.check_extra(f"{path}[{index}].")
