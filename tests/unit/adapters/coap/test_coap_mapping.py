"""POST and PUT become messages."""

import json

import msgspec
import pytest

from adapters.coap.codec.formats import media_type, number_of
from adapters.coap.codec.registry import CREATED, NON, POST, PUT
from store.api.message import Message
from tests.support.coap.coap_driver import PEER, Driver, dotted, request

EVENT = {"specversion": "1.0", "id": "e1", "source": "//d", "type": "reading", "time": "2026-01-02T03:04:05Z"}


def test_what_a_plain_post_says() -> None:
    driver = Driver()
    answer = driver.ask("t/telemetry/dev1/temp", content_format=50, payload=b"{}")
    assert dotted(answer.code) == "2.01"
    assert driver.stored == [
        Message(
            address="telemetry/dev1/temp",
            body=b"{}",
            time_ms=driver.now_ms,
            protocol="coap",
            device="temp",
            principal="",
            qos=1,
            content_type="application/json",
        )
    ]


def test_put_creates_and_non_is_qos_0() -> None:
    driver = Driver()
    answer = driver.ask("ps/a/b", PUT, type=NON)
    assert dotted(answer.code) == "2.01"
    assert (driver.stored[0].address, driver.stored[0].qos) == ("a/b", 0)


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("t/a", "a"),
        ("t/a//b", "a//b"),
        ("t/a/", "a/"),
        ("t/t/x", "t/x"),
        ("telemetry/dev1", "telemetry/dev1"),
        ("t/grün/ü", "grün/ü"),
        ("psx", "psx"),
        ("t/a/+", "a/%2B"),
        ("t/a#", "a%23"),
        ("t/a\0", "a%00"),
        ("t/100%", "100%"),
        ("t/%2F", "%252F"),
        ("t/%252B/%zz", "%25252B/%zz"),
        ("+/#", "%2B/%23"),
    ],
)
def test_paths_are_addresses(path: str, address: str) -> None:
    driver = Driver()
    driver.ask(path)
    assert driver.stored[0].address == address


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "4.04"),
        ("t", "4.05"),
        ("ps", "4.00"),  # a topic without properties
        ("t/", "4.00"),
        (".well-known/core", "4.05"),
        (".well-known/x", "4.04"),
        ("t/a/..", "4.02"),
        ("t/./a", "4.02"),
    ],
)
def test_paths_that_are_none(path: str, code: str) -> None:
    driver = Driver()
    assert dotted(driver.ask(path).code) == code
    assert driver.stored == []


def test_a_slash_inside_a_segment_is_escaped() -> None:
    driver = Driver()
    (answer,) = driver.exchange(request("t", options=((11, b"a/b"),)))
    assert dotted(answer.code) == "2.01"
    assert driver.stored[0].address == "a%2Fb"


def test_bare_paths_can_be_off() -> None:
    driver = Driver({"bare_paths": False})
    assert dotted(driver.ask("telemetry/dev1").code) == "4.04"
    assert dotted(driver.ask("t/telemetry/dev1", mid=2).code) == "2.01"


@pytest.mark.parametrize(
    ("level", "path", "device"),
    [(1, "t/a/b/c", "b"), (0, "t/a/b", "a"), (2, "t/a/b/c", "c"), (1, "t/a", PEER[0]), (1, "t/a//c", PEER[0])],
)
def test_the_device_is_a_level_of_the_address(level: int, path: str, device: str) -> None:
    driver = Driver({"device_level": level})
    driver.ask(path)
    driver.ask(path, mid=2, query=("type=x",))
    assert [message.device for message in driver.stored] == [device, device]


def test_the_device_of_an_address_as_the_readme_has_it() -> None:
    driver = Driver()
    driver.ask("t/telemetry/site1/dev42/temp")
    driver.ask("t/telemetry/dev42", mid=2)
    assert [message.device for message in driver.stored] == ["dev42", PEER[0]]


def test_the_device_can_be_the_host() -> None:
    driver = Driver({"device_level": -1})
    driver.ask("t/a/b")
    assert driver.stored[0].device == PEER[0]


def test_every_query_item() -> None:
    driver = Driver()
    query = (
        "room=1=2",
        "id=m1",
        "key=k",
        "type=reading",
        "qos=2",
        "retain=true",
        "expiry=10",
        "delay=3",
        "time=1700000000123",
        "reply=cmd/dev1",
        "corr=_-8",
        "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "ct=text/csv",
        "flag",
        "room=3",
    )
    assert dotted(driver.ask("t/a/b", query=query, payload=b"x").code) == "2.01"
    assert driver.stored == [
        Message(
            address="a/b",
            body=b"x",
            time_ms=1_700_000_000_123,
            protocol="coap",
            device=PEER[0],
            principal="",
            qos=2,
            retain=True,
            id="m1",
            key="k",
            type="reading",
            content_type="text/csv",
            expires_at_ms=driver.now_ms + 10_000,
            deliver_at_ms=driver.now_ms + 3_000,
            reply_to="cmd/dev1",
            correlation=b"\xff\xef",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            properties=(("room", "1=2"), ("flag", ""), ("room", "3")),
        )
    ]


def test_time_can_be_a_timestamp() -> None:
    driver = Driver()
    driver.ask("t/a", query=("time=2026-01-01T00:00:00.250+01:00",))
    assert driver.stored[0].time_ms == 1_767_222_000_250


@pytest.mark.parametrize(
    "item",
    [
        "id=",
        "key=",
        "type",
        "qos=3",
        "qos=-1",
        "qos=",
        "retain=1",
        "retain=True",
        "expiry=1.5",
        "expiry=-1",
        "expiry=4294967296",
        "expiry=\N{ARABIC-INDIC DIGIT ONE}",
        "delay=soon",
        "time=yesterday",
        "time=999999999999999",
        "time=9999999999999999999999999",
        "time=1969-12-31T23:59:59Z",
        "reply=a/#",
        "reply=",
        "corr=a",
        "corr=+/",
        "traceparent=00-1-2-3",
        "ct=",
    ],
)
def test_a_wrong_item_is_named(item: str) -> None:
    driver = Driver()
    answer = driver.ask("t/a", query=(item,))
    assert dotted(answer.code) == "4.00"
    assert answer.payload.decode().startswith(item.partition("=")[0] + ":")
    assert driver.stored == []


def test_a_repeated_item_is_named() -> None:
    answer = Driver().ask("t/a", query=("qos=1", "qos=1"))
    assert (dotted(answer.code), answer.payload) == ("4.00", b"qos: given twice")


def test_expiry_counts_from_each_arrival() -> None:
    driver = Driver()
    driver.ask("t/a", query=("expiry=1",))
    driver.now_ms += 5_000
    driver.ask("t/a", query=("expiry=1",), mid=2)
    first, second = driver.stored
    assert first.expires_at_ms is not None
    assert second.expires_at_ms == first.expires_at_ms + 5_000


def test_content_formats_with_a_coding_and_without_meaning() -> None:
    driver = Driver()
    driver.ask("t/a", content_format=11_050)
    driver.ask("t/a", content_format=65_001, mid=2)
    coded, unknown = driver.stored
    assert (coded.content_type, coded.content_encoding) == ("application/json", "deflate")
    assert (unknown.content_type, unknown.native) == (None, {"coap": {"content_format": 65_001}})


@pytest.mark.parametrize(
    ("content_type", "coding", "number"),
    [
        ("application/json", None, 50),
        ("Application/JSON ; charset=UTF-8", None, 50),
        ("application/json", "deflate", 11_050),
        ("application/json", "gzip", None),
        ("text/plain", None, 0),
        ("text/plain;charset=utf-8", None, 0),
        ("text/plain; charset=latin1", None, None),
        ('application/cose; cose-type="cose-sign1"', None, 18),
        ("application/x-mine", None, None),
        ("", None, None),
    ],
)
def test_numbers_of_content_types(content_type: str, coding: str | None, number: int | None) -> None:
    assert number_of(content_type, coding) == number


def test_every_registered_number_is_its_own() -> None:
    for number in range(65_536):
        found = media_type(number)
        if found is not None:
            assert number_of(*found) == number


@pytest.mark.parametrize("named", ["number", "query"])
def test_a_cloudevent_by_number_or_by_name(named: str) -> None:
    driver = Driver()
    body = json.dumps({**EVENT, "sensor": "s1", "data": {"t": 1}}).encode()
    parts = {"content_format": 65_011} if named == "number" else {"query": ("ct=application/cloudevents+json",)}
    assert driver.ask("t/a/b", payload=body, **parts).code == CREATED
    (message,) = driver.stored
    assert (message.address, message.device, message.id, message.type) == ("a/b", PEER[0], "e1", "reading")
    assert (message.protocol, message.qos, message.time_ms) == ("coap", 1, 1_767_323_045_000)
    assert msgspec.json.decode(message.body) == {"t": 1}
    assert ("sensor", "s1") in message.properties


def test_what_a_cloudevent_says_is_not_said_twice() -> None:
    body = json.dumps(EVENT).encode()
    driver = Driver()
    for mid, item in enumerate(("id=x", "type=x", "time=1")):
        answer = driver.ask("t/a", POST, content_format=65_011, payload=body, query=(item,), mid=mid)
        assert dotted(answer.code) == "4.00"
        assert answer.payload.decode().startswith(item.partition("=")[0])
    answer = driver.ask("t/a", content_format=65_011, payload=body, query=("retain=true", "x=1"), mid=9)
    assert dotted(answer.code) == "2.01"
    assert (driver.stored[0].retain, driver.stored[0].properties) == (True, (("x", "1"),))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"id":"1"}', b"\xfe" * 10])
def test_no_cloudevent_is_refused(body: bytes) -> None:
    driver = Driver()
    other = request("t/b", mid=2, payload=b"fine")
    answers = driver.exchange(request("t/a", content_format=65_011, payload=body), other)
    assert [dotted(answer.code) for answer in answers] == ["4.00", "2.01"]
    assert [message.body for message in driver.stored] == [b"fine"]
