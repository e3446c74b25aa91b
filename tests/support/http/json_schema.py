"""A check of JSON against the part of JSON Schema 2020-12 that the OpenAPI document uses."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

KEYWORDS = {
    "$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum", "format", "items",
    "maxItems", "maxLength", "maximum", "minItems", "minLength", "minProperties", "minimum", "pattern", "properties",
    "propertyNames", "required", "title", "type",
}  # fmt: skip
BOUNDS = ("minimum", "maximum")
SIZES: dict[type, tuple[str, ...]] = {
    str: ("minLength", "maxLength"), list: ("minItems", "maxItems"), dict: ("minProperties",),
}  # fmt: skip
KINDS: dict[str, Any] = {
    "string": str, "object": dict, "array": list, "null": type(None), "boolean": bool, "number": (int, float),
    "integer": int,
}  # fmt: skip


def mistakes(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any], at: str = "$") -> Iterator[str]:
    """Yields what is wrong with a value; a keyword that is not known here is wrong, too."""
    if unknown := schema.keys() - KEYWORDS:
        yield f"{at}: the schema has {sorted(unknown)}"
    if "$ref" in schema:
        yield from mistakes(value, schemas[schema["$ref"].rpartition("/")[2]], schemas, at)
    for one in schema.get("allOf", ()):
        yield from mistakes(value, one, schemas, at)
    if "anyOf" in schema:
        found = [list(mistakes(value, one, schemas, at)) for one in schema["anyOf"]]
        if all(found):
            yield min(found, key=len)[0]
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{at}: {value!r} is no {kinds}"
        return
    if isinstance(value, int | float):
        yield from (f"{at}: {value} breaks {name} {schema[name]}" for name in BOUNDS if _beyond(value, name, schema))
    if isinstance(value, str | list | dict):
        sizes = ((name, len(value), schema.get(name)) for name in SIZES[type(value)])
        for name, size, bound in sizes:
            if bound is not None and (size < bound if name.startswith("min") else size > bound):
                yield f"{at}: {size} breaks {name} {bound}"
    if isinstance(value, str) and re.search(schema.get("pattern", ""), value) is None:
        yield f"{at}: {value!r} is not {schema['pattern']}"
    if isinstance(value, dict):
        yield from _members(value, schema, schemas, at)
    if isinstance(value, list) and "items" in schema:
        for index, one in enumerate(value):
            yield from mistakes(one, schema["items"], schemas, f"{at}[{index}]")


def _beyond(value: float, name: str, schema: Mapping[str, Any]) -> bool:
    bound = schema.get(name)
    return bound is not None and (value < bound if name == "minimum" else value > bound)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, KINDS[kind])


def _members(value: Mapping[str, Any], schema: Mapping[str, Any], schemas: Mapping[str, Any], at: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: {name} is missing"
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, one in value.items():
        yield from mistakes(name, schema.get("propertyNames", {}), schemas, f"{at}: the name {name}")
        if name in known:
            yield from mistakes(one, known[name], schemas, f"{at}.{name}")
        elif more is False:
            yield f"{at}: {name} is not known"
        elif isinstance(more, dict):
            yield from mistakes(one, more, schemas, f"{at}.{name}")
