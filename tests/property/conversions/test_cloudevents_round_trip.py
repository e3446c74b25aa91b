"""An event that comes in by any form and leaves by any form is the same event."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.cloudevents import (
    PROPERTIES,
    attributes_of,
    data_type,
    format_ms,
    from_attributes,
    from_avro,
    from_batch,
    from_structured,
    parse_ms,
    to_avro,
    to_batch,
    to_structured,
    wrap,
)
from gateway.domain.address import check_address
from gateway.domain.errors import Refusal
from store.api.message import Message, decode, encode

texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn")) | st.sampled_from("+#/%2B"),
    min_size=1,
    max_size=20,
)
names = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True).filter(
    lambda name: name not in {"data", "datacontenttype", "specversion", "deviceid", "expirytime", "time", "dataschema"}
)
times = st.sampled_from(
    ["2018-04-05T17:31:00Z", "2018-04-05t17:31:00.1234z", "1900-01-01T00:00:00-23:59", "2016-12-31T23:59:60.999Z"]
) | st.integers(0, 253_402_300_799_999).map(format_ms)
optional = st.fixed_dictionaries(
    {},
    optional={
        "time": times,
        "expirytime": times,
        "subject": texts,
        "dataschema": st.just("urn:example:1"),
        "partitionkey": texts,
        "correlationid": texts,
        "traceparent": texts,
    },
)
attributes = st.builds(
    lambda extra, known, id_, type_: {**extra, **known, "specversion": "1.0", "source": "/s", "id": id_, "type": type_},
    st.dictionaries(names, texts, max_size=4),
    optional,
    texts,
    texts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
payloads: st.SearchStrategy[tuple[str | None, bytes]] = st.one_of(
    st.tuples(st.sampled_from([None, "application/json"]), json_values.map(lambda value: json.dumps(value).encode())),
    st.tuples(st.sampled_from(["text/plain", "application/cbor", "application/json", None]), st.binary(max_size=20)),
)
KEYWORDS: dict[str, Any] = {"now_ms": 1_700_000_000_000, "protocol": "http", "device": "d"}


def stored(message: Message) -> Message:
    return decode(encode(message))


@settings(deadline=None)
@given(attributes, payloads)
def test_binary_by_way_of_every_form(context: dict[str, str], payload: tuple[str | None, bytes]) -> None:
    content_type, body = payload
    first = stored(from_attributes(context, body, content_type=content_type, **KEYWORDS))
    assert check_address(first.address)
    second = stored(from_structured(to_structured(first), **KEYWORDS))
    (third,) = from_batch(to_batch([second]), **KEYWORDS)
    fourth = from_avro(to_avro(third), **KEYWORDS)
    kinds = (content_type, content_type, content_type, data_type(third))  # JSON that says no type says it in Avro
    for message, kind in zip((first, second, stored(third), stored(fourth)), kinds, strict=True):
        assert attributes_of(message) == context
        assert message.content_type == kind
        assert message.body == body or json.loads(message.body) == json.loads(body)
        assert (message.address, message.time_ms, message.key) == (first.address, first.time_ms, first.key)


@settings(deadline=None)
@given(
    attributes,
    st.dictionaries(names, st.booleans() | st.integers(-(2**31), 2**31 - 1), max_size=3),
    st.fixed_dictionaries({}, optional={"datacontenttype": st.sampled_from(["text/plain", "application/json"])}),
    st.one_of(st.just({}), json_values.map(lambda v: {"data": v}), st.just({"data_base64": "AAH/"})),
)
def test_structured_is_unchanged(
    context: dict[str, str], typed: dict[str, Any], media_type: dict[str, str], data: dict[str, Any]
) -> None:
    core = {"id", "source", "type", "subject"}
    document = {**context, **{name: value for name, value in typed.items() if name not in core}, **media_type, **data}
    message = stored(from_structured(json.dumps(document).encode(), **KEYWORDS))
    assert json.loads(to_structured(message)) == document


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="+#\0"), min_size=1, max_size=20),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=10),
    st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.text(st.characters(codec="utf-8")))),
    st.binary(max_size=10),
    st.integers(0, 1 << 63),
)
def test_whatever_is_wrapped_is_an_event(
    address: str, id_: str, properties: list[tuple[str, str]], body: bytes, time_ms: int
) -> None:
    message = Message(
        address=address, id=id_, body=body, time_ms=time_ms, properties=tuple(properties), correlation=body, type=id_
    )
    again = from_structured(to_structured(message), **KEYWORDS)
    attributes = wrap(message)
    attributes.pop(PROPERTIES, None)  # a gateway alone sets it: one that comes from outside is not believed
    told = attributes_of(again) or {}
    told.pop("correlationdata", None)  # of a correlation that is no text: an extension, as `replyto` is
    assert told == attributes
    assert again.body == body or json.loads(again.body) == json.loads(body)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body: bytes) -> None:
    for reader in (from_structured, from_batch):
        try:
            reader(body, **KEYWORDS)
        except Refusal:
            continue


@settings(deadline=None)
@given(st.integers(0, 253_402_300_799_999))
def test_times_round_trip(time_ms: int) -> None:
    assert parse_ms(format_ms(time_ms)) == time_ms
