"""The part that the clients of all protocols have in common.

Both sides run the gateway's own adapter; the client's side is written with codecs that are not the gateway's: paho's
properties, aiocoap's messages, pamqp's frames, the standard library's JSON and percent-encoding.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from adapters.cloudevents.attributes import named_address
from gateway.domain.batch import Batch
from store.api.message import Message
from tests.property.conversions.conversions_said import Said, time_of

FRAME = 4096  # where the log has put the message


class Heard(NamedTuple):
    """A message as a client was shown it."""

    rows: dict[str, Any]
    own: dict[str, Any]


class ProtocolClient:
    """A client of one protocol. `column` names what it is shown in the table."""

    column: str
    verbatim = False  # its messages come back to it byte for byte, with no additions

    def say(self, said: Said) -> tuple[Message, dict[str, Any]]:
        """Returns the message that the adapter makes of the client's bytes, and what should come back of them."""
        raise NotImplementedError

    def hear(self, batch: Batch, now_ms: int) -> Heard:
        """Returns a batch's one message as the client is shown it."""
        raise NotImplementedError

    def speaker(self, said: Said) -> str | None:
        """Returns the device to which this client's messages belong."""
        del said
        return None

    def column_of(self, said: Said) -> str:
        """Returns the column of the table for a message."""
        del said
        return self.column


def stamp(time_ms: int) -> str:
    """Returns an RFC 3339 timestamp, written as the gateway writes it."""
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    return text.replace(".000", "").replace("+00:00", "Z")


def put(rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Adds the fields that are there."""
    rows.update((name, value) for name, value in fields.items() if value is not None)
    return rows


# ---- the attributes of events, as every binding of CloudEvents shows them

_NOT_EXTENSIONS = {"specversion", "id", "source", "type", "time", "subject", "dataschema", "partitionkey"}
_NOT_EXTENSIONS |= {"expirytime", "correlationid", "traceparent", "contentencoding", "datacontenttype", "replyto"}
_NOT_EXTENSIONS.add("correlationdata")
_OF_DOCUMENTS = {"datacontenttype", "contentencoding", "replyto", "correlationdata"}


def without_ours(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns attributes without those that the gateway alone sets."""
    ours = {"headgateaddress", "headgateproperties", "headgateomitted"}
    return {n: value for n, value in attributes.items() if n not in ours}


def rows_of_attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that attributes show; the address of an event is one of them, and no attribute of its own."""
    attributes = without_ours(found)
    get = attributes.get
    correlation = get("correlationid")
    rows = put(
        {"attributes": {n: v for n, v in attributes.items() if n not in _OF_DOCUMENTS}},
        id=get("id"),
        key=get("partitionkey"),
        type=get("type"),
        time_ms=time_of(get("time")) if get("time") is not None else None,
        expires_at_ms=time_of(get("expirytime")) if get("expirytime") is not None else None,
        correlation=correlation.encode() if correlation is not None else None,
        traceparent=get("traceparent"),
    )
    rows["properties"] = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in attributes.items()
        if name not in _NOT_EXTENSIONS
    ]
    rows["properties"] += [tuple(pair) for pair in json.loads(found.get("headgateproperties", "[]"))]
    return rows


def heard_document(document: dict[str, Any]) -> Heard:
    """Returns the fields that an event as JSON shows."""
    left = dict(document)
    data = {name: left.pop(name) for name in ("data", "data_base64") if name in left}
    rows = rows_of_attributes(left)
    put(rows, content_type=left.get("datacontenttype"), content_encoding=left.get("contentencoding"))
    rows["body"] = data
    put(rows, address=left.get("headgateaddress") or named_address(left.get("subject"), left["type"]))
    return Heard(rows, {"document": without_ours(document)})
