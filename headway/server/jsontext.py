"""JSON as it goes over the wire: UTF-8, no spaces, no NaN."""

import json
from json.encoder import encode_basestring

Json = dict[str, object]


def dumps(value: object) -> str:
    """The value as compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def quoted(text: str) -> str:
    """A JSON string, quotes included; several times faster than `dumps`."""
    return encode_basestring(text)
