"""The schemas of bodies (JSON Schema 2020-12), by the name that the document refers to them by."""

from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from gateway.port.push import DeliveryStatus, SubscriptionSpec

Schema: TypeAlias = dict[str, Any]
_REF: Final = "#/components/schemas/{name}"

STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
BOOLEAN: Final[Schema] = {"type": "boolean"}


def ref(name: str) -> Schema:
    """Returns a reference to a schema of the document."""
    return {"$ref": _REF.format(name=name)}


def array(items: Schema) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": items}


def nullable(kind: str) -> Schema:
    """Returns the schema of a value of a type, or null."""
    return {"type": [kind, "null"]}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    """Returns the schema of an object; others of its members may be anything unless `more` says otherwise."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        **more,
    }


_EVENT: Final = object_of(
    {"specversion": {"const": "1.0"}, "id": STRING, "source": STRING, "type": STRING},
    {"subject": STRING, "time": STRING, "datacontenttype": STRING, "dataschema": STRING, "data_base64": STRING},
    description="A CloudEvent in the JSON Event Format 1.0.2; extensions are further members.",
)
_RECEIPT: Final = object_of(
    {"id": nullable("string"), "position": nullable("string")},
    {"timer": STRING, "repeated": BOOLEAN},
    description="A message that is on disk: its id, its position in the log, and the timer of one for later.",
)
_FAULT: Final = object_of({"index": INTEGER, "cause": STRING, "detail": STRING}, {"attribute": STRING})
_OFFSETS: Final[Schema] = {"type": "object", "additionalProperties": INTEGER, "description": "by queue"}
_QUEUES: Final = array(INTEGER)

PLAIN: Final[dict[str, Schema]] = {
    "Problem": object_of(
        {"type": STRING, "title": STRING, "status": INTEGER, "detail": STRING},
        {"attribute": STRING, "errors": array(_FAULT)},
        description="RFC 9457",
    ),
    "Event": _EVENT,
    "Batch": array(ref("Event")),
    "Receipt": _RECEIPT,
    "Receipts": array(ref("Receipt")),
    "Addresses": array(STRING),
    "Entry": object_of(
        {"key": STRING, "revision": INTEGER, "create_revision": INTEGER, "version": INTEGER},
        {"expires_at_ms": INTEGER, "value_base64": STRING},
    ),
    "Entries": object_of({"revision": INTEGER, "entries": array(ref("Entry")), "more": BOOLEAN}),
    "Count": object_of({"count": INTEGER}),
    "Written": object_of({"revision": INTEGER, "created": BOOLEAN}),
    "Revision": object_of({"revision": INTEGER}),
    "Transaction": object_of(
        {
            "operations": array(
                object_of(
                    {},
                    {
                        "put": STRING,
                        "delete": STRING,
                        "value": STRING,
                        "value_base64": STRING,
                        "ttl_ms": INTEGER,
                        "expires_at_ms": INTEGER,
                    },
                    additionalProperties=False,
                )
            )
        },
        {"compare": array(object_of({"key": STRING, "revision": INTEGER}, additionalProperties=False))},
        additionalProperties=False,
    ),
    "Transacted": object_of({"revision": INTEGER, "existed": array(BOOLEAN)}),
    "Groups": array(object_of({"group": STRING, "topic": STRING, "strategy": STRING})),
    "Group": object_of(
        {
            "group": STRING,
            "topic": STRING,
            "strategy": STRING,
            "members": array(STRING),
            "lag": INTEGER,
            "queues": array(
                object_of(
                    {"queue": INTEGER, "offset": INTEGER, "end": INTEGER, "lag": INTEGER, "member": nullable("string")}
                )
            ),
        }
    ),
    "Join": object_of(
        {"topic": STRING},
        {
            "strategy": {"enum": ["averaged", "consistent_hash"]},
            "start": {"enum": ["earliest", "latest"]},
            "ttl_s": {"type": "integer", "minimum": 2, "maximum": 3600},
        },
        additionalProperties=False,
    ),
    "Joined": object_of({"member": STRING, "topic": STRING, "strategy": STRING, "ttl_s": INTEGER}),
    "Renewed": object_of({"ttl_s": INTEGER, "queues": _QUEUES, "revoked": _QUEUES}),
    "Polled": object_of(
        {
            "messages": array(object_of({"queue": INTEGER, "offset": INTEGER, "event": ref("Event")})),
            "after": STRING,
            "generation": INTEGER,
            "next": _OFFSETS,
            "queues": _QUEUES,
            "revoked": _QUEUES,
        }
    ),
    "Commit": object_of({}, {"after": STRING, "generation": INTEGER, "offsets": _OFFSETS}, additionalProperties=False),
    "Reset": object_of(
        {"to": {"enum": ["earliest", "latest", "timestamp", "offset"]}},
        {"timestamp": {"type": ["string", "integer"]}, "offsets": _OFFSETS, "queues": _QUEUES},
        additionalProperties=False,
    ),
    "Offsets": object_of({"offsets": _OFFSETS}),
}
PLAIN["EachAnswer"] = array(
    {
        "anyOf": [
            {"allOf": [ref("Receipt"), object_of({"status": {"const": 200}, "index": INTEGER})]},
            {"allOf": [_FAULT, object_of({"status": {"type": "integer", "minimum": 400}})]},
        ]
    }
)


@cache
def components() -> dict[str, Schema]:
    """Returns all schemas of the document."""
    _, found = msgspec.json.schema_components((SubscriptionSpec, DeliveryStatus), ref_template=_REF)
    shown = dict(found["SubscriptionSpec"])
    shown["properties"] = {**shown["properties"], "status": ref("DeliveryStatus")}
    shown["required"] = [*shown["required"], "id", "status"]
    return {**PLAIN, **found, "Subscription": shown, "Subscriptions": array(ref("Subscription"))}
