from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.address import ADDRESS_BYTES_MAX, check_address, from_routing_key, hash64, level_of, to_routing_key
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost
from gateway.port.queues import address_of

KEYS = st.text(st.sampled_from(["a", "b", ".", "/", "%", "2", "5", "E", "F", "+", "#", "*", "\0", "é"]), max_size=20)
PIECES = st.lists(st.sampled_from(["%2F", "%2E", "%252F", "%25", ".", "/", "x", "%2B", "%00"]), max_size=8).map("".join)


@given(KEYS | PIECES)
def test_a_routing_key_survives_the_round_trip(key):
    assert to_routing_key(from_routing_key(key)) == key


@given((KEYS | PIECES).filter(lambda a: not set(a) & set("+#\0")))
def test_an_address_survives_the_round_trip(address):
    assert from_routing_key(to_routing_key(address)) == address


@given((KEYS | PIECES).filter(bool))
def test_every_routing_key_becomes_an_address_that_may_be_published_to(key):
    assert check_address(from_routing_key(key))


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("telemetry.site1.dev42.temp", "telemetry/site1/dev42/temp"),
        ("a.b/c", "a/b%2Fc"),
        ("a%2Eb.c", "a.b/c"),
        ("a.b%2Fc", "a/b%252Fc"),
        ("..", "//"),
        ("50%.x", "50%/x"),
    ],
)
def test_examples(key, address):
    assert from_routing_key(key) == address
    assert to_routing_key(address) == key


@pytest.mark.parametrize("address", ["", "a/+/b", "a/#", "a\0b", "x" * (ADDRESS_BYTES_MAX + 1), "é" * 40_000])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(Refusal) as refused:
        check_address(address)
    assert refused.value.cause is Cause.MALFORMED


def test_the_hash_is_the_same_in_every_process_and_never_zero():
    assert hash64("telemetry/site1/dev42/temp") == int.from_bytes(
        blake2b(b"telemetry/site1/dev42/temp", digest_size=8).digest(), "little"
    )
    assert hash64("a") != hash64("b")


@pytest.mark.parametrize(
    ("address", "level", "found"),
    [("a/b/c", 0, "a"), ("a/b/c", 2, "c"), ("a/b/c", 3, ""), ("a/b/c/d", 2, "c"), ("a//c", 1, ""), ("a", -1, "")],
)
def test_a_level_of_an_address(address, level, found):
    assert level_of(address, level) == found


@pytest.mark.parametrize("exchange", ["amq.topic", "x", in_vhost("shop", "x")])
def test_every_routing_key_of_amqp_is_an_address(exchange):
    assert check_address(address_of(exchange, "." * 255)).count("/") >= 255
