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
TEXT: Final[Schema] = {"type": "string", "minLength": 1}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
GROUP: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
NAMESPACE: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,27}$"}
KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 480, "description": "at most 480 bytes in UTF-8"}
GROUP_CURSOR: Final[Schema] = {"type": "string", "pattern": "^[0-9]{1,18}(~[0-9]{1,9}[.][0-9]{1,18})*$"}
SECONDS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**9, "description": "seconds"}
DELAY: Final[Schema] = {**SECONDS, "maximum": 400 * 86_400}
REVISION_TAG: Final[Schema] = {"type": "string", "pattern": '^("[1-9][0-9]{0,17}"(, "[1-9][0-9]{0,17}")*|[*])$'}


def ref(name: str) -> Schema:
    """Returns a reference to a schema of the document."""
    return {"$ref": _REF.format(name=name)}


def array(items: Schema) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": items}


def nullable(kind: str) -> Schema:
    """Returns the schema of a value of a type, or null."""
    return {"type": [kind, "null"]}


def _unset(schema: Schema) -> Schema:
    """Returns the schema of an attribute that an event may have: null stands for none (JSON Event Format, 2.2)."""
    return {"anyOf": [schema, {"type": "null"}]}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    """Returns the schema of an object; others of its members may be anything unless `more` says otherwise."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        **more,
    }


_EXTENSION: Final[Schema] = {"type": ["string", "boolean", "integer", "null"]}
_EVENT: Final = object_of(
    {"specversion": {"const": "1.0"}, "id": TEXT, "source": {**TEXT, "format": "uri-reference"}, "type": TEXT},
    {
        "subject": _unset(TEXT),
        "time": _unset({"type": "string", "format": "date-time"}),
        "datacontenttype": _unset({"type": "string", "pattern": "^[a-z]+/[A-Za-z0-9.+-]+( *;.*)?$"}),
        "dataschema": _unset({**TEXT, "format": "uri"}),
        "data": {},
        "data_base64": _unset(STRING),
    },
    propertyNames={"anyOf": [{"pattern": "^[a-z0-9]+$"}, {"const": "data_base64"}]},
    additionalProperties=_EXTENSION,
    description="A CloudEvent in the JSON Event Format 1.0.2; further members are its extensions.",
)
_RECEIPT: Final = object_of(
    {"id": nullable("string"), "position": nullable("string")},
    {"timer": STRING, "repeated": BOOLEAN},
    description="A message that is on disk: its id, its position in the log, and the timer of one for later.",
)
_FAULT: Final = object_of({"index": INTEGER, "cause": STRING, "detail": STRING}, {"attribute": STRING})
_OFFSETS: Final[Schema] = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": COUNT,
    "description": "by queue",
}
_QUEUE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1}
_QUEUES: Final = array(_QUEUE)
_TIME_MS: Final[Schema] = {"type": ["integer", "null"], "minimum": 1, "maximum": (1 << 62) - 1}
_SOME: Final[Schema] = {"queues": _QUEUES}  # of a group

_LEASE_S: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 43_200}
_MAYBE_LEASE_S: Final[Schema] = {**_LEASE_S, "type": ["integer", "null"]}
_RETRY_S: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 86_400}
_HANDLES: Final[Schema] = {**array(STRING), "maxItems": 1_000}
_TOPIC: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 1024}

_ATTRIBUTES: Final[Schema] = {
    "type": "object",
    "propertyNames": {"pattern": "^[a-z0-9]+$"},
    "additionalProperties": TEXT,
    "minProperties": 1,
}
_PUTS: Final = [
    object_of({"put": KEY, value: STRING}, time, additionalProperties=False)
    for value in ("value", "value_base64")
    for time in ({"ttl_ms": _TIME_MS}, {"expires_at_ms": _TIME_MS})
]

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
    "Accepted": {
        "allOf": [
            ref("Receipt"),
            object_of({"replyto": STRING}, {"correlationid": STRING, "correlationdata": STRING}),
        ],
        "description": "where the answer is to come, and its correlation, in Base64 where it is no text",
    },
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
        {"operations": array({"anyOf": [*_PUTS, object_of({"delete": KEY}, additionalProperties=False)]})},
        {
            "compare": array(
                object_of(
                    {"key": KEY, "revision": {"type": "integer", "minimum": -1, "maximum": COUNT["maximum"]}},
                    additionalProperties=False,
                )
            )
        },
        additionalProperties=False,
        description="Each key is compared once, and changed once.",
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
        {"topic": {"type": "string", "minLength": 1, "maxLength": 1024}},
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
    "Commit": {
        "anyOf": [
            object_of({"after": GROUP_CURSOR}, additionalProperties=False),
            object_of({"generation": COUNT, "offsets": _OFFSETS}, additionalProperties=False),
        ]
    },
    "Reset": {
        "anyOf": [
            object_of({"to": {"enum": ["earliest", "latest"]}}, _SOME, additionalProperties=False),
            object_of(
                {
                    "to": {"const": "timestamp"},
                    "timestamp": {"anyOf": [INTEGER, {"type": "string", "format": "date-time"}]},
                },
                _SOME,
                additionalProperties=False,
            ),
            object_of({"to": {"const": "offset"}, "offsets": _OFFSETS}, additionalProperties=False),
        ]
    },
    "Offsets": object_of({"offsets": _OFFSETS}),
    "LeaseGroupSpec": object_of(
        {"topic": _TOPIC},
        {
            "start": {"enum": ["earliest", "latest"]},
            "lease_s": _LEASE_S,
            "attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000},
            "dead_letter": {"type": ["string", "null"], "pattern": "^[^+#\\x00]+$"},
            "retry_s": _RETRY_S,
            "retry_max_s": _RETRY_S,
            "ordered": BOOLEAN,
        },
        additionalProperties=False,
        dependentRequired={"attempts": ["dead_letter"], "dead_letter": ["attempts"]},
    ),
    "LeaseGroup": object_of({"group": STRING, "topic": STRING, "terms": {"type": "object"}}),
    "Receive": object_of(
        {},
        {
            "max": {"type": "integer", "minimum": 1, "maximum": 1_000},
            "wait": {"type": "number", "minimum": 0, "maximum": 60},
            "lease_s": _MAYBE_LEASE_S,
        },
        additionalProperties=False,
    ),
    "Received": object_of(
        {
            "messages": array(
                object_of(
                    {
                        "queue": INTEGER,
                        "offset": INTEGER,
                        "deliveries": INTEGER,
                        "handle": STRING,
                        "event": ref("Event"),
                    }
                )
            )
        }
    ),
    "Acknowledge": object_of({"handles": _HANDLES}, additionalProperties=False),
    "Return": object_of(
        {"handles": _HANDLES},
        {"delay_s": {**_RETRY_S, "type": ["integer", "null"]}},
        additionalProperties=False,
    ),
    "Extend": object_of({"handles": _HANDLES}, {"lease_s": _MAYBE_LEASE_S}, additionalProperties=False),
    "HandleAnswers": object_of(
        {
            "done": INTEGER,
            "refused": array(object_of({"index": INTEGER, "status": INTEGER, "cause": STRING, "detail": STRING})),
        },
        {"handles": array(nullable("string"))},
        description="An answer for each handle: how many were done, and which were refused, and why.",
    ),
    "Filter": {
        "anyOf": [
            *(object_of({name: _ATTRIBUTES}, additionalProperties=False) for name in ("exact", "prefix", "suffix")),
            *(
                object_of({name: {**array(ref("Filter")), "minItems": 1}}, additionalProperties=False)
                for name in ("all", "any")
            ),
            object_of({"not": ref("Filter")}, additionalProperties=False),
            object_of({"sql": TEXT}, additionalProperties=False),
        ],
        "description": "CloudEvents Subscriptions API, 3.2.4; `sql` is an expression of CESQL 1.0",
    },
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
    spec = found["SubscriptionSpec"]["properties"]
    spec["protocol"] = {"const": "HTTP"}
    spec["sink"] = {"type": "string", "format": "uri", "pattern": "^https?://", "maxLength": 2048}
    spec["filters"] = {**array(ref("Filter")), "default": []}
    shown = dict(found["SubscriptionSpec"])
    shown["properties"] = {**shown["properties"], "status": ref("DeliveryStatus")}
    shown["required"] = [*shown["required"], "id", "status"]
    changed = dict(found["SubscriptionSpec"])
    changed["properties"] = {**changed["properties"], "status": {"description": "as it was shown, or anything else"}}
    return {
        **PLAIN,
        **found,
        "Subscription": shown,
        "SubscriptionUpdate": changed,
        "Subscriptions": array(ref("Subscription")),
    }
