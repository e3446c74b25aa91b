"""Events in the CloudEvents Avro format, written and read by fastavro."""

import io
from typing import Any

import pytest

VALUE = {"type": "map", "values": "CloudEventData"}
JSON_VALUE = {
    "type": "record",
    "name": "CloudEventData",
    "fields": [
        {
            "name": "value",
            "type": {
                "type": "map",
                "values": ["null", "boolean", VALUE, {"type": "array", "items": "CloudEventData"}, "double", "string"],
            },
        }
    ],
}
IN_MAP = ["null", "boolean", JSON_VALUE, "double", "string"]
DATA = ["bytes", "null", "boolean", {"type": "map", "values": IN_MAP}]
SCHEMA = {
    "namespace": "io.cloudevents",
    "type": "record",
    "name": "CloudEvent",
    "fields": [
        {"name": "attribute", "type": {"type": "map", "values": ["null", "boolean", "int", "string", "bytes"]}},
        {"name": "data", "type": [*DATA, {"type": "array", "items": "CloudEventData"}, "double", "string"]},
    ],
}


def written(attributes: dict[str, Any], data: Any) -> bytes:
    """Returns the bytes of an event as fastavro writes it."""
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed (`make setup`)")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), {"attribute": attributes, "data": data})
    return out.getvalue()


def heard(wire: bytes) -> dict[str, Any]:
    """Returns an event as fastavro reads it."""
    fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed (`make setup`)")
    found = fastavro.schemaless_reader(io.BytesIO(wire), fastavro.parse_schema(SCHEMA), None)
    assert isinstance(found, dict)
    return found
