"""Messages that one protocol publishes are read by every protocol, with the fields that have a place there.

Messages go from bytes to bytes by every ordered pair of protocols: a client says one, its adapter reads it, the log
keeps it, and the other client's adapter shows it some time later. The table says what is shown of each field.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from gateway.domain.address import from_routing_key
from gateway.domain.batch import Batch
from store.api.message import Message, decode, encode
from store.format.frame import FIRST_QUEUE, LogOffset
from tests.property.conversions.conversions_amqp import Amqp
from tests.property.conversions.conversions_client import FRAME, ProtocolClient
from tests.property.conversions.conversions_coap import Coap
from tests.property.conversions.conversions_http import EventBinary, EventJson, Http
from tests.property.conversions.conversions_mqtt import MqttProtocols
from tests.property.conversions.conversions_said import FORMATS, NOW_MS, SAYINGS, SPENT_MS_MAX, Said
from tests.support.process.examples import examples

CLIENTS: dict[str, ProtocolClient] = {
    "mqtt-3.1.1": MqttProtocols(4),
    "mqtt-5": MqttProtocols(5),
    "coap": Coap(),
    "http": Http(),
    "event-binary": EventBinary(),
    "event-json": EventJson(),
    "amqp": Amqp(),
}

# A row is a field, a column what a client is shown. "-": there is no place for it. "same": as it was said, or filled
# in for a sender that did not say it. Other words are the functions below. The columns of HTTP are a message in
# headers and body, and an event as JSON; CoAP shows the body as it is, and on request the event as JSON. A client of
# MQTT 3.1.1 is shown no properties: a plain message as its body, an event as JSON.
TABLE = """
                 | mqtt-3.1.1 | 3.1.1 event  | mqtt-5        | coap          | http         | json         | amqp
address          | same       | same         | same          | same          | same         | same         | same
id               | -          | same         | if AMQP's     | same          | same         | same         | same
key              | -          | same         | same          | same          | same         | same         | same
type             | -          | same         | same          | or default    | or default   | or default   | same
content_type     | -          | same         | or implied    | by its number | or implied   | same         | or implied
content_encoding | -          | same         | same          | with a number | same         | same         | same
time_ms          | -          | of the event | unless MQTT's | of the event  | of the event | of the event | same
device           | -          | -            | -             | -             | -            | -            | same
qos              | same       | same         | same          | -             | -            | -            | 0 or 1
retain           | -          | -            | if set        | -             | -            | -            | if set
expires_at_ms    | -          | same         | seconds left  | same          | same         | same         | time left
deliver_at_ms    | -          | -            | -             | -             | -            | -            | time left
reply_to         | -          | -            | same          | -             | same         | -            | same
correlation      | -          | text         | same          | text          | same         | text         | same
traceparent      | -          | same         | same          | same          | same         | same         | same
properties       | -          | and others   | same          | and others    | and x-lot    | and others   | numbered
body             | same       | data         | same          | same          | same         | data         | same
attributes       | -          | typed        | as text       | typed         | as text      | typed        | typed
"""


class Told(NamedTuple):
    """The facts that a cell is worked out from."""

    said: Said
    source: str
    now_ms: int


def or_default(value: str | None, _: Told) -> str:
    """Returns an event's type, which is never empty."""
    return value or "headgate.message.v1"


def of_the_event(value: int, told: Told) -> int | None:
    """Returns the time of arrival for a message that was no event, and nothing for an event without a time."""
    return None if told.said.event is not None and told.said.time_ms is None else value


def unless_mqtts(value: int, told: Told) -> int | None:
    """Returns no time for what came by MQTT without one; an event has a time in any case."""
    return None if told.said.time_ms is None and told.source.startswith("mqtt") else of_the_event(value, told)


def or_implied(value: str | None, told: Told) -> str | None:
    """Returns JSON for data in a JSON event without a type; all other forms say their type."""
    in_json = told.source == "event-json" and told.said.native is not None and told.said.native[0] == "data"
    return "application/json" if value is None and in_json else value


def by_its_number(value: str | None, told: Told) -> str | None:
    """Returns the type that the number for a type and a coding tells; some pairs have no number."""
    kind = spelled_out(or_implied(value, told))
    return kind if (kind, told.said.content_encoding) in FORMATS else None


def with_a_number(value: str | None, told: Told) -> str | None:
    """Returns the value where one number of CoAP stands for media type and coding, or else nothing."""
    return value if (spelled_out(told.said.content_type), told.said.content_encoding) in FORMATS else None


def spelled_out(content_type: str | None) -> str | None:
    """Returns the media type with the charset that CoAP's number for text implies."""
    return "text/plain; charset=utf-8" if content_type == "text/plain" else content_type


def text(value: bytes | None, _: Told) -> bytes | None:
    """Returns the value where an attribute can hold it: text that is not empty and has no control characters."""
    if not value:
        return None
    decoded = value.decode(errors="replace")
    fit = all(ord(char) >= 0x20 and not 0x7F <= ord(char) < 0xA0 for char in decoded)
    return value if fit and decoded.encode() == value else None


NOT_FREE = {"subject", "source", "data"}  # names of attributes, and one that none may have


def attributes(pairs: tuple[tuple[str, str], ...], _: Told) -> list[tuple[str, str]]:
    """Returns the properties whose names may be attributes; of each name the first."""
    fit = {name for name, _ in pairs if name.isascii() and name.isalnum() and name.islower()} - NOT_FREE
    return [(name, next(text for n, text in pairs if n == name)) for name in dict(pairs) if name in fit]


def and_others(pairs: tuple[tuple[str, str], ...], told: Told) -> list[tuple[str, str]]:
    """Returns the same, and then the other properties and the repeats in their order, which stand in one attribute."""
    said = attributes(pairs, told)
    left = dict(said)
    return said + [(name, text) for name, text in pairs if left.pop(name, None) is None]


def and_x_lot(pairs: tuple[tuple[str, str], ...], told: Told) -> list[tuple[str, str]]:
    """Returns the same, with all repeats of the header that the gateway is told to keep."""
    return and_others(pairs, told) + [pair for pair in pairs if pair[0] == "x-lot"]


def numbered(pairs: tuple[tuple[str, str], ...], _: Told) -> list[tuple[str, str]]:
    """Returns properties with numbered repeats, because a table holds each name once."""
    counts = [sum(1 for other, _ in pairs[: at + 1] if other == name) for at, (name, _) in enumerate(pairs)]
    return [(n if count == 1 else f"{n}.{count}", text) for (n, text), count in zip(pairs, counts, strict=True)]


def data(body: bytes, told: Told) -> dict[str, Any]:
    """Returns the data of an event: JSON as it is, all else in Base64, and data from a JSON event as it stood there."""
    said = told.said
    if said.native is not None and told.source == "event-json":
        return {said.native[0]: said.native[1]}
    if not body:
        return {}
    if said.content_type in {None, "application/json"} and said.content_encoding is None:
        try:
            return {"data": json.loads(body)}
        except ValueError:
            pass
    return {"data_base64": b64encode(body).decode()}


def typed(event: dict[str, Any] | None, told: Told) -> dict[str, Any] | None:
    """Returns an event's attributes; a message that was no event gets some, which the other rows describe."""
    del told
    return event


def as_text(event: dict[str, Any] | None, _: Told) -> dict[str, str] | None:
    """Returns the attributes as text, for a form in which they have no types."""
    return event and {n: value if isinstance(value, str) else json.dumps(value) for n, value in event.items()}


CELLS: dict[str, Callable[[Any, Told], Any]] = {
    "-": lambda _value, _: None,
    "same": lambda value, _: list(value) if isinstance(value, tuple) else value,
    "if AMQP's": lambda value, told: value if told.said.event or (told.source == "amqp" and told.said.id) else None,
    "or default": or_default,
    "of the event": of_the_event,
    "unless MQTT's": unless_mqtts,
    "with a number": with_a_number,
    "by its number": by_its_number,
    "or implied": or_implied,
    "0 or 1": lambda qos, _: min(qos, 1),
    "if set": lambda value, _: value or None,
    "seconds left": lambda at_ms, told: None if at_ms is None else -(-(at_ms - told.now_ms) // 1000) * 1000,
    "time left": lambda at_ms, told: None if at_ms is None else at_ms - told.now_ms,
    "text": text,
    "and others": and_others,
    "and x-lot": and_x_lot,
    "numbered": numbered,
    "data": data,
    "typed": typed,
    "as text": as_text,
}

HEAD, *ROWS = ([cell.strip() for cell in line.split("|")] for line in TABLE.strip("\n").splitlines())
COLUMNS = {column: {row[0]: CELLS[row[at]] for row in ROWS} for at, column in enumerate(HEAD) if at}


def fields_of(said: Said, device: str | None) -> dict[str, Any]:
    """Returns every field of a message in the log: the ones that were said, and the ones that are filled in."""
    return {
        **{name: getattr(said, name) for name in ("address", "key", "type", "content_type", "content_encoding")},
        **{name: getattr(said, name) for name in ("qos", "retain", "correlation", "traceparent")},
        "id": said.id or f"{FRAME:x}.0",
        "reply_to": said.reply_to or answers_in(said),
        "time_ms": NOW_MS if said.time_ms is None else said.time_ms,
        "device": device,
        "expires_at_ms": None if said.expiry_ms is None else NOW_MS + said.expiry_ms,
        "deliver_at_ms": None if said.delay_ms is None else NOW_MS + said.delay_ms,
        "properties": said.properties,
        "body": said.body,
        "attributes": said.event,
    }


def answers_in(said: Said) -> str | None:
    """Returns the address of the queue that AMQP's `reply_to` names."""
    queue = said.native.get("reply_to") if isinstance(said.native, dict) else None
    return f"$amqp//{from_routing_key(queue)}" if queue else None


def in_the_log(message: Message) -> Batch:
    """Returns a message as it is read from the log."""
    return Batch(LogOffset(FRAME), LogOffset(FRAME + 512), [decode(encode(message))], [0], [FIRST_QUEUE])


@pytest.mark.parametrize("target", CLIENTS)
@pytest.mark.parametrize("source", CLIENTS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), spent_ms=st.integers(0, SPENT_MS_MAX))
def test_what_one_publishes_the_others_read(source: str, target: str, data: st.DataObject, spent_ms: int) -> None:
    said = data.draw(SAYINGS[source])
    note(repr(said))
    message, own = CLIENTS[source].say(said)
    heard = CLIENTS[target].hear(in_the_log(message), NOW_MS + spent_ms)

    if source == target:
        # All fields come back to the protocol that they came from, even those that no other protocol understands.
        assert {name: heard.own.get(name) for name in own} == own
        if CLIENTS[target].verbatim:
            return
    told = Told(said, source, NOW_MS + spent_ms)
    column = COLUMNS[CLIENTS[target].column_of(said)]
    fields = fields_of(said, CLIENTS[source].speaker(said))
    shown = {name: heard.rows.get(name) for name in fields}
    expected = {name: column[name](value, told) for name, value in fields.items()}
    for rows in (shown, expected):
        rows["properties"] = rows["properties"] or None  # none at all is no place for any
    if said.event is None:
        check_wrapping(said, shown.pop("attributes"))
        del expected["attributes"]
    assert shown == expected


def check_wrapping(said: Said, attributes: dict[str, Any] | None) -> None:
    """Checks the attributes that a message that was no event has as one, besides its fields."""
    if attributes is not None:
        topic = said.address.partition("/")[0]
        assert attributes["source"].startswith("//headgate/")
        assert attributes["specversion"] == "1.0"
        assert attributes["subject"] == said.address
        assert topic.isalnum() <= (not topic.isascii() or attributes["source"] == f"//headgate/{topic}")


def test_the_table_names_every_protocol() -> None:
    assert {client.column for client in CLIENTS.values()} <= COLUMNS.keys()
    assert set(SAYINGS) == set(CLIENTS)
