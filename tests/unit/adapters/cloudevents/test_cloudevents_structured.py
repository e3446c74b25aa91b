"""The JSON event format, and agreement with the CloudEvents SDK."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from adapters.cloudevents import (
    BatchRefusal,
    attributes_of,
    data_type,
    from_attributes,
    from_avro,
    from_batch,
    from_protobuf,
    from_structured,
    is_json,
    to_avro,
    to_batch,
    to_document,
    to_protobuf,
    to_structured,
)
from gateway.domain.errors import Refusal
from store.api.message import Message, decode, encode

NOW_MS = 1_700_000_000_000
MINIMAL = {"specversion": "1.0", "id": "A-1", "source": "/sensors/7", "type": "com.example.reading"}


def read(document: object) -> Message:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return from_structured(body, now_ms=NOW_MS, protocol="http", device="dev")


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"data": {"celsius": 21.5}},
        {"data": "text"},
        {"data": None},
        {"data": 12, "datacontenttype": "application/vnd.example+json"},
        {"data": "plain text é", "datacontenttype": "text/plain"},
        {"data": {"odd": True}, "datacontenttype": "text/plain"},
        {"data_base64": "AAEC"},
        {"data_base64": ""},
        {"data_base64": "e30=", "datacontenttype": "application/json"},
        {"data_base64": "AAEC", "datacontenttype": "application/octet-stream"},
        {"retries": 5, "urgent": True, "low": -(2**31), "name": "x", "empty": ""},
        {"partitionkey": 7, "time": "2018-04-05T17:31:00.1+01:00", "dataschema": "urn:x:y"},
        {"contentencoding": "gzip", "data": 1},
    ],
)
def test_an_event_leaves_as_it_came(members: dict[str, object]) -> None:
    document = {**MINIMAL, **members}
    assert json.loads(to_structured(decode(encode(read(document))))) == document


def test_the_payload_is_passed_on_digit_by_digit() -> None:
    data = b'{"a":1.10e400,"b":[123456789012345678901234567890, 1.0]}'
    head = json.dumps(MINIMAL).encode()[:-1]
    message = read(head + b',"data": ' + data + b" }")
    assert message.body == data
    assert data in to_structured(message)


def test_null_attributes_are_unset() -> None:
    assert attributes_of(read({**MINIMAL, "subject": None, "time": None, "ext": None})) == MINIMAL


@pytest.mark.parametrize(
    ("members", "attribute"),
    [
        ({"id": 5}, "id"),
        ({"id": None}, "id"),
        ({"type": True}, "type"),
        ({"specversion": 1.0}, "specversion"),
        ({"ext": 1.5}, "ext"),
        ({"ext": 2**31}, "ext"),
        ({"ext": {}}, "ext"),
        ({"ext": []}, "ext"),
        ({"data": 1, "data_base64": "AA=="}, "data"),
        ({"data_base64": "not base64!"}, "data_base64"),
        ({"data_base64": "é"}, "data_base64"),
        ({"data_base64": 5}, "data_base64"),
        ({"extra_name": "x"}, "extra_name"),
    ],
)
def test_a_refusal_names_the_member(members: dict[str, object], attribute: str) -> None:
    with pytest.raises(Refusal) as refused:
        read({**MINIMAL, **members})
    assert refused.value.detail.startswith(f"{attribute}: ")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"{", b'{"id":"\xff"}', b'{"data":"\xff"}', b"[" * 100_000, b'{"a":' * 100_000, b"\x00", b"{}"],
)
def test_what_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        read(body)


def test_deep_data_is_refused_or_read_but_never_raises_anything_else() -> None:
    head = json.dumps(MINIMAL).encode()[:-1]
    with pytest.raises(Refusal):
        read(head + b',"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_data_that_is_a_little_too_deep_to_be_read_is_refused() -> None:
    head = json.dumps(MINIMAL).encode()[:-1]
    for depth in range(700, 1_000):  # one of them can be passed over and not be read, where the stack is
        with pytest.raises(Refusal):
            read(head + b',"data_base64":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("content_type", "body", "member"),
    [
        ("application/json", b'{"a": 1}', ("data", {"a": 1})),
        ("application/json; charset=utf-8", b"1", ("data", 1)),
        ("application/json", b"{broken", ("data_base64", "e2Jyb2tlbg==")),
        ("application/json", b'"\xff"', ("data_base64", "Iv8i")),
        (None, b"true", ("data", True)),
        ("text/plain", b"hi", ("data_base64", "aGk=")),
    ],
)
def test_binary_in_and_structured_out(content_type: str | None, body: bytes, member: tuple[str, object]) -> None:
    message = from_attributes(MINIMAL, body, content_type=content_type, now_ms=NOW_MS, protocol="http", device="d")
    document = json.loads(to_structured(message))
    assert document[member[0]] == member[1]
    assert ("data" in document) != ("data_base64" in document)


def test_a_compressed_body_says_so() -> None:
    message = from_attributes(
        MINIMAL, b"1", content_type=None, now_ms=NOW_MS, protocol="http", device="d", content_encoding="gzip"
    )
    assert json.loads(to_structured(message)) == {**MINIMAL, "contentencoding": "gzip", "data_base64": "MQ=="}
    assert attributes_of(message) == MINIMAL


def test_a_batch_is_read_and_written() -> None:
    documents = [{**MINIMAL, "id": str(n), "data": n} for n in range(3)]
    messages = from_batch(json.dumps(documents).encode(), now_ms=NOW_MS, protocol="http", device="d", qos=2)
    assert [(m.id, m.body, m.qos) for m in messages] == [("0", b"0", 2), ("1", b"1", 2), ("2", b"2", 2)]
    assert json.loads(to_batch(messages)) == documents
    assert from_batch(b"[]", now_ms=NOW_MS, protocol="http", device="d") == []


def test_a_batch_names_every_malformed_event() -> None:
    documents = [MINIMAL, {**MINIMAL, "id": ""}, 5, MINIMAL, {**MINIMAL, "source": "a b"}]
    with pytest.raises(BatchRefusal) as refused:
        from_batch(json.dumps(documents).encode(), now_ms=NOW_MS, protocol="http", device="d")
    assert list(refused.value.refused) == [1, 2, 4]
    assert refused.value.refused[1].detail.startswith("id: ")
    assert refused.value.detail.startswith("event 1: id: ")
    for body in (b"{}", b"[", b"[1", b"\xff"):
        with pytest.raises(Refusal):
            from_batch(body, now_ms=NOW_MS, protocol="http", device="d")


def test_a_wrapped_message_holds_json_or_base64() -> None:
    telemetry = Message(address="t/d", body=b'{"v":1}', id="1.0", content_type=None)
    assert json.loads(to_structured(telemetry))["data"] == {"v": 1}
    assert json.loads(to_structured(Message(address="t/d", body=b"\x00", id="1.0")))["data_base64"] == "AA=="
    assert "data" not in json.loads(to_structured(Message(address="t/d", id="1.0")))


def test_the_sdk_reads_what_is_written_and_the_reverse() -> None:
    message = read({**MINIMAL, "time": "2018-04-05T17:31:00Z", "data": {"v": 1}, "ext": "e"})
    event = JSONFormat().read(None, to_structured(message))
    assert (event.get_id(), event.get_source(), event.get_type()) == ("A-1", "/sensors/7", "com.example.reading")
    assert event.get_data() == {"v": 1}
    assert event.get_extension("ext") == "e"
    written = JSONFormat().write(CloudEvent({"source": "/s", "type": "t"}, {"v": 2}))
    assert read(written).body == b'{"v": 2}'


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, True),
        ("application/json", True),
        ("text/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/problem+json", True),
        ("application/jsonx", False),
        ("application/json-seq", False),
        ("text/plain", False),
        ("application/cbor", False),
    ],
)
def test_json_media_types(content_type: str | None, expected: bool) -> None:
    assert is_json(content_type) is expected


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"data": {"n": 1}}, "application/json"),
        ({"data": "text"}, "application/json"),
        ({"data": {"n": 1}, "datacontenttype": "text/json"}, "text/json"),
        ({"data_base64": "eyJ9"}, None),
        ({"data_base64": "MQ=="}, None),
        ({}, None),
    ],
)
def test_json_that_an_event_says_no_type_of_is_json_in_bindings_too(event, said):
    """(JSON Event Format 1.0.2, 3.1) In structured mode it leaves as it came."""
    body = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **event}).encode()
    message = from_structured(body, now_ms=5, protocol="http", device="d")
    assert data_type(message) == said
    assert json.loads(to_structured(message)).get("datacontenttype") == event.get("datacontenttype")


def test_a_body_that_is_no_event_has_the_type_that_it_came_with():
    assert data_type(Message("a", b"{}", 5, "mqtt", "d")) is None


@pytest.mark.parametrize(
    ("correlation", "told"),
    [(None, {}), (b"", {}), (b"c-1", {"correlationid": "c-1"}), (b"\xff\xfe", {"correlationdata": "//4="})],
)
def test_a_correlation_is_told_as_text_or_else_in_base64(correlation: bytes | None, told: dict[str, str]) -> None:
    message = Message(address="a", id="1", correlation=correlation)
    document = json.loads(to_structured(message))
    assert {name: document[name] for name in ("correlationid", "correlationdata") if name in document} == told


def test_a_plain_message_says_its_fields_and_not_its_properties_of_their_names() -> None:
    ours = (("replyto", "x"), ("contentencoding", "no"), ("correlationdata", "zz"))
    message = Message(
        address="a", id="1", reply_to="real/reply", content_encoding="gzip", correlation=b"\xff", properties=ours
    )
    document = to_document(message)
    said = {"replyto": "real/reply", "contentencoding": "gzip", "correlationdata": "/w=="}
    assert {name: document[name] for name in said} == said
    assert json.loads(document["headgateproperties"]) == [list(pair) for pair in ours]


def test_fields_that_no_attribute_can_hold_are_cleaned_or_left_out() -> None:
    document = to_document(Message(address="a", id="1", reply_to="a/\x01", content_encoding="gz\x85ip"))
    assert (document.get("replyto"), document["contentencoding"]) == (None, "gz%C2%85ip")


FORMATS: dict[str, tuple[Callable[[Message], bytes], Callable[..., Message]]] = {
    "json": (to_structured, from_structured),
    "protobuf": (to_protobuf, from_protobuf),
    "avro": (to_avro, from_avro),
}


@pytest.mark.parametrize("form", FORMATS)
def test_the_fields_of_a_wrapped_message_come_back(form: str) -> None:
    write, again = FORMATS[form]
    message = Message(
        address="a",
        id="1",
        body=b"\x1f\x8b",
        content_type="application/json",
        content_encoding="gzip",
        reply_to="r/t",
        correlation=b"\xff",
    )
    found = again(write(message), now_ms=NOW_MS, protocol="http", device="d")
    assert (found.content_encoding, found.correlation) == ("gzip", b"\xff")
    # A sink may seldom read at the address of answers: as a field it would be refused, and all events behind it wait.
    assert (found.reply_to, found.properties) == (None, (("replyto", "r/t"),))
    assert again(write(found), now_ms=NOW_MS, protocol="http", device="d") == found


@pytest.mark.parametrize(
    ("source", "member", "fields"),
    [
        ("/sensors/7", {"replyto": "r"}, {}),  # another producer's, which may mean anything
        ("//headgate/a", {"replyto": "a/+"}, {}),
        ("//headgate/a", {"correlationdata": "no Base64"}, {}),
        ("//headgate/a", {"replyto": "r"}, {"reply_to": "said/by/header"}),
    ],
)
def test_fields_that_cannot_be_taken_stay_extensions(
    source: str, member: dict[str, str], fields: dict[str, Any]
) -> None:
    body = json.dumps({**MINIMAL, "source": source, **member}).encode()
    message = from_structured(body, now_ms=NOW_MS, protocol="http", device="d", **fields)
    assert message.properties == tuple(member.items())
    assert (message.reply_to, message.correlation) == (fields.get("reply_to"), None)


LATIN: dict[str, object] = {"datacontenttype": "text/plain; charset=ISO-8859-1", "data": "h\u00e9"}


@pytest.mark.parametrize("form", FORMATS)
def test_text_is_stored_in_its_charset(form: str) -> None:
    write, again = FORMATS[form]
    message = decode(encode(read({**MINIMAL, **LATIN})))
    assert message.body == b"h\xe9"
    found = again(write(message), now_ms=NOW_MS, protocol="http", device="d")
    assert found.body == b"h\xe9"
    assert json.loads(to_structured(found)) == {**MINIMAL, **LATIN}


@pytest.mark.parametrize(
    ("charset", "text", "body"),
    [
        ("utf-8", "\u00e9", b"\xc3\xa9"),
        ('"UTF-16LE"', "a", b"a\0"),
        ("x-own", "ascii", b"ascii"),
        ("windows-1252", "\u20ac", b"\x80"),
        ("shift_jis", "\u3042", b"\x82\xa0"),
    ],
)
def test_charsets(charset: str, text: str, body: bytes) -> None:
    document = {**MINIMAL, "datacontenttype": f"text/plain;charset={charset}", "data": text}
    message = read(document)
    assert message.body == body
    assert json.loads(to_structured(message)) == document


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        *((charset, "\u6f22") for charset in ("us-ascii", "iso-8859-1", "x-own", "idna", "rot13", "base64")),
        ("shift_jis", "\u00a5100"),  # Python writes a backslash
        ("euc-jp", "\u203e"),
        ("iso-2022-jp", "\x1b"),
    ],
)
def test_text_that_its_charset_has_not_is_refused(charset: str, text: str) -> None:
    with pytest.raises(Refusal, match="data: "):
        read({**MINIMAL, "datacontenttype": f"text/plain; charset={charset}", "data": text})


def test_text_of_older_records_is_utf_8_whatever_its_type_says() -> None:
    native = {"cloudevents": {"source": "/s", "data": "text"}}
    kind = str(LATIN["datacontenttype"])
    message = Message(address="events/t", id="1", type="t", body=b"h\xc3\xa9", content_type=kind, native=native)
    assert json.loads(to_structured(message))["data"] == "h\u00e9"
