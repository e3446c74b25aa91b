"""AMQP laws: routing keys and addresses, any chunking of the bytes, tables and messages there and back."""

import struct
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, encode, header
from pamqp.commands import Basic, Channel, Confirm, Connection

from adapters.amqp.codec.properties import properties_of, read_properties
from adapters.amqp.codec.wire import read_table, write_table
from gateway.domain.filters import matches
from gateway.domain.principal import Principal
from gateway.port.adapter import Call, Publish
from gateway.port.queues import address_of, routing_of
from gateway.queues.leaving.deaths import dead_letter
from gateway.queues.model.bindings import PREDECLARED, Binding, Exchange, binding_predicate, patterns
from store.api.message import Message
from store.api.message import decode as decode_message
from store.api.message import encode as encode_message
from tests.support.amqp.amqp_peer import HEADER, NOW_MS, Peer, encoded, publish
from tests.support.process.examples import examples

SHORT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAME = st.text(st.sampled_from("abAZ09-_.:@#,/+ é%25F"), max_size=20)
WORD = st.sampled_from(["a", "b", "", "x/y", "+", "#", "*", "$s", "%2F", "%2E"])
KEY = st.lists(WORD, min_size=1, max_size=5).map(".".join)


@given(NAME | st.sampled_from(sorted(PREDECLARED)), KEY | SHORT)
def test_exchange_and_routing_key_come_back_from_their_address(exchange, key):
    assert routing_of(address_of(exchange, key)) == (exchange, key)


def words(key: str) -> list[str]:
    """Returns the words of a key; an empty one has none."""
    return key.split(".") if key else []


def topic_matches(pattern: list[str], key: list[str]) -> bool:
    """Returns whether a pattern matches a key, by the words of AMQP's specification."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and topic_matches(pattern[1:], key[1:])


@given(KEY, KEY, st.sampled_from(["t.x", "amq.topic"]))
def test_a_topic_binding_matches_what_amqp_says(binding, key, name):
    exchange = Exchange(name=name, kind="topic")
    address = address_of(name, key)
    found = any(matches(pattern, address) for pattern in patterns(exchange, binding))
    asks = binding_predicate(exchange, Binding(exchange=name, routing_key=binding))
    found = found and (asks is None or asks(Message(address, b"")))
    assert found == topic_matches(words(binding), words(key))


@given(NAME.filter(bool), KEY, KEY)
def test_a_direct_binding_matches_its_key_alone(name, binding, key):
    (pattern,) = patterns(Exchange(name=name, kind="direct"), binding)
    assert matches(pattern, address_of(name, key)) == (binding == key)


# ---- dead letters


@given(
    st.fixed_dictionaries(
        {
            "expiration": st.none() | st.just("5"),
            "headers": st.none() | st.dictionaries(NAME, SHORT | st.integers(-9, 9)),
        }
        | {name: st.none() | SHORT for name in ("content_type", "correlation_id", "message_id", "app_id", "reply_to")},
    ),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
)
def test_a_dead_letter_keeps_its_properties_and_gains_its_account(fields, queues):
    raw = header.ContentHeader(properties=Basic.Properties(**fields)).marshal()[12:]
    message = Message("$amqp//k", native={"amqp": {"properties": raw}})
    for queue in queues:
        message = dead_letter(message, queue=queue, reason="expired", exchange="", routing_key=None, now_ms=NOW_MS)
    left = properties_of(decode_message(encode_message(message)), now_ms=NOW_MS)
    found = Basic.Properties()
    found.unmarshal(int.from_bytes(left[:2], "big"), left[2:])
    headers = dict(found.headers)
    deaths = headers.pop("x-death")
    assert {death["queue"]: death["count"] for death in deaths} == Counter(queues)
    assert deaths[0]["queue"] == queues[-1]
    assert headers.pop("x-first-death-queue") == queues[0]
    kept = {name: text for name, text in headers.items() if not name.startswith("x-first-death-")}
    assert kept == (fields["headers"] or {})
    for name in ("content_type", "correlation_id", "message_id", "app_id", "reply_to"):
        assert (getattr(found, name) or None) == (fields[name] or None)  # pamqp leaves empty texts out
    assert found.expiration is None


# ---- chunks

BODIES = st.binary(max_size=9_000)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "message_id": SHORT,
        "delivery_mode": st.sampled_from([1, 2]),
        "expiration": st.integers(0, 10**12).map(str),
        "headers": st.dictionaries(SHORT.map(lambda name: "h" + name[:30]), SHORT | st.integers(-9, 9), max_size=3),
        "user_id": st.just("guest"),
    },
)
PUBLISHED = st.tuples(st.sampled_from([1, 2]), st.sampled_from(["", "amq.topic", "x"]), KEY, BODIES, PROPERTIES)


def run(chunks):
    """Hands over some bytes, with a gateway that answers at once; returns all messages and all output."""
    peer, output, messages = Peer(), b"", []
    for chunk in chunks:
        queue = list(peer.conn.receive(chunk, now_ms=NOW_MS))
        while queue:
            effect = queue.pop(0)
            if isinstance(effect, Publish):
                messages += effect.messages
                queue += peer.complete(effect)
            elif isinstance(effect, Call):
                queue += peer.complete(effect, Principal(name="guest"))
        output += peer.conn.take_output()
    return messages, output


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(PUBLISHED, max_size=6), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_however_the_bytes_are_cut_the_same_is_published(published, cuts):
    data = HEADER + encoded(0, Connection.StartOk(response="\0guest\0guest", locale="en_US"))
    data += encoded(0, Connection.TuneOk(frame_max=4096), Connection.Open())
    data += encoded(1, Channel.Open()) + encoded(2, Channel.Open(), Confirm.Select())
    for channel, exchange, key, body, properties in published:
        data += publish(channel, exchange, key, body, **properties)
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    whole, whole_output = run([data])
    cut, cut_output = run(pieces)
    assert cut == whole
    assert [message.body for message in whole] == [body for _, _, _, body, _ in published]
    confirmed = sum(1 for channel, *_ in published if channel == 2)
    assert last_ack(cut_output) == last_ack(whole_output) == confirmed


def last_ack(output: bytes) -> int:
    at = output.rfind(b"\x00\x3c\x00\x50")
    return int.from_bytes(output[at + 4 : at + 12], "big") if at >= 0 else 0


# ---- tables and messages

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | SHORT | st.binary(max_size=9).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(SHORT.filter(lambda n: len(n.encode()) <= 100), inner, max_size=3)
    ),
    max_leaves=8,
)
TABLES = st.dictionaries(SHORT.filter(lambda name: len(name.encode()) <= 100), VALUES, max_size=5)


@given(TABLES)
def test_a_table_of_pamqp_reads_as_it_was(table):
    raw = encode.field_table(table)
    assert read_table(raw, 0) == (table, len(raw))


@given(st.dictionaries(SHORT.filter(lambda n: len(n.encode()) <= 255), SHORT | st.booleans() | st.binary(max_size=9)))
def test_a_table_of_ours_reads_as_it_was(table):
    raw = write_table(table)
    assert read_table(raw, 0) == (table, len(raw))


@given(PROPERTIES, st.binary(max_size=200))
def test_a_message_goes_through_the_log_and_leaves_as_it_came(properties, body):
    marshalled = commands.Basic.Properties(**properties).marshal()
    template = read_properties(marshalled)
    message = template.message("a/b", body, device="guest", trusted_gateway=False, now_ms=NOW_MS)
    stored = decode_message(encode_message(message))
    assert stored == message
    assert properties_of(stored, now_ms=NOW_MS + 5) == marshalled


TEXT = SHORT.filter(bool)
MESSAGES = st.builds(
    Message,
    address=SHORT.filter(lambda text: text and not set(text) & set("+#\0")),
    body=st.binary(max_size=50),
    time_ms=st.integers(0, 1 << 50),
    protocol=st.just("mqtt"),
    device=TEXT,
    qos=st.sampled_from([0, 1]),
    retain=st.booleans(),
    id=TEXT,
    key=st.none() | TEXT,
    type=st.none() | TEXT,
    content_type=st.none() | TEXT,
    content_encoding=st.none() | TEXT,
    expires_at_ms=st.none() | st.integers(NOW_MS, NOW_MS + 10**12),
    deliver_at_ms=st.none() | st.integers(NOW_MS + 1, NOW_MS + 10**12),
    reply_to=st.none() | TEXT,
    correlation=st.none() | st.binary(min_size=1, max_size=300),
    traceparent=st.none() | TEXT,
    properties=st.dictionaries(TEXT.map(lambda name: "p" + name), SHORT, max_size=4).map(lambda d: tuple(d.items())),
)


@given(MESSAGES)
def test_a_message_of_another_protocol_comes_back_by_amqp_with_every_field(message):
    """A client that reads a message and publishes it again, as itself, says what the message said."""
    raw = properties_of(message, now_ms=NOW_MS)
    content = header.ContentHeader()
    content.unmarshal(struct.pack(">HHQ", 60, 0, 0) + raw)
    assert content.properties.message_id == message.id
    back = read_properties(raw).message(
        message.address, message.body, device=message.device, trusted_gateway=False, now_ms=NOW_MS
    )
    for name in Message.__struct_fields__:
        if name not in ("protocol", "native"):
            assert getattr(back, name) == getattr(message, name), name


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.binary(max_size=9_000), min_size=1, max_size=4), st.integers(4096, 20_000))
def test_a_delivery_reads_as_what_was_published(bodies, frame_max):
    peer = Peer().open(frame_max=frame_max)
    consumer = peer.consume(no_ack=True)
    assert peer.deliver(consumer, [Message("a", body) for body in bodies]) == len(bodies)
    found: list[bytes] = []
    for _, value in peer.frames():
        if isinstance(value, Basic.Deliver):
            found.append(b"")
        elif not isinstance(value, header.ContentHeader):
            found[-1] += value.value
            assert len(value.value) <= frame_max - 8
    assert found == bodies
