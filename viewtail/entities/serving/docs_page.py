"""Makes the page at /docs: the OpenAPI document for people. It loads nothing from anywhere, and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import orjson

HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#f4f4f4;padding:.7rem;overflow:auto;font-size:13px}code{font-size:.95em}"
    "h2{border-top:1px solid #ccc;padding-top:1rem;font-size:1.1rem}td,th{text-align:left;padding:.1rem .8rem .1rem 0;"
    "vertical-align:top}.m{color:#555}"
)


def page(document: Mapping[str, Any]) -> bytes:
    """Return the page as HTML."""
    title = escape(document["info"]["title"])
    body = "".join(_operations(document))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>Version {escape(document['info']['version'])}. "
        'For programs: <a href="openapi.json">openapi.json</a></p>'
        f"{body}</body></html>"
    ).encode()


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, item in document["paths"].items():
        for method in ("get", "post"):
            if method in item:
                yield from _operation(document, method, path, item[method], item.get("parameters", []))


def _operation(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any], shared: list[Any]
) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    told = operation.get("description") or operation.get("summary", "")
    yield "".join(f"<p>{escape(part)}</p>" for part in told.split("\n\n"))
    parameters = [*shared, *operation.get("parameters", [])]
    if parameters:
        rows = (
            f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{parameter['in']}"
            f"{', required' * bool(parameter.get('required'))}</td>"
            f"<td>{escape(parameter.get('description', ''))}</td></tr>"
            for parameter in parameters
        )
        yield f"<table>{''.join(rows)}</table>"
    if "requestBody" in operation:
        yield "<p class=m>Request, as JSON Schema:</p>"
        schemas = _with_parts(document, operation["requestBody"]["content"]["application/json"]["schema"])
        for name, schema in schemas.items():
            yield f"<p class=m>{escape(name)}</p>" if name else ""
            yield f"<pre>{escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())}</pre>"
    rows = (f"<tr><td>{status}</td><td>{escape(of['description'])}</td></tr>" for status, of in _answers(operation))
    yield f"<table>{''.join(rows)}</table>"


def _answers(operation: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(operation["responses"].items())


def _with_parts(document: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return a schema under '', and by their names those of the components that it refers to."""
    parts: dict[str, Any] = {"": schema}
    waiting = [schema]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in parts:
                parts[name] = document["components"]["schemas"][name]
                waiting.append(parts[name])
    return parts


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for part in schema.values():
            yield from _references(part)
