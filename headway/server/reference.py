"""GET /docs: the OpenAPI document as a page. It has no script, and loads nothing."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.responses import HTMLResponse, Response

Document = Mapping[str, Any]

REFERENCE_PATH = "/docs"

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; font-weight: 600; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid #8886; }
"""

_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "style-src 'sha256-"
        + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
        + "'"
    ),
    "X-Content-Type-Options": "nosniff",
}


def reference(document: Document) -> Response:
    """The page of a document."""
    return HTMLResponse("\n".join(_page(document)), headers=_HEADERS)


def _page(document: Document) -> Iterator[str]:
    title = escape(f"{document['info']['title']} API")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{_STYLE}</style></head><body><main><h1>{title}</h1>"
    yield '<p>From <a href="openapi.json">openapi.json</a>, for machines.</p><ul>'
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for name, _ in operations:
        yield f'<li><a href="#{_anchor(name)}"><code>{escape(name)}</code></a></li>'
    yield "</ul>"
    for name, operation in operations:
        yield f'<h2 id="{_anchor(name)}"><code>{escape(name)}</code></h2>'
        yield from _operation(operation)
    yield "<h2>Bodies and answers</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield "</main></body></html>"


def _operation(operation: Document) -> Iterator[str]:
    if about := operation.get("description"):
        yield f"<p>{escape(about)}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield from _table(
            "Parameters",
            [
                (f"{p['name']} ({p['in']})", _type(p["schema"]), p.get("description", ""))
                for p in parameters
            ],
        )
    body = operation.get("requestBody")
    if body is not None:
        yield f"<p>Body: {_content(body['content'])}</p>"
    answers = operation["responses"].items()
    rows = [
        (status, _content(answer.get("content", {})), answer["description"])
        for status, answer in answers
    ]
    yield from _table("Answers", rows)


def _schema(name: str, schema: Document) -> Iterator[str]:
    yield f'<h3 id="{_anchor(name)}"><code>{escape(name)}</code></h3>'
    if about := schema.get("description"):
        yield f"<p>{escape(about)}</p>"
    properties = schema.get("properties")
    if properties is None:
        yield f"<p>{_type(schema)}</p>"
        return
    required = schema.get("required", [])
    rows = []
    for field, kind in properties.items():
        need = "required" if field in required else ""
        rows.append((field, _type(kind), " ".join(filter(None, [need, kind.get("description")]))))
    yield from _table("Fields", rows)


def _table(caption: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """Rows of a name and a remark as they are, and of a type that is HTML already."""
    yield f"<table><caption>{caption}</caption>"
    for name, kind, remark in rows:
        yield f"<tr><th><code>{escape(name)}</code></th>"
        yield f"<td>{kind}</td><td>{escape(remark)}</td></tr>"
    yield "</table>"


def _content(content: Document) -> str:
    kinds = [f"{escape(media)} {_type(form.get('schema', {}))}" for media, form in content.items()]
    return "<br>".join(kinds)


def _type(schema: Document) -> str:
    """A schema as HTML: names as links, the rest as JSON without what is said elsewhere."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{_anchor(name)}"><code>{escape(name)}</code></a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(_type, schema[several]))
    if schema.get("type") == "array" and "items" in schema:
        limits = {k: v for k, v in schema.items() if k in ("minItems", "maxItems")}
        return f"list of {_type(schema['items'])}{_rest(limits)}"
    kind = schema.get("type", "")
    aside = ("type", "title", "description", "properties", "required", "default", "items")
    return escape(str(kind)) + _rest({k: v for k, v in schema.items() if k not in aside})


def _rest(fields: Document) -> str:
    return f" <code>{escape(json.dumps(fields))}</code>" if fields else ""


def _anchor(name: str) -> str:
    return escape("".join(c if c.isalnum() else "-" for c in name))
