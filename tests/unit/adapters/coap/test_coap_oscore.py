"""OSCORE (RFC 8613): the codec against the specification's vectors, and a socket against aiocoap's protection."""

from random import Random

import pytest
from aiocoap import oscore as aiocoap_oscore
from hypothesis import given
from hypothesis import strategies as st

from adapters.coap.codec.registry import (
    ACK,
    CON,
    DELETE,
    EMPTY,
    FETCH,
    GET,
    NON,
    OBSERVE,
    POST,
    PUT,
    RST,
)
from adapters.coap.codec.wire import Packet, decode, encode
from adapters.coap.oscore.context import ProtectionError, RequestId, SecurityContext
from adapters.coap.oscore.messages import inner_datagram, options_of, plaintext_of, protected_datagram, read_protected
from adapters.coap.oscore.option import CoseError, Fields, decode_option, has_oscore
from gateway.port.oscore import ContextKeys
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER
from tests.support.coap.coap_driver import request as plain_request
from tests.support.coap.oscore_peer import SALT, SECRET, ClientContext, OscoreDriver, served

OSCORE = 9


def keys(sender: str, recipient: str, *, salt: bytes = SALT, id_context: str | None = None) -> ContextKeys:
    return ContextKeys(
        secret=SECRET,
        salt=salt,
        sender_id=bytes.fromhex(sender),
        recipient_id=bytes.fromhex(recipient),
        id_context=None if id_context is None else bytes.fromhex(id_context),
        algorithm=10,
    )


# ---- the specification's vectors (RFC 8613, appendix C)

VECTORS = {
    "C.1": (
        keys("01", ""),
        "ffb14e093c94c9cac9471648b4f98710",
        "f0910ed7295e6ad4b54fc793154302ff",
        "4622d4dd6d944168eefb54987c",
    ),
    "C.2": (
        keys("01", "00", salt=b""),
        "e57b5635815177cd679ab4bcec9d7dda",
        "321b26943253c7ffb6003b0b64d74041",
        "be35ae297d2dace910c52e99f9",
    ),
    "C.3": (
        keys("01", "", id_context="37cbf3210017a2d3"),
        "e39a0c7c77b43f03b4b39ab9a268699f",
        "af2a1300a5e95788b356336eeecd2b92",
        "2ca58fb85ff1b81c0b7181b85e",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_keys_are_derived_as_in_the_vectors(name: str) -> None:
    given_keys, sender_key, recipient_key, common_iv = VECTORS[name]
    context = SecurityContext(given_keys)
    assert context.sender_key.hex() == sender_key
    assert context.recipient_key.hex() == recipient_key
    assert context.common_iv.hex() == common_iv


REQUESTS = {
    "C.4": (
        VECTORS["C.1"][0],
        "44025d1f00003974396c6f63616c686f7374620914ff612f1092f1776f1c1668b3825e",
        Fields(piv=b"\x14", kid=b""),
    ),
    "C.5": (
        VECTORS["C.2"][0],
        "44025d1f00003974396c6f63616c686f737463091400ff4ed339a5a379b0b8bc731fffb0",
        Fields(piv=b"\x14", kid=b"\x00"),
    ),
    "C.6": (
        VECTORS["C.3"][0],
        "44025d1f00003974396c6f63616c686f73746b19140837cbf3210017a2d3ff72cd7273fd331ac45cffbe55c3",
        Fields(piv=b"\x14", kid_context=bytes.fromhex("37cbf3210017a2d3"), kid=b""),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_of_the_vectors_are_unprotected(name: str) -> None:
    context_keys, protected, fields = REQUESTS[name]
    data = bytes.fromhex(protected)
    assert has_oscore(data)
    read = read_protected(decode(data))
    assert read.fields == fields
    assert Fields.encode(read.fields) == dict(decode(data).options)[OSCORE]
    plaintext = SecurityContext(context_keys).unprotect(RequestId(fields.kid, fields.piv), read.ciphertext)
    assert plaintext.hex() == "01b3747631"
    # Uri-Host stays outside: this server has one host.
    assert inner_datagram(data, plaintext, observe=None).hex() == "44015d1f00003974b3747631"


@pytest.mark.parametrize(
    ("name", "own_number", "protected"),
    [
        ("C.7", None, "64445d1f0000397490ffdbaad1e9a7e7b2a813d3c31524378303cdafae119106"),
        ("C.8", 0, "64445d1f00003974920100ff4d4c13669384b67354b2b6175ff4b8658c666a6cf88e"),
    ],
)
def test_responses_of_the_vectors_are_protected(name: str, own_number: int | None, protected: str) -> None:
    context = SecurityContext(keys("01", ""))
    if own_number is not None:
        context.reserve(own_number, 1)
    data = bytes.fromhex("64455d1f00003974ff48656c6c6f20576f726c6421")
    plaintext = plaintext_of(data, *options_of(data))
    piv, ciphertext = context.protect(RequestId(b"", b"\x14"), plaintext, own_number=own_number is not None)
    sent = protected_datagram(data, observe=None, fetched=False, fields=Fields(piv), ciphertext=ciphertext)
    assert sent.hex() == protected


# ---- the option


@given(
    piv=st.none() | st.binary(min_size=1, max_size=5),
    kid_context=st.none() | st.binary(max_size=255),
    kid=st.none() | st.binary(max_size=7),
)
def test_an_option_is_read_as_it_was_written(piv: bytes | None, kid_context: bytes | None, kid: bytes | None) -> None:
    fields = Fields(piv, kid_context, kid)
    assert decode_option(fields.encode()) == fields


@pytest.mark.parametrize("value", ["06", "0e", "1f", "20", "40", "80", "09", "10", "1114", "111405aa", "0114aa"])
def test_an_option_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(CoseError):
        decode_option(bytes.fromhex(value))


@given(st.binary(max_size=20))
def test_an_option_of_any_bytes_is_read_or_refused(value: bytes) -> None:
    try:
        fields = decode_option(value)
    except CoseError:
        return
    assert fields.encode() == value or not value[0] & 0x1F


# ---- a socket


def test_a_protected_request_is_stored_and_read() -> None:
    driver, client = served()
    assert driver.protected(client, "t/a/b", payload=b"21").code.dotted == "2.01"
    (message,) = driver.stored
    assert (message.address, message.body, message.device) == ("a/b", b"21", "dev42")
    answer = driver.protected(client, "t/a/b", GET)
    assert (answer.code.dotted, answer.payload) == ("2.05", b"hello")
    assert driver.protected(client, "t/a/b", DELETE).code.dotted == "2.02"
    assert driver.protected(client, "t/a/b", PUT, payload=b"x").code.dotted == "2.04"
    names = {who.name for who in driver.who if who is not None}
    assert names == {"dev42"}


def test_what_is_outside_says_nothing() -> None:
    driver, client = served()
    for code, outside in ((GET, "2.04"), (POST, "2.04")):
        (data,) = driver.raw(client.protect_request("t/a/b", code))
        packet = decode(data)
        assert f"{packet.code >> 5}.{packet.code & 31:02d}" == outside
        assert dict(packet.options).keys() == {OSCORE}
        assert packet.type == ACK


@pytest.mark.parametrize("algorithm", [10, 30, 1, 2, 3, 24, 12])
def test_every_algorithm_that_may_be_configured(algorithm: int) -> None:
    driver = OscoreDriver()
    client = ClientContext(algorithm=algorithm)
    driver.provision("dev42", client)
    for token in (b"1", b"2"):
        assert driver.protected(client, "t/a/b", token=token, payload=b"21").code.dotted == "2.01"


def test_a_context_is_told_by_its_id_context_too() -> None:
    driver = OscoreDriver()
    clients = [ClientContext(id_context=one) for one in (None, b"", b"floor1")]
    for n, client in enumerate(clients):
        driver.provision(f"dev{n}", client)
    for client in clients:
        assert driver.protected(client, "t/a/b").code.dotted == "2.01"
    assert [message.device for message in driver.stored] == ["dev0", "dev1", "dev2"]


def test_peers_without_protection_are_served_as_ever() -> None:
    driver, client = served()
    driver.protected(client, "t/a/b")
    assert driver.ask("t/a/b/c", mid=900).code == 0x41
    assert driver.stored[-1].device == "c"


def test_a_repeated_message_is_answered_again_and_done_once() -> None:
    driver, client = served()
    for code in (POST, GET):
        data = client.protect_request("t/a/b", code)
        (first,) = driver.raw(data)
        assert driver.raw(data) == [first]
    assert len(driver.stored) == 1


def test_a_replay_is_refused() -> None:
    driver, client = served()
    data = client.protect_request("t/a/b")
    driver.raw(data)
    assert driver.code(data, peer=OTHER) == "4.01 Replay detected"
    driver.now_ms += 300_000
    driver.tick(0)
    assert driver.code(data) == "4.01 Replay detected"
    assert len(driver.stored) == 1


def test_messages_may_come_out_of_order_within_the_window() -> None:
    driver, client = served()
    requests = [client.protect_request("t/a/b", token=bytes([n])) for n in range(70)]
    Random(1).shuffle(first := requests[:30])
    for data in first:
        driver.raw(data)
    assert len(driver.stored) == 30
    driver.raw(requests[69])
    assert driver.code(requests[40]) != "4.01 Replay detected"


@pytest.mark.parametrize("kind", [CON, NON])
def test_errors_are_those_of_the_specification(kind: int) -> None:
    driver, _ = served()
    unknown = ClientContext(sender_id=b"\x09")
    assert driver.code(unknown.protect_request("t/a", type=kind)) == "4.01 Security context not found"
    wrong = ClientContext(secret=bytes(16))
    assert driver.code(wrong.protect_request("t/a", type=kind)) == "4.00 Decryption failed"
    short = Packet(type=kind, code=POST, mid=7, options=((OSCORE, b"\x09\x14\x01"),), payload=b"x")
    assert driver.code(encode(short)) == "4.00 Decryption failed"
    for n, option in enumerate((b"", b"\x01\x14", b"\x08\x01", b"\x0f", b"\x89\x14\x01", b"\x09")):
        bad = Packet(type=kind, code=POST, mid=20 + n, options=((OSCORE, option),), payload=bytes(20))
        assert driver.code(encode(bad)) == "4.02 Failed to decode COSE"
    empty = Packet(type=kind, code=POST, mid=40, options=((OSCORE, b"\x09\x14\x01"),))
    assert driver.code(encode(empty)) == "4.02 Failed to decode COSE"
    assert driver.stored == []
    (data,) = driver.raw(unknown.protect_request("t/a", type=kind))
    assert dict(decode(data).options) == {14: b""}, "Max-Age 0, so that nobody keeps it"


def test_a_changed_byte_is_noticed() -> None:
    driver, client = served()
    data = client.protect_request("t/a/b", payload=b"21")
    start = data.index(b"\xff") + 1
    for n, at in enumerate(range(start, len(data))):
        changed = bytearray(data)
        changed[at] ^= 1
        changed[2:4] = bytes((1, n))
        assert driver.code(bytes(changed)) == "4.00 Decryption failed"
    assert driver.protected(client, "t/a/b").code.dotted == "2.01", "a forged message uses no number up"
    assert len(driver.stored) == 1


def test_an_unknown_critical_option_outside_is_refused() -> None:
    driver, client = served()
    packet = decode(client.protect_request("t/a/b"))
    more = Packet(
        **{**{f: getattr(packet, f) for f in packet.__struct_fields__}, "options": (*packet.options, (65001, b""))}
    )
    assert driver.code(encode(more)).startswith("4.02")
    assert driver.stored == []


def test_options_outside_that_belong_inside_are_discarded() -> None:
    """RFC 8613, 8.2: whoever is on the way cannot change what is asked for."""
    driver, client = served()
    packet = decode(client.protect_request("t/a/b"))
    fields = {name: getattr(packet, name) for name in packet.__struct_fields__}
    more = Packet(**{**fields, "options": (*packet.options, (11, b"evil"), (12, b"\x32"), (15, b"qos=2"))})
    (answer,) = driver.raw(encode(more))
    assert client.open_response(answer).code.dotted == "2.01"
    assert [message.address for message in driver.stored] == ["a/b"]


# ---- Observe, blocks, freshness


def test_an_observer_is_notified() -> None:
    driver, client = served()
    first = driver.protected(client, "t/a/b", GET, options=((OBSERVE, b""),))
    assert (first.code.dotted, first.payload, first.opt.observe is not None) == ("2.05", b"hello", True)
    last = -1
    for n in range(40):
        message = Message(address="a/b", body=b"%d" % n, id=str(n), content_type="text/plain")
        (packet,) = driver.deliver(message)
        assert packet.code == 0x45, "the request was a FETCH outside"
        heard = client.open_response(encode(packet))
        assert heard.payload == b"%d" % n
        assert heard.opt.observe > last
        last = heard.opt.observe
        if packet.type == CON:
            driver.raw(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))


def test_a_confirmable_notification_is_sent_again_as_it_was() -> None:
    driver, client = served()
    driver.protected(client, "t/a/b", GET, options=((OBSERVE, b""),), query=("each=true",))
    (packet,) = driver.deliver(Message(address="a/b", body=b"1", id="2", content_type="text/plain"))
    assert packet.type == CON
    assert driver.tick(3_000) == [packet]
    assert driver.raw(encode(Packet(type=RST, code=EMPTY, mid=packet.mid))) == []
    driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
    assert driver.subscribed() == []


def test_whoever_forges_messages_ends_no_observation() -> None:
    """The kid can be read by everybody: an address counts as a client's once a genuine message has come from it."""
    driver, client = served()
    driver.protected(client, "t/a/b", GET, options=((OBSERVE, b""),))
    old = client.protect_request("t/a/b", GET, token=b"x")
    driver.raw(old)
    forger = ClientContext(secret=bytes(16))
    for n in range(40):
        peer = (f"198.51.100.{n}", 5_683)
        assert driver.code(forger.protect_request("t/a/b"), peer=peer) in {
            "4.00 Decryption failed",
            "4.01 Replay detected",
        }
        assert driver.code(old, peer=peer) == "4.01 Replay detected"
    driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
    assert driver.subscribed() == ["a/b"]
    assert len(driver.deliver(Message(address="a/b", body=b"2", id="2", content_type="text/plain"))) == 1


def test_who_observes_inside_alone_does_not_observe() -> None:
    """RFC 8613, 4.1.3.5: a proxy that took the option away would not forward notifications."""
    driver, client = served()
    packet = decode(client.protect_request("t/a/b", GET, options=((OBSERVE, b""),)))
    fields = {name: getattr(packet, name) for name in packet.__struct_fields__}
    (answer,) = driver.raw(encode(Packet(**{**fields, "options": tuple(o for o in packet.options if o[0] != OBSERVE)})))
    assert client.open_response(answer).opt.observe is None
    assert driver.subscribed() == []


def test_blocks_are_inside() -> None:
    driver, client = served()
    for number, more in ((0, True), (1, False)):
        block = bytes((number << 4 | more << 3,))
        answer = driver.protected(client, "t/a/b", payload=bytes(16), options=((27, block),), token=bytes([number]))
    assert answer.code.dotted == "2.01"
    assert driver.stored[0].body == bytes(32)
    driver.last = Message(address="a/b", body=bytes(range(250)) * 10, id="1")
    body, number = b"", 0
    while True:
        answer = driver.protected(client, "t/a/b", GET, options=((23, bytes((number << 4 | 6,))),))
        body += answer.payload
        if not answer.opt.block2.more:
            break
        number += 1
    assert body == driver.last.body


def test_freshness_is_asked_for_inside() -> None:
    driver, client = served(echo_fresh_s=10)
    challenge = driver.protected(client, "t/a/b")
    assert (challenge.code.dotted, driver.stored) == ("4.01", [])
    answer = driver.protected(client, "t/a/b", options=((252, challenge.opt.echo),))
    assert answer.code.dotted == "2.01"


def test_a_slow_response_is_bound_to_its_request() -> None:
    """Two requests with one token: each response opens with its own request alone."""
    driver, client = served()
    driver.protected(client, "t/a/b")
    (early_call,) = driver.receive(client.protect_request("t/a/b", GET))
    early = client.ids[b"tk"]
    assert [packet.code for packet in driver.tick(1_000)] == [EMPTY]
    (late_call,) = driver.receive(client.protect_request("t/a/b", GET))
    late = client.ids[b"tk"]
    assert [packet.code for packet in driver.tick(1_000)] == [EMPTY]
    for call, request_id, other in ((early_call, early, late), (late_call, late, early)):
        driver.complete([call])
        (data,) = [data for data, _ in driver.endpoint.take_output()]
        assert decode(data).type == CON
        client.ids[b"tk"] = other
        with pytest.raises(aiocoap_oscore.ProtectionInvalid):
            client.open_response(data)
        client.ids[b"tk"] = request_id
        assert client.open_response(data).payload == b"hello"
        driver.receive(encode(Packet(type=ACK, code=EMPTY, mid=decode(data).mid)))  # the next one may follow


def test_a_fetch_is_answered_inside() -> None:
    driver, client = served()
    answer = driver.protected(client, "t", FETCH, payload=b"a/#")
    assert answer.code.dotted == "2.05"


def test_unknown_contexts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = OscoreDriver()
    unknown = [ClientContext(sender_id=bytes((n >> 8, n & 255))) for n in range(300)]
    calls = driver.receive(*[one.protect_request("t/a") for one in unknown])
    assert len(calls) == 256, "one for each message that waits"


# ---- any bytes


@pytest.mark.slow
@given(st.binary(max_size=60), st.sampled_from([POST, GET, FETCH]))
def test_any_plaintext_makes_a_datagram_or_none(plaintext: bytes, code: int) -> None:
    outer = encode(Packet(type=CON, code=code, mid=1, token=b"tk", options=((OSCORE, b"\x09\x01\x01"),), payload=b"x"))
    if plaintext:
        data = inner_datagram(outer, plaintext, observe=b"")
        assert data is None or decode(data).token == b"tk"


def test_every_option_before_the_oscore_option_is_passed() -> None:
    for options in ([(3, b"h" * 20)], [(3, b"h" * 13), (7, b"\x16")], [(6, b"")], [(1, b"12345678")], []):
        data = encode(Packet(type=CON, code=POST, mid=1, options=(*options, (OSCORE, b"\x09\x01\x01"))))
        assert has_oscore(data)
        assert not has_oscore(encode(Packet(type=CON, code=POST, mid=1, options=(*options, (11, b"t")))))


def test_a_message_of_another_context_is_none_of_ours() -> None:
    context = SecurityContext(keys("01", ""))
    with pytest.raises(ProtectionError):
        context.unprotect(RequestId(b"", b"\x14"), bytes(20))


# ---- Message IDs (RFC 7252, 4.4): an endpoint has one set of them, whatever protects its messages


def test_protected_and_plain_notifications_of_an_endpoint_have_different_message_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Random, "getrandbits", lambda _self, bits: 0x1234 & (1 << bits) - 1)
    driver, client = served()
    other = ClientContext(sender_id=b"\x02")
    driver.provision("dev43", other)
    observe = ((OBSERVE, b""),)
    plain = plain_request("t/a/b", GET, mid=1, options=observe)
    for one in (client, other):
        one.mid += 10
        driver.protected(one, "t/a/b", GET, token=b"o", options=observe)
    assert len(driver.raw(plain)) == 1
    mids: list[int] = []
    for n in range(12):
        message = Message(address="a/b", body=b"%d" % n, id=str(n + 2), content_type="text/plain")
        for sub in list(driver.subscriptions):
            sent = driver.deliver(message, sub=sub)
            mids += [packet.mid for packet in sent]
            for packet in sent:
                if packet.type == CON:
                    driver.raw(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))
    assert len(mids) >= 24
    assert len(set(mids)) == len(mids)


def test_a_plain_notification_does_not_take_the_message_id_of_a_protected_response() -> None:
    driver, client = served(observe_confirm_every=1_000)
    mask = driver.endpoint._endpoints.plain.core.mids.mask
    driver.raw(plain_request("t/a/b", GET, mid=1, options=((OBSERVE, b""),)))
    first = 1 ^ mask ^ 0x8000  # the Message ID of the first notification
    client.mid = (first ^ mask) - 1
    (data,) = driver.raw(client.protect_request("t/a/b", GET, type=NON))
    assert decode(data).mid == first
    message = Message(address="a/b", body=b"1", id="2", content_type="text/plain")
    driver.now_ms += 60_000
    (sent,) = driver.deliver(message)
    assert sent.mid == (first + 1) % 0x10000
