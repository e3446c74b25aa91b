"""The OpenAPI document, and the page that is made of it."""

import re
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.metadata import version
from typing import Any, Final

import msgspec

from adapters.http.openapi.operations import OPERATIONS, PATH_PARAMETERS, Operation
from adapters.http.openapi.schemas import Schema, components, ref

DOCUMENT_PATH, PAGE_PATH = "/openapi.json", "/docs"
_PARAMETER: Final = re.compile(r"\{([a-z]+)\}")
_PROBLEM: Final = {"description": "refused", "content": {"application/problem+json": {"schema": ref("Problem")}}}
_SLASHES: Final = frozenset({"address", "key"})  # parameters that may hold some


@cache
def document() -> bytes:
    """Returns the document as JSON."""
    return msgspec.json.encode(described())


def described() -> dict[str, Any]:
    """Returns the document."""
    paths: dict[str, dict[str, Any]] = {}
    for name, operation in OPERATIONS.items():
        method, _, path = name.partition(" ")
        paths.setdefault(path, {})[method.lower()] = _described(name, path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": version("headgate"),
            "description": "Messages and CloudEvents over HTTP, into one durable log.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
    }


def _described(name: str, path: str, operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": re.sub("[^A-Za-z]+", "_", name).strip("_").lower(),
        "summary": operation.summary,
        "tags": [path.split("/")[1]],
        "responses": {
            **{str(status): _answer(status, bodies) for status, bodies in operation.answers.items()},
            "4XX": _PROBLEM,
            "5XX": _PROBLEM,
        },
    }
    parameters = [_path_parameter(one) for one in _PARAMETER.findall(path)]
    parameters += [
        {"name": one, "in": "query", "required": one in operation.required, "schema": schema}
        for one, schema in operation.query.items()
    ]
    parameters += [{"name": one, "in": "header", "schema": schema} for one, schema in operation.headers.items()]
    if parameters:
        found["parameters"] = parameters
    if operation.body:
        found["requestBody"] = {"required": not operation.empty, "content": _content(operation.body)}
    return found


def _path_parameter(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
    if name in _SLASHES:
        found["description"] = "may hold slashes, as they are or percent-encoded"
    return found


def _answer(status: int, bodies: Mapping[str, Schema]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": "done" if status < 300 else "not modified"}
    if bodies:
        found["content"] = _content(bodies)
    return found


def _content(bodies: Mapping[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in bodies.items()}


# ---- for readers


@cache
def page() -> bytes:
    """Returns the document as a page of HTML, without scripts."""
    paths = described()["paths"]
    parts = [_HEAD]
    for path, methods in paths.items():
        for method, operation in methods.items():
            parts.append(_section(method.upper(), path, operation))
    parts.append("<h2>Schemas</h2>")
    for name, schema in components().items():
        shown = escape(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
        parts.append(f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{shown}</pre></details>')
    parts.append("</main>")
    return "\n".join(parts).encode()


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<details><summary><code>{method} {escape(path)}</code> {escape(operation['summary'])}</summary>"]
    rows = [
        f"<tr><td><code>{escape(one['name'])}</code><td>{one['in']}<td>{_schema(one['schema'])}"
        for one in operation.get("parameters", ())
    ]
    if rows:
        parts.append(f"<table><tr><th>parameter<th>in<th>is{''.join(rows)}</table>")
    if (body := operation.get("requestBody")) is not None:
        parts.append(f"<p>Body: {_kinds(body['content'])}</p>")
    for status, answer in operation["responses"].items():
        parts.append(f"<p><code>{status}</code> {_kinds(answer.get('content', {}))}</p>")
    return "".join([*parts, "</details>"])


def _kinds(content: dict[str, Any]) -> str:
    return ", ".join(f"<code>{escape(kind)}</code> {_schema(one['schema'])}" for kind, one in content.items()) or "-"


def _schema(schema: Schema) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    return f"<code>{escape(msgspec.json.encode(schema).decode())}</code>" if schema else "anything"


_HEAD: Final = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Headgate over HTTP</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0; color: #1c2733; background: #fff }}
main {{ max-width: 60rem; margin: 0 auto; padding: 1rem }}
details {{ border-bottom: 1px solid #d5dde5; padding: .4rem 0 }}
summary {{ cursor: pointer }}
code, pre {{ font: 14px/1.4 ui-monospace, monospace }}
pre {{ overflow-x: auto; background: #f4f6f8; padding: .5rem }}
td, th {{ text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #dfe6ee; background: #14191f }} pre {{ background: #1d242c }} a {{ color: #7db7ff }}
}}
</style>
<main><h1>Headgate over HTTP</h1>
<p>The same as <a href="{DOCUMENT_PATH}">{DOCUMENT_PATH}</a>. Refusals are problem documents (RFC 9457).</p>"""
