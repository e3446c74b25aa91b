"""Messages in no protocol's terms, and what a client of each protocol can say of one."""

import json
import re
from base64 import b64encode
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

NOW_MS = 1_700_000_000_123  # when every message arrives
SPENT_MS_MAX = 10_999  # the longest time of a message here; none expires before

# Content-Formats that CoAP has a number for, by media type and coding (IANA, CoAP Content-Formats).
FORMATS = {
    ("text/plain; charset=utf-8", None): 0,
    ("application/octet-stream", None): 42,
    ("application/json", None): 50,
    ("application/cbor", None): 60,
    ("application/json", "deflate"): 11_050,
    ("application/cbor", "deflate"): 11_060,
}
UNREGISTERED = 65_100  # a Content-Format that only its sender and its readers know


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message as its sender describes it; None stands for what the sender left out.

    `event` are the context attributes of a CloudEvent, `datacontenttype` left out; other fields repeat what they say.
    `native` is what only its own protocol understands, as its encoder takes it.
    """

    address: str
    body: bytes = b""
    qos: int = 1
    retain: bool = False
    id: str | None = None
    key: str | None = None
    type: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    time_ms: int | None = None
    expiry_ms: int | None = None  # from its arrival
    delay_ms: int | None = None  # from its arrival
    reply_to: str | None = None
    correlation: bytes | None = None
    traceparent: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event: dict[str, Any] | None = None
    native: Any = None


def time_of(text: str) -> int:
    """Returns an RFC 3339 timestamp as milliseconds since 1970."""
    at = datetime.fromisoformat(text)
    return int(at.timestamp()) * 1000 + at.microsecond // 1000


# ---- what fields are made of: plain and awkward characters, none that CloudEvents forbids in attributes

letters = st.sampled_from("azAZ09.%/-_~ :;=?&,'()@\"\\<>{}|^`$éßÿЖ漢😀\u00a0\u2028") | st.characters(
    exclude_categories=["Cc", "Cs", "Cn", "Co"], exclude_characters="\ufeff+#"
)
texts = st.text(letters, min_size=1, max_size=12)
# No level is "." or "..": neither a Uri-Path nor the path of a URI can hold one (RFC 7252, 5.10.1; RFC 3986, 5.2.4).
levels = st.one_of(
    st.sampled_from(["", "plant", "a.b", "%", "%2E", "%252E", "%2F.", "a b", "é.漢"]),
    st.text(st.sampled_from(".%2EF5abé漢😀 -_~"), max_size=8),
).filter(lambda level: level not in {".", ".."})
addresses = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
bodies = st.one_of(st.just(b""), st.binary(max_size=60), json_values.map(json.dumps).map(str.encode))
content_types = st.sampled_from(
    ["application/json", "text/plain; charset=utf-8", "application/octet-stream", "application/vnd.acme+cbor; v=2"]
)
traceparents = st.from_regex(re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", re.ASCII), fullmatch=True)
seconds = st.integers(SPENT_MS_MAX // 1000 + 1, 10**6).map(lambda s: s * 1000)
milliseconds = st.integers(SPENT_MS_MAX + 1, 10**9)
times_ms = st.integers(0, 4_102_444_800_000)
correlations = st.one_of(st.binary(max_size=20), texts.map(str.encode))
# Names that are no attribute's, and some that are: outside an event they are names like any other.
names = st.sampled_from(["colour", "n2", "Site Name", "ключ", "a.b", "x-odd", "subject", "source", "data"])
properties = st.lists(st.tuples(names, texts | st.just("")), max_size=5).map(tuple)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "qos": st.integers(0, 2),
    "retain": st.booleans(),
    "id": texts,
    "key": texts,
    "type": texts,
    "content_type": content_types,
    "content_encoding": st.sampled_from(["gzip", "deflate"]),
    "time_ms": times_ms,
    "expiry_ms": seconds,
    "delay_ms": seconds,
    "reply_to": addresses,
    "correlation": correlations,
    "traceparent": traceparents,
    "properties": properties,
}


def sayings(*fields: str, **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Said]:
    """Draws messages whose sender can say these fields, each or not; `others` are fields with less or more to them."""
    optional = {**{name: FIELDS[name] for name in fields}, **others}
    always = {"address": optional.pop("address", addresses), "body": optional.pop("body", bodies)}
    return st.fixed_dictionaries(always, optional=optional).map(lambda said: Said(**said))


# ---- events

# Spellings that no timestamp written here has: they have to be kept as they are.
odd_times = st.sampled_from(
    ["1985-04-12T23:20:50.52Z", "1996-12-19T16:39:57-08:00", "2024-01-01T00:00:00.123456+00:00", "2024-02-29T12:00:00Z"]
)
# Sorted, as pamqp writes the headers of AMQP: attributes have no order of their own.
extensions = st.dictionaries(st.sampled_from(["colour", "n2", "sampledrate", "acme"]), texts, max_size=3).map(
    lambda found: dict(sorted(found.items()))
)
typed = st.dictionaries(st.sampled_from(["on", "count"]), st.booleans() | st.integers(-(2**31), 2**31 - 1), max_size=2)
contexts = st.fixed_dictionaries(
    {
        "specversion": st.just("1.0"),
        "id": texts,
        "source": st.sampled_from(["/plant/1", "urn:uuid:6e8bc430", "https://acme.example/a?b=c%20d#e"]),
        "type": texts,
    },
    optional={
        "time": odd_times,
        "subject": texts,
        "dataschema": st.just("https://acme.example/schema.json"),
        "partitionkey": texts,
        "correlationid": texts,
        "traceparent": traceparents,
        "expirytime": st.sampled_from(["2030-01-01T00:00:00Z", "2030-01-01T05:00:00.500+05:00"]),
    },
)
_OWN_FIELD = {"specversion", "source", "subject", "dataschema", "time", "id", "type", "partitionkey"}
_OWN_FIELD |= {"correlationid", "traceparent", "expirytime"}


def with_event(said: Said, event: dict[str, Any]) -> Said:
    """Returns a message that is this event too: its attributes and its fields say the same."""
    own = tuple((n, t if isinstance(t, str) else json.dumps(t)) for n, t in event.items() if n not in _OWN_FIELD)
    correlation, expiry = event.get("correlationid"), event.get("expirytime")
    return replace(
        said,
        event=event,
        id=event["id"],
        type=event["type"],
        key=event.get("partitionkey"),
        traceparent=event.get("traceparent"),
        time_ms=time_of(event["time"]) if "time" in event else None,
        correlation=correlation.encode() if correlation is not None else None,
        expiry_ms=time_of(expiry) - NOW_MS if expiry is not None else None,
        properties=own + said.properties,
    )


def event_sayings(*fields: str, **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Said]:
    """Draws messages that are events, with what their protocol says besides of these fields."""
    attributes = st.builds(lambda context, own: {**context, **own}, contexts, extensions)
    return st.builds(with_event, sayings("content_type", *fields, **others), attributes)


@st.composite
def json_events(draw: st.DrawFn) -> Said:
    """Draws events as one JSON document: the address is the subject, `native` the member that holds the data."""
    address = draw(st.none() | addresses.filter(lambda text: "%" not in text))
    event = {**draw(contexts), **draw(extensions), **draw(typed)}
    event.pop("subject", None)
    if address is None:
        event["type"] = address = draw(st.sampled_from(["acme.reading", "com.acme.door"]))
        address = f"events/{address}"
    else:
        event["subject"] = address
    content_type, body, member = draw(
        st.one_of(
            json_values.map(lambda v: (None, json.dumps(v).encode(), ("data", v))),
            json_values.map(lambda v: ("application/json", json.dumps(v).encode(), ("data", v))),
            texts.map(lambda t: ("text/plain", t.encode(), ("data", t))),
            content_types.map(lambda kind: (kind, b"", None)),
            st.tuples(content_types, st.binary(min_size=1, max_size=60)).map(
                lambda pair: (*pair, ("data_base64", b64encode(pair[1]).decode()))
            ),
        )
    )
    return with_event(Said(address=address, body=body, content_type=content_type, native=member), event)


# ---- what a client of each protocol can say

ITEM_BYTES_MAX = 255  # of a Uri-Path or Uri-Query option (RFC 7252, 5.10); names and texts here are shorter
MQTT = ("qos", "retain")
MQTT5 = (*MQTT, "content_type", "content_encoding", "expiry_ms", "reply_to", "correlation")
COAP = ("qos", "retain", "id", "key", "type", "time_ms", "expiry_ms", "delay_ms", "reply_to", "correlation")
HTTP = ("qos", "retain", "content_encoding", "expiry_ms", "delay_ms", "reply_to")
AMQP = ("retain", "content_type", "content_encoding", "reply_to")

in_a_header = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=12)
headers = st.builds(
    lambda own, allowed: (*own.items(), *allowed), extensions, st.lists(st.tuples(st.just("x-lot"), in_a_header))
)


def split_format(said: Said) -> Said:
    """Splits a media type and coding that were drawn together into two fields; a number without meaning stays
    native.
    """
    if said.native == UNREGISTERED:
        return said
    content_type, content_encoding = said.native if said.native is not None else (None, None)
    return replace(said, content_type=content_type, content_encoding=content_encoding, native=None)


header_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False, allow_infinity=False),  # pamqp writes four bytes of them
        texts,
        st.binary(max_size=8).map(bytearray),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=4,
)
AMQP_NATIVE = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(names, header_values, max_size=4),
        "priority": st.integers(0, 9),
        "reply_to": texts,
        "app_id": texts,
    },
)


def text_of_header(value: Any) -> str | None:
    """Returns a typed header's value as other protocols read it; returns None where it has no text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, int | float) else None


def with_headers(said: Said) -> Said:
    """Makes properties of the headers that have a text."""
    typed_headers = (said.native or {}).get("headers", {})
    pairs = tuple((n, t) for n, v in sorted(typed_headers.items()) if (t := text_of_header(v)) is not None)
    return replace(said, properties=said.properties + pairs)


SAYINGS: dict[str, st.SearchStrategy[Said]] = {
    "mqtt-3.1.1": sayings(*MQTT),
    "mqtt-5": st.one_of(
        sayings(*MQTT5, "key", "type", "time_ms", "traceparent", "properties"),
        sayings("content_type", "properties", body=texts.map(str.encode), native=st.integers(0, 1)),
        event_sayings("qos", "retain", "reply_to", properties=st.just((("Site Name", "x"), ("colour?", "y")))),
    ),
    "coap": sayings(*COAP, "traceparent", "properties", native=st.sampled_from([*FORMATS, UNREGISTERED])).map(
        split_format
    ),
    "http": sayings(*HTTP, "id", "key", "type", "content_type", "time_ms", "correlation", "traceparent").flatmap(
        lambda said: headers.map(lambda pairs: replace(said, properties=pairs))
    ),
    "event-binary": event_sayings("qos", "retain", "content_encoding", "reply_to"),
    "event-json": json_events(),
    "amqp": st.one_of(
        sayings(
            *(*AMQP, "id", "key", "type", "time_ms", "delay_ms", "correlation", "traceparent"),
            qos=st.integers(0, 1),
            expiry_ms=milliseconds,
            native=AMQP_NATIVE,
        ).map(with_headers),
        event_sayings("retain", "reply_to", qos=st.integers(0, 1)),
    ),
}
