"""GET: last values and links."""

import json
from urllib.parse import unquote

import pytest
from coap_driver import PEER, Driver, dotted, is_ack, options_of, request

from adapters.coap.registry import ACCEPT, CONTENT_FORMAT, ETAG, GET, MAX_AGE, NON
from gateway.message import Message
from gateway.port import LastValue, ListAddresses

VALUE = Message(address="a/b", body=b'{"t":1}', id="7:0", content_type="application/json", time_ms=5)


def test_the_last_value() -> None:
    driver = Driver(last=VALUE)
    answer = driver.get("t/a/b")
    assert driver.calls == [LastValue(address="a/b")]
    assert is_ack(answer, "2.05")
    assert answer.payload == VALUE.body
    options = options_of(answer)
    assert options[CONTENT_FORMAT] == b"\x32"
    assert options[MAX_AGE] == b""
    assert len(options[ETAG]) == 8


def test_a_non_is_answered_by_a_non() -> None:
    driver = Driver(last=VALUE)
    answer = driver.get("t/a/b", type=NON)
    assert (answer.type, dotted(answer.code), answer.token) == (NON, "2.05", b"tk")


def test_there_is_none() -> None:
    assert is_ack(Driver().get("t/a"), "4.04")


def test_it_has_expired() -> None:
    driver = Driver(last=Message(address="a", expires_at_ms=1_000_000))
    assert is_ack(driver.get("t/a"), "4.04")


@pytest.mark.parametrize(
    ("path", "code"), [("", "4.04"), ("t/", "4.00"), ("t/+", "4.00"), (".well-known/x", "4.04"), ("t/..", "4.02")]
)
def test_paths_that_are_no_address(path: str, code: str) -> None:
    driver = Driver()
    assert is_ack(driver.get(path), code)
    assert driver.calls == []


def test_max_age_ends_with_the_message() -> None:
    settings = {"max_age_s": 60}
    assert options_of(Driver(settings, last=VALUE).get("t/a"))[MAX_AGE] == b"\x3c"
    expiring = Message(address="a", id="1", expires_at_ms=1_009_999)
    assert options_of(Driver(settings, last=expiring).get("t/a"))[MAX_AGE] == b"\x09"


# ---- ETag (RFC 7252, 5.10.6)


def test_an_etag_that_still_holds() -> None:
    driver = Driver(last=VALUE)
    etag = options_of(driver.get("t/a"))[ETAG]
    answer = driver.get("t/a", mid=2, options=((ETAG, b"other"), (ETAG, etag)))
    assert is_ack(answer, "2.03", mid=2)
    assert answer.payload == b""
    assert options_of(answer) == {ETAG: etag, MAX_AGE: b""}


@pytest.mark.parametrize(
    "changed",
    [
        Message(address="a/b", body=b"other", id="7:0", content_type="application/json"),
        Message(address="a/b", body=VALUE.body, id="7:1", content_type="application/json"),
        Message(address="a/b", body=VALUE.body, id="7:0", content_type="text/plain"),
    ],
)
def test_an_etag_that_no_longer_holds(changed: Message) -> None:
    driver = Driver(last=VALUE)
    etag = options_of(driver.get("t/a"))[ETAG]
    driver.last = changed
    answer = driver.get("t/a", mid=2, options=((ETAG, etag),))
    assert is_ack(answer, "2.05", mid=2)
    assert options_of(answer)[ETAG] != etag


# ---- Content-Format and Accept (RFC 7252, 5.10.3 and 5.10.4)


@pytest.mark.parametrize(
    ("message", "number"),
    [
        (Message(address="a", id="1", content_type="text/plain"), b""),
        (Message(address="a", id="1", content_type="application/json", content_encoding="deflate"), b"\x2b\x2a"),
        (Message(address="a", id="1", content_type="application/x-mine"), None),
        (Message(address="a", id="1"), None),
        (Message(address="a", id="1", native={"coap": {"content_format": 65_001}}), b"\xfd\xe9"),
        (Message(address="a", id="1", native={"mqtt": {}}), None),
    ],
)
def test_content_formats(message: Message, number: bytes | None) -> None:
    assert options_of(Driver(last=message).get("t/a")).get(CONTENT_FORMAT) == number


def test_a_number_comes_back_as_it_went_in() -> None:
    driver = Driver()
    for mid, number in enumerate((0, 40, 50, 60, 110, 11_050, 11_060, 12_345, 65_001)):
        driver.ask("t/a", content_format=number, mid=2 * mid)
        driver.last = driver.stored[-1]
        assert int.from_bytes(options_of(driver.get("t/a", mid=2 * mid + 1))[CONTENT_FORMAT], "big") == number


def test_accept() -> None:
    driver = Driver(last=VALUE)
    assert is_ack(driver.get("t/a", options=((ACCEPT, b"\x32"),)), "2.05")
    answer = driver.get("t/a", mid=2, options=((ACCEPT, b"\x3c"),))
    assert is_ack(answer, "4.06", mid=2)
    assert answer.payload.startswith(b"Accept:")
    driver.last = Message(address="a", id="1", content_type="application/x-mine")
    assert is_ack(driver.get("t/a", mid=3, options=((ACCEPT, b"\x32"),)), "4.06", mid=3)


@pytest.mark.parametrize(
    "parts", [{"options": ((ACCEPT, b"\xfd\xf3"),)}, {"query": ("ct=application/cloudevents+json",)}]
)
def test_a_message_as_a_cloudevent(parts: dict) -> None:
    answer = Driver(last=VALUE).get("t/a/b", **parts)
    assert is_ack(answer, "2.05")
    assert options_of(answer)[CONTENT_FORMAT] == b"\xfd\xf3"
    event = json.loads(answer.payload)
    assert (event["id"], event["subject"], event["data"]) == ("7:0", "a/b", {"t": 1})


def test_a_cloudevent_comes_back_as_it_went_in() -> None:
    driver = Driver()
    event = {"specversion": "1.0", "id": "e", "source": "//d", "type": "x", "num": 5, "data": {"a": [1]}}
    driver.ask("t/a", content_format=65_011, payload=json.dumps(event).encode())
    driver.last = driver.stored[0]
    answer = driver.get("t/a", mid=2, options=((ACCEPT, b"\xfd\xf3"),))
    assert json.loads(answer.payload) == event


# ---- links (RFC 6690)

LISTED = ["a", "plant/line 1", "plant/ü,>"]


def links(driver: Driver, path: str = ".well-known/core", *query: str) -> str:
    answer = driver.get(path, query=query)
    assert is_ack(answer, "2.05")
    assert options_of(answer)[CONTENT_FORMAT] == b"\x28"
    return answer.payload.decode()


def test_well_known_core() -> None:
    driver = Driver(listed=LISTED)
    assert links(driver) == (
        '</t>;rt="core.ps.coll";ct=40,</ps>;rt="core.ps.coll";ct=40,</t/a>;rt="core.ps.data",'
        '</t/plant/line%201>;rt="core.ps.data",</t/plant/%C3%BC%2C%3E>;rt="core.ps.data"'
    )
    assert driver.calls == [ListAddresses(prefix="", limit=1_000)]


@pytest.mark.parametrize(
    ("query", "hrefs"),
    [
        ("rt=core.ps.coll", ["/t", "/ps"]),
        ("rt=core.ps.*", ["/t", "/ps", "/t/a", "/t/plant/line%201", "/t/plant/%C3%BC%2C%3E"]),
        ("rt=other", []),
        ("ct=40", ["/t", "/ps"]),
        ("href=/t/a", ["/t/a"]),
        ("href=/t/pl*", ["/t/plant/line%201", "/t/plant/%C3%BC%2C%3E"]),
        ("if=x", []),
        ("nonsense", []),
    ],
)
def test_links_are_filtered(query: str, hrefs: list[str]) -> None:
    text = links(Driver(listed=LISTED), ".well-known/core", query)
    assert [link.partition(">")[0][1:] for link in text.split(",") if link] == hrefs


def test_a_filter_by_href_asks_for_no_more_than_it_needs() -> None:
    driver = Driver({"list_max": 5})
    links(driver, ".well-known/core", "href=/t/line%201/*")
    assert driver.calls == [ListAddresses(prefix="line 1/", limit=5)]


def test_the_links_below_a_root() -> None:
    assert links(Driver(listed=["a/b"]), "ps") == '</ps/a/b>;rt="core.ps.data"'
    assert links(Driver(listed=[]), "t") == ""


def test_links_are_of_one_format() -> None:
    driver = Driver()
    assert is_ack(driver.get(".well-known/core", options=((ACCEPT, b"\x28"),)), "2.05")
    assert is_ack(driver.get(".well-known/core", mid=2, options=((ACCEPT, b"\x32"),)), "4.06", mid=2)


def test_every_link_leads_where_it_says() -> None:
    addresses = ["a//b", "x/", "%2F", 'q"u<o>t', "ü ; , |"]
    text = links(Driver(listed=addresses), "t")
    for link, address in zip(text.split(","), addresses, strict=True):
        href = link.partition(">")[0][1:]
        driver = Driver()
        driver.exchange(request("/".join(unquote(part) for part in href[1:].split("/")), GET), peer=PEER)
        assert driver.calls == [LastValue(address=address)]
