"""Options of a request that have no meaning for its method, another length, or come twice (RFC 7252, 5.4)."""

import pytest

from adapters.coap.codec.registry import ACCEPT, BLOCK2, CONTENT_FORMAT, IF_MATCH, IF_NONE_MATCH
from adapters.coap.codec.wire import Packet, encode_options
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted

CON, NON = 0, 1
GET, POST, PUT, DELETE = 1, 2, 3, 4
URI_HOST, ETAG, OBSERVE, URI_PORT, LOCATION_PATH, URI_PATH = 3, 4, 6, 7, 8, 11
MAX_AGE, URI_QUERY, SIZE1, RESERVED = 14, 15, 60, 128
LAST = Message(address="a", body=b"1", id="1", content_type="text/plain")


def asked(code: int, *options: tuple[int, bytes], kind: int = CON, body: bytes = b"") -> tuple[Driver, list[Packet]]:
    driver = Driver(last=LAST)
    head = bytes([0x40 | kind << 4, code, 0, 1])
    given = sorted([(URI_PATH, b"t"), (URI_PATH, b"a"), *options], key=lambda option: option[0])
    return driver, driver.exchange(head + encode_options(tuple(given)) + (b"\xff" + body if body else b""))


@pytest.mark.parametrize(
    ("code", "option"),
    [
        (PUT, (IF_MATCH, b"123456789")),
        (PUT, (IF_NONE_MATCH, b"1")),
        (GET, (URI_HOST, b"")),
        (GET, (URI_PORT, b"123")),
        (GET, (ACCEPT, b"\0\0\1")),
        (GET, (URI_PATH, b"x" * 256)),
        (POST, (URI_QUERY, b"x" * 256)),
        (GET, (BLOCK2, b"\0\0\0\6")),
    ],
)
def test_a_value_of_another_length_is_an_option_not_understood(code: int, option: tuple[int, bytes]) -> None:
    driver, (answer,) = asked(code, option, body=b"x" if code != GET else b"")
    assert (dotted(answer.code), answer.payload) == ("4.02", f"option {option[0]} is not understood".encode())
    assert driver.stored == []


@pytest.mark.parametrize(
    "option", [(ETAG, b""), (ETAG, b"123456789"), (OBSERVE, bytes(4)), (CONTENT_FORMAT, bytes(3)), (SIZE1, bytes(5))]
)
def test_an_elective_option_of_another_length_is_ignored(option: tuple[int, bytes]) -> None:
    driver, (answer,) = asked(POST, option, body=b"x")
    assert (dotted(answer.code), [one.body for one in driver.stored]) == ("2.01", [b"x"])
    driver, (answer,) = asked(GET, option)
    assert (dotted(answer.code), answer.payload) == ("2.05", b"1")


@pytest.mark.parametrize("option", [(LOCATION_PATH, b"x"), (MAX_AGE, b"\1"), (RESERVED, b"x")])
def test_an_elective_option_that_means_nothing_here_is_ignored(option: tuple[int, bytes]) -> None:
    _, (answer,) = asked(GET, option)
    assert (dotted(answer.code), answer.payload) == ("2.05", b"1")


def test_an_elective_option_given_twice_counts_once() -> None:
    driver, (answer,) = asked(POST, (CONTENT_FORMAT, b""), (CONTENT_FORMAT, b"\x32"), body=b"x")
    assert dotted(answer.code) == "2.01"
    assert driver.stored[0].content_type == "text/plain; charset=utf-8"


def test_an_integer_may_have_leading_zeros() -> None:
    _, (answer,) = asked(GET, (ACCEPT, b"\0\0"))
    assert (dotted(answer.code), answer.payload) == ("2.05", b"1")


@pytest.mark.parametrize("code", [GET, POST])
def test_a_non_with_a_critical_option_that_is_not_understood_is_rejected(code: int) -> None:
    driver, answers = asked(code, (9001, b"x"), kind=NON, body=b"x" if code == POST else b"")
    assert (answers, driver.stored) == ([], [])


def test_a_payload_of_a_method_without_one_is_ignored() -> None:
    _, (answer,) = asked(GET, body=b"x")
    assert (dotted(answer.code), answer.payload) == ("2.05", b"1")
    driver, (answer,) = asked(DELETE, body=b"x")
    assert (dotted(answer.code), [one.body for one in driver.stored]) == ("2.02", [b""])
