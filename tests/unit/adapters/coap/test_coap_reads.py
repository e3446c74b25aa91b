"""GET: last values and links."""

import json
from urllib.parse import unquote

import msgspec
import pytest

from adapters.cloudevents import from_structured
from adapters.coap.codec.registry import ACCEPT, ACK, CON, CONTENT_FORMAT, ETAG, GET, MAX_AGE, NON, OBSERVE, URI_PATH
from adapters.coap.codec.wire import Packet, encode
from adapters.coap.reading.listings import LISTS_WAITING_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from gateway.port.reads import LastValue, ListAddresses
from store.api.message import Message
from tests.support.coap.coap_driver import PEER, Driver, dotted, is_ack, options_of, request

VALUE = Message(address="a/b", body=b'{"t":1}', id="7:0", content_type="application/json", time_ms=5)


def test_the_last_value() -> None:
    driver = Driver(last=VALUE)
    answer = driver.get("t/a/b")
    assert driver.calls == [LastValue(address="a/b")]
    assert driver.stored == []
    assert is_ack(answer, "2.05")
    assert answer.payload == VALUE.body
    options = options_of(answer)
    assert options[CONTENT_FORMAT] == b"\x32"
    assert options[MAX_AGE] == b""
    assert len(options[ETAG]) == 8


def test_json_of_an_event_that_says_no_type_has_its_content_format() -> None:
    """(CloudEvents 1.0.2, 3.4)"""
    body = b'{"specversion":"1.0","id":"e1","source":"/s","type":"T","data":{"t":1}}'
    event = from_structured(body, now_ms=5, protocol="http", device="d", address="a/b")
    answer = Driver(last=event).get("t/a/b")
    assert (answer.payload, options_of(answer)[CONTENT_FORMAT]) == (b'{"t":1}', b"\x32")


def test_a_non_is_answered_by_a_non() -> None:
    driver = Driver(last=VALUE)
    answer = driver.get("t/a/b", type=NON)
    assert (answer.type, dotted(answer.code), answer.token) == (NON, "2.05", b"tk")


def test_there_is_none() -> None:
    assert is_ack(Driver().get("t/a"), "4.04")


def test_it_has_expired() -> None:
    driver = Driver(last=Message(address="a", expires_at_ms=1_000_000))
    assert is_ack(driver.get("t/a"), "4.04")


@pytest.mark.parametrize(("path", "code"), [("", "4.04"), ("t/", "4.00"), (".well-known/x", "4.04"), ("t/..", "4.02")])
def test_paths_that_are_no_address(path: str, code: str) -> None:
    driver = Driver()
    assert is_ack(driver.get(path), code)
    assert driver.calls == []


def test_max_age_ends_with_the_message() -> None:
    settings = {"max_age_s": 61}
    assert options_of(Driver(settings, last=VALUE).get("t/a"))[MAX_AGE] == b"\x3d"
    expiring = Message(address="a", id="1", expires_at_ms=1_009_999)
    assert options_of(Driver(settings, last=expiring).get("t/a"))[MAX_AGE] == b"\x09"


def test_max_age_is_left_out_where_it_is_the_default() -> None:
    """(RFC 7252, 5.4.4) A notification has it always (RFC 7641, 4.3.1)."""
    driver = Driver({"max_age_s": 60}, last=VALUE)
    answer = driver.get("t/a")
    etag = options_of(answer)[ETAG]
    assert options_of(answer) == {ETAG: etag, CONTENT_FORMAT: b"\x32"}
    answer = driver.get("t/a", mid=2, options=((ETAG, etag),))
    assert (dotted(answer.code), options_of(answer)) == ("2.03", {ETAG: etag})
    driver.last = msgspec.structs.replace(VALUE, expires_at_ms=driver.now_ms + 60_000)
    assert options_of(driver.get("t/a", mid=3, options=((OBSERVE, b""),)))[MAX_AGE] == b"\x3c"


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
    for mid, kind, said in ((3, "application/x-mine", b"application/x-mine"), (4, None, b"no Content-Format")):
        driver.last = Message(address="a", id="1", content_type=kind)
        answer = driver.get("t/a", mid=mid, options=((ACCEPT, b"\x32"),))
        assert is_ack(answer, "4.06", mid=mid)
        assert answer.payload == b"Accept: the message is of " + said


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
    assert json.loads(answer.payload) == {**event, "headgateaddress": driver.last.address}


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


def discover(mid: int, *query: str) -> bytes:
    return request(".well-known/core", GET, mid=mid, token=bytes([mid]), query=query)


def test_one_list_is_asked_for_at_a_time_and_shared() -> None:
    driver = Driver(listed=LISTED)
    (first,) = driver.receive(*[discover(n) for n in range(100)])
    assert driver.receive(*[discover(n) for n in range(100, 200)]) == []  # it may have been published to meanwhile
    answers = driver.exchange()
    assert answers == []
    (second,) = driver.endpoint.completed(first.token, Outcome(value=["a"]), now_ms=driver.now_ms)
    answers = driver.sent()
    assert [answer.mid for answer in answers] == list(range(100))
    assert len({answer.payload for answer in answers}) == 1
    driver.complete([second])
    answers = driver.sent()
    assert [answer.mid for answer in answers] == list(range(100, 200))
    assert all(b"plant" in answer.payload for answer in answers)


def test_requests_for_other_links_wait_for_their_own_list() -> None:
    driver = Driver(listed=LISTED)
    (call,) = driver.receive(discover(1, "href=/t/a"), discover(2, "href=/t/plant/*"), discover(3, "href=/t/a"))
    assert call.request == ListAddresses(prefix="a", limit=1_000)
    driver.complete([call])
    assert {answer.mid: answer.payload.count(b"<") for answer in driver.sent()} == {1: 1, 3: 1, 2: 2}
    assert [question.prefix for question in driver.calls] == ["a", "plant/"]


def test_too_many_different_lists_are_refused() -> None:
    driver = Driver()
    datagrams = [discover(n, f"n={n}") for n in range(LISTS_WAITING_MAX + 1)]
    (call,) = driver.receive(*datagrams, discover(200, "n=0"))
    (refused,) = driver.sent()
    assert is_ack(refused, "5.03", mid=LISTS_WAITING_MAX, token=bytes([LISTS_WAITING_MAX]))
    driver.complete([call])
    assert len(driver.sent()) == LISTS_WAITING_MAX + 1
    assert driver.receive() == []


def test_a_list_that_is_refused_is_refused_to_all_and_the_next_is_asked_for() -> None:
    driver = Driver(listed=LISTED)
    (call,) = driver.receive(discover(1), discover(2), discover(3, "href=/t/a"))
    driver.complete([call], Outcome(error=Refusal(Cause.UNAVAILABLE, "later")))
    assert [dotted(answer.code) for answer in driver.sent()] == ["5.03", "5.03", "2.05"]


def test_requests_that_wait_for_a_list_are_acknowledged() -> None:
    driver = Driver(listed=LISTED)
    (call,) = driver.receive(discover(1), discover(2, "href=/t/a"))
    assert [(packet.type, packet.code) for packet in driver.tick(1_000)] == [(ACK, 0), (ACK, 0)]
    driver.complete([call])
    (first,) = driver.sent()
    (second,) = driver.exchange(encode(Packet(type=ACK, code=0, mid=first.mid)))
    assert [(packet.type, dotted(packet.code)) for packet in (first, second)] == [(CON, "2.05"), (CON, "2.05")]


def test_the_links_below_a_root() -> None:
    assert links(Driver({"topics_namespace": ""}, listed=["a/b"]), "ps") == '</ps/a/b>;rt="core.ps.data"'
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
        segments = tuple((URI_PATH, unquote(part).encode()) for part in href[1:].split("/"))
        driver.exchange(request("", GET, options=segments), peer=PEER)
        assert driver.calls == [LastValue(address=address)]
