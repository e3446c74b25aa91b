"""Reception of PUBLISH packets, as sessions and upstreams share it."""

import pytest

from adapters.mqtt.codec.primitives import PacketReader
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import CODES_OF_RETURN, RETURN_CODES, ReasonCode
from adapters.mqtt.receiving.acknowledgements import acknowledgement
from adapters.mqtt.receiving.cache import Cache
from adapters.mqtt.receiving.keep_alive import KeepAlive
from adapters.mqtt.receiving.publish_reader import PublishReader
from adapters.mqtt.receiving.templates import TEMPLATE_BYTES_MAX, TEMPLATES_MAX, Templates
from gateway.domain.errors import ProtocolError

HEAD = b"\0\x03a/b"
CONTENT_TYPE = b"\x07\x03\0\x04json"  # as properties: their length, and a Content Type


def test_a_full_cache_begins_anew_and_long_keys_are_not_kept():
    cache = Cache(count_max=2, key_bytes_max=3)
    for key in (b"a", b"long", b"b", b"abc"):
        cache.keep(key, key.decode())
    assert cache.known == {b"abc": "abc"}


def test_properties_of_the_same_bytes_are_decoded_once():
    made = []
    templates = Templates("plain")

    def make(properties):
        made.append(properties)
        return len(made)

    readers = [PacketReader(data) for data in (CONTENT_TYPE + b"x", b"\0y", CONTENT_TYPE + b"z")]
    assert [templates.read(reader, make) for reader in readers] == [1, "plain", 1]
    assert [reader.rest() for reader in readers] == [b"x", b"y", b"z"]
    assert made == [Properties(content_type="json")]


def test_a_template_may_be_none():
    templates, made = Templates("plain"), []
    for _ in range(2):
        assert templates.read(PacketReader(CONTENT_TYPE), made.append) is None
    assert len(made) == 1


def test_properties_that_end_in_the_next_packet_are_malformed_although_their_bytes_are_known():
    templates = Templates("plain")
    assert templates.read(PacketReader(CONTENT_TYPE), lambda _: "known") == "known"
    for end in range(len(CONTENT_TYPE)):
        with pytest.raises(ProtocolError) as caught:
            templates.read(PacketReader(CONTENT_TYPE, 0, end), lambda _: "known")
        assert caught.value.code == ReasonCode.MALFORMED_PACKET


def test_templates_take_a_limited_room():
    templates = Templates("plain")
    text = b"x" * TEMPLATE_BYTES_MAX
    long = b"\x83\x04\x03" + len(text).to_bytes(2, "big") + text
    assert templates.read(PacketReader(long), lambda _: "first") == "first"
    assert templates.read(PacketReader(long), lambda _: "second") == "second"
    for number in range(TEMPLATES_MAX + 1):
        templates.read(PacketReader(b"\x07\x03\0\x04" + b"%04d" % number), lambda _: "known")
    assert templates.read(PacketReader(b"\x07\x03\0\x040000"), lambda _: "again") == "again"


@pytest.mark.parametrize(
    ("first", "body", "identifier", "rest"),
    [
        (0x30, HEAD + b"xy", b"\0\0", b"xy"),
        (0x32, HEAD + b"\0\x01x", b"\0\x01", b"x"),
        (0x34, HEAD + b"\1\0", b"\1\0", b""),
    ],
)
def test_the_head_of_a_publish(first, body, identifier, rest):
    reader = PublishReader(first, b"--" + body + b"next", 2, 2 + len(body))
    assert (reader.name, reader.qos, reader.identifier, reader.rest()) == (b"a/b", first >> 1 & 3, identifier, rest)


@pytest.mark.parametrize(
    ("first", "body"),
    [
        (0x36, HEAD + b"\0\x01"),  # QoS 3
        (0x32, HEAD + b"\0\0"),  # packet identifier 0
        *[(0x32, (HEAD + b"\0\x01")[:size]) for size in range(len(HEAD) + 2)],
        *[(0x30, HEAD[:size]) for size in range(len(HEAD))],
    ],
)
def test_a_malformed_head_is_refused_whatever_comes_behind_it(first, body):
    for behind in (b"", b"\x01" * 100):
        with pytest.raises(ProtocolError) as caught:
            PublishReader(first, body + behind, 0, len(body))
        assert caught.value.code == ReasonCode.MALFORMED_PACKET


def test_acknowledgements_have_a_code_only_where_it_says_something():
    assert acknowledgement(1, b"\0\x07") == b"\x40\x02\0\x07"
    assert acknowledgement(2, b"\0\x07") == b"\x50\x02\0\x07"
    assert acknowledgement(1, b"\0\x07", 0x97) == b"\x40\x03\0\x07\x97"
    assert acknowledgement(2, b"\0\x07", 0x97) == b"\x50\x03\0\x07\x97"


def test_a_peer_is_silent_for_too_long_after_one_and_a_half_intervals():
    silence = KeepAlive()
    assert silence.limit_ms() is None
    assert not silence.is_over(1 << 40, reading=True)
    silence.interval_ms, silence.received_ms = 1_000, 5_000
    assert silence.limit_ms() == 6_500
    assert not silence.is_over(6_499, reading=True)
    assert silence.is_over(6_500, reading=True)


def test_silence_begins_anew_while_nothing_is_read():
    silence = KeepAlive()
    silence.interval_ms = 1_000
    assert not silence.is_over(1_400, reading=False)
    assert not silence.is_over(1_500, reading=True)
    assert silence.limit_ms() == 2_900


def test_a_return_code_means_the_first_reason_that_it_stands_for():
    assert {number: RETURN_CODES[code] for number, code in CODES_OF_RETURN.items()} == {n: n for n in range(6)}
    assert CODES_OF_RETURN[3] is ReasonCode.SERVER_UNAVAILABLE
