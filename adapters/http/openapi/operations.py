"""Every operation of the HTTP interface: its summary, parameters and responses.

A path names its parameters in braces; that of `/topics/` and `/kv/` may hold slashes. Errors are not named: whatever
is refused is a problem document.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from adapters.http.openapi.schemas import (
    BOOLEAN,
    COUNT,
    DELAY,
    GROUP,
    GROUP_CURSOR,
    KEY,
    NAMESPACE,
    REVISION_TAG,
    SECONDS,
    STRING,
    TEXT,
    Schema,
    array,
    ref,
)

JSON: Final = "application/json"
EVENT: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
PROTOBUF: Final = "application/cloudevents+protobuf"
AVRO: Final = "application/cloudevents+avro"
PROTOBUF_BATCH: Final = "application/cloudevents-batch+protobuf"
ANY: Final = "*/*"
STREAM: Final = "text/event-stream"

_BYTES: Final[Mapping[str, Schema]] = {ANY: {}}
_NOTHING: Final[Mapping[str, Schema]] = {}
_LIMIT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 1000}
_AFTER: Final[Mapping[str, Schema]] = {"limit": _LIMIT, "after": STRING}
_NAMESPACE: Final[Mapping[str, Schema]] = {"ns": NAMESPACE}
_PUBLISH: Final[Mapping[str, Schema]] = {
    "qos": {"enum": [0, 1, 2]},
    "retain": BOOLEAN,
    "key": TEXT,
    "expiry": SECONDS,
    "delay": DELAY,
    "reply": TEXT,
}
_WAIT: Final[Schema] = {
    "type": "string",
    "pattern": "^([0-9]|[1-5][0-9])([.][0-9]{1,3})?$",
    "description": "seconds, up to 60, to the millisecond",
}
_TTL: Final[Schema] = {
    "type": "string",
    "pattern": "^[1-9][0-9]{0,8}([.][0-9]{1,3})?$",
    "description": "seconds, over 0 and up to 1000000000, to the millisecond",
}

# The parameters of paths, by name.
PATH_PARAMETERS: Final[Mapping[str, Schema]] = {
    "address": TEXT,
    "group": GROUP,
    "id": TEXT,
    "key": KEY,
    "member": TEXT,
    "timer": TEXT,
}
_TAGGED: Final[Mapping[str, Schema]] = {"if-match": REVISION_TAG}
_CONDITIONS: Final[Mapping[str, Schema]] = {"if-match": REVISION_TAG, "if-none-match": STRING}


class Operation(NamedTuple):
    """One operation: bodies by media type, answers by status."""

    summary: str
    answers: Mapping[int, Mapping[str, Schema]]
    query: Mapping[str, Schema] = {}
    required: tuple[str, ...] = ()  # of the query
    body: Mapping[str, Schema] = {}
    headers: Mapping[str, Schema] = {}  # that a request may have
    empty: bool = False  # a request without a body is one, too


def _json(name: str) -> Mapping[str, Schema]:
    return {JSON: ref(name)}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "POST /events": Operation(
        "Publishes an event, or a batch of them, at the addresses that they name.",
        {200: {JSON: {"anyOf": [ref("Receipt"), ref("Receipts"), ref("EachAnswer")]}}, 207: _json("EachAnswer")},
        query=_PUBLISH,
        body={EVENT: ref("Event"), BATCH: ref("Batch"), PROTOBUF: {}, PROTOBUF_BATCH: {}, AVRO: {}, ANY: {}},
        headers={"idempotency-key": STRING, "prefer": STRING},
    ),
    "GET /topics": Operation(
        "Lists addresses.", {200: _json("Addresses")}, query={"prefix": STRING, "limit": _LIMIT, "after": STRING}
    ),
    "GET /topics/{address}": Operation(
        "Reads the last value of an address, or of all addresses that a filter matches.",
        {200: {ANY: {}, EVENT: ref("Event"), BATCH: ref("Batch"), PROTOBUF: {}, AVRO: {}}, 304: _NOTHING},
        query=_AFTER,
        headers={"if-none-match": STRING},
    ),
    "POST /topics/{address}": Operation(
        "Publishes a message to an address; with `Prefer: wait=SECONDS` the response is the answer to it.",
        {200: {ANY: {}, EVENT: ref("Event"), PROTOBUF: {}, AVRO: {}}, 201: _json("Receipt"), 202: _json("Accepted")},
        query=_PUBLISH,
        body={ANY: {}},
        empty=True,
        headers=dict.fromkeys(("idempotency-key", "if-match", "if-none-match", "prefer"), STRING),
    ),
    "DELETE /timers/{timer}": Operation("Cancels a delayed message.", {204: _NOTHING}),
    "GET /subscribe": Operation(
        "Streams messages published to addresses that the filters match.",
        {200: {STREAM: STRING}},
        query={
            "filter": {**array(TEXT), "minItems": 1, "maxItems": 64},
            "where": TEXT,
            "type": TEXT,
        },
        required=("filter",),
        headers={"last-event-id": STRING},
    ),
    "GET /messages": Operation(
        "Finds stored messages by id, key or address, newest first; of a queue, from an offset on, oldest first.",
        {200: {BATCH: ref("Batch")}},
        query={
            **dict.fromkeys(("id", "key", "from", "to", "where", "type"), TEXT),
            "address": {**array(TEXT), "minItems": 1, "maxItems": 64},
            **dict.fromkeys(("queue", "offset"), COUNT),
            "after": {"type": "string", "pattern": "^([0-9a-f]{1,16}[.][0-9a-f]{1,8}|[A-Za-z0-9_-]{54}|[0-9]{1,18})$"},
            "limit": _LIMIT,
            "wait": _WAIT,
        },
    ),
    "GET /kv": Operation(
        "Lists keys and values of a namespace, counts them, or watches them.",
        {200: {JSON: {"anyOf": [ref("Entries"), ref("Count")]}, STREAM: STRING}},
        query={
            **_NAMESPACE,
            **dict.fromkeys(("prefix", "start", "end", "after"), STRING),
            "limit": _LIMIT,
            **dict.fromkeys(("revision", "from"), COUNT),
            **dict.fromkeys(("keys", "count", "watch"), BOOLEAN),
        },
        headers={"last-event-id": STRING},
    ),
    "POST /kv": Operation(
        "Does several changes as one, if several keys are as expected.",
        {200: _json("Transacted")},
        query=_NAMESPACE,
        body=_json("Transaction"),
    ),
    "GET /kv/{key}": Operation(
        "Reads a value.", {200: _BYTES, 304: _NOTHING}, query=_NAMESPACE, headers={"if-none-match": STRING}
    ),
    "PUT /kv/{key}": Operation(
        "Stores a value.",
        {200: _json("Written"), 201: _json("Written")},
        query={**_NAMESPACE, "ttl": _TTL},
        body={ANY: {}},
        empty=True,
        headers=_CONDITIONS,
    ),
    "DELETE /kv/{key}": Operation("Deletes a key.", {204: _NOTHING}, query=_NAMESPACE, headers=_TAGGED),
    "POST /kv-holds": Operation("Holds the state of the keys as it is now.", {201: _json("Revision")}),
    "DELETE /kv-holds": Operation(
        "Lets go of a state that is held.", {204: _NOTHING}, query={"revision": COUNT}, required=("revision",)
    ),
    "GET /groups": Operation("Lists consumer groups.", {200: _json("Groups")}, query=_AFTER),
    "GET /groups/{group}": Operation("Shows a consumer group.", {200: _json("Group")}),
    "PUT /groups/{group}": Operation(
        "Creates a consumer group that leases messages one by one.",
        {200: _json("LeaseGroup"), 201: _json("LeaseGroup")},
        body=_json("LeaseGroupSpec"),
    ),
    "DELETE /groups/{group}": Operation("Forgets a consumer group without members.", {204: _NOTHING}),
    "POST /groups/{group}/receive": Operation(
        "Leases messages of a group.",
        {200: {JSON: ref("Received"), BATCH: ref("Batch")}},
        body=_json("Receive"),
        empty=True,
    ),
    "POST /groups/{group}/ack": Operation(
        "Settles messages that were received.",
        {200: _json("HandleAnswers"), 207: _json("HandleAnswers")},
        body=_json("Acknowledge"),
    ),
    "POST /groups/{group}/nack": Operation(
        "Gives back messages that were received, to be leased again.",
        {200: _json("HandleAnswers"), 207: _json("HandleAnswers")},
        body=_json("Return"),
    ),
    "POST /groups/{group}/extend": Operation(
        "Lets leases of messages last longer.",
        {200: _json("HandleAnswers"), 207: _json("HandleAnswers")},
        body=_json("Extend"),
    ),
    "POST /groups/{group}/members": Operation("Joins a consumer group.", {201: _json("Joined")}, body=_json("Join")),
    "POST /groups/{group}/reset": Operation(
        "Has a consumer group go on somewhere else.", {200: _json("Offsets")}, body=_json("Reset")
    ),
    "PUT /groups/{group}/members/{member}": Operation("Says that a member is still there.", {200: _json("Renewed")}),
    "DELETE /groups/{group}/members/{member}": Operation("Leaves a consumer group.", {204: _NOTHING}),
    "GET /groups/{group}/members/{member}/messages": Operation(
        "Reads messages of a member's queues.",
        {200: {JSON: ref("Polled"), BATCH: ref("Batch")}},
        query={"max": _LIMIT, "wait": _WAIT, "after": GROUP_CURSOR},
    ),
    "POST /groups/{group}/members/{member}/commit": Operation(
        "Commits a member's offsets.", {200: _json("Offsets")}, body=_json("Commit")
    ),
    "GET /subscriptions": Operation(
        "Lists subscriptions with sinks.",
        {200: _json("Subscriptions")},
        query={"limit": {"type": "integer", "minimum": 1, "maximum": 500}, "after": STRING},
    ),
    "POST /subscriptions": Operation(
        "Creates a subscription, whose events are delivered to a sink.",
        {201: _json("Subscription")},
        body=_json("SubscriptionSpec"),
    ),
    "GET /subscriptions/{id}": Operation(
        "Shows a subscription and its status.",
        {200: _json("Subscription"), 304: _NOTHING},
        headers=_CONDITIONS,
    ),
    "PUT /subscriptions/{id}": Operation(
        "Replaces a subscription, which goes on where it is.",
        {200: _json("Subscription")},
        body=_json("SubscriptionUpdate"),
        headers=_CONDITIONS,
    ),
    "DELETE /subscriptions/{id}": Operation("Ends a subscription.", {200: _json("Subscription")}, headers=_CONDITIONS),
    "POST /subscriptions/{id}/pause": Operation("Stops deliveries.", {200: _json("Subscription")}, headers=_CONDITIONS),
    "POST /subscriptions/{id}/resume": Operation(
        "Goes on with deliveries where they stopped.", {200: _json("Subscription")}, headers=_CONDITIONS
    ),
    "GET /openapi.json": Operation("Describes this interface, in OpenAPI 3.1.", {200: {JSON: {"type": "object"}}}),
    "GET /docs": Operation("Describes this interface, for readers.", {200: {"text/html": STRING}}),
}
