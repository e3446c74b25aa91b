"""Whatever bytes a peer sends, the connection parses or answers with the protocol's error, and never raises."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import INDEX_MAPPING, Basic, Channel, Confirm, Exchange, Queue

from adapters.amqp.codec.properties import read_properties
from adapters.amqp.codec.wire import read_method, read_table, write_table
from adapters.amqp.handshake import authentication
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.adapter import Call, Close, Consume, Outcome, Publish
from gateway.port.queues import DeclareQueue, DeleteQueue, PurgeQueue, QueueInfo
from tests.support.amqp.amqp_peer import HEADER, NOW_MS, Peer, encoded, publish
from tests.support.process.examples import examples

MECHANISMS = b"PLAIN AMQPLAIN EXTERNAL"
CORPUS = [
    encoded(1, Queue.Declare(queue="q", arguments={"a": 1, "t": {"x": [1, "y"]}})),
    encoded(1, Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#")),
    encoded(1, Exchange.Declare(exchange="x", exchange_type="topic")),
    encoded(1, Basic.Qos(prefetch_count=5), Basic.Consume(queue="q", consumer_tag="c")),
    encoded(1, Basic.Get(queue="q"), Basic.Ack(delivery_tag=1), Basic.Cancel(consumer_tag="c")),
    encoded(1, Confirm.Select()),
    publish(1, "amq.topic", "a.b", b"x" * 50, headers={"a": 1, "b": "c"}, message_id="m"),
    publish(1, "amq.topic", "a.b", b"", mandatory=True),
    publish(1, "x", "k", b"y" * 5_000, expiration="5", delivery_mode=2),
    encoded(2, Channel.Open()),
    b"\x08\x00\x00\x00\x00\x00\x00\xce",
]


def answer(peer, effects, chance):
    """Answers as the gateway does: with success, a refusal, or another value."""
    queue = list(effects)
    while queue:
        effect = queue.pop(0)
        if not isinstance(effect, Publish | Call | Consume):
            continue
        request = getattr(effect, "request", None)
        value = None
        if isinstance(request, DeclareQueue):
            value = QueueInfo(name=request.name or "amq.gen", messages=0, consumers=0)
        elif isinstance(request, DeleteQueue | PurgeQueue):
            value = 1
        mandatory = effect.mandatory if isinstance(effect, Publish) else ()
        outcome = Outcome(value=value, unrouted=[index for index in mandatory if chance.randrange(2)])
        if chance.random() < 0.1:
            outcome = Outcome(error=Refusal(chance.choice(list(Cause))))
        queue += peer.conn.completed(effect.token, outcome, now_ms=NOW_MS)


def drive(peer, data, chance):
    at = 0
    while at < len(data):
        size = chance.choice([1, 7, 100, 10_000])
        effects = peer.conn.receive(data[at : at + size], now_ms=NOW_MS)
        answer(peer, effects, chance)
        at += size
        peer.frames()  # our own output is always well-formed
        if any(isinstance(effect, Close) for effect in effects):
            assert peer.conn.receive(data, now_ms=NOW_MS) == ()
            return


@pytest.mark.parametrize("seed", range(150))
def test_mutated_conversations(seed):
    chance = random.Random(seed)
    data = bytearray(b"".join(chance.choices(CORPUS, k=8)))
    for _ in range(chance.choice([0, 1, 1, 2, 8])):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 30)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 30))
            case _:
                data[at] ^= 1 << chance.randrange(8)
    drive(Peer().open(), bytes(data), chance)


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", HEADER]))
def test_random_bytes_from_the_first_on(data, begin):
    drive(Peer(), begin + data, random.Random(1))


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(INDEX_MAPPING)), st.binary(max_size=60), st.sampled_from([0, 1, 2]))
def test_every_method_with_random_arguments(index, arguments, channel):
    payload = index.to_bytes(4, "big") + arguments
    frame = b"\x01" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"
    drive(Peer().open(), frame, random.Random(2))


@given(st.sampled_from(MECHANISMS.decode().split()), st.binary(max_size=120))
def test_the_response_of_a_mechanism_asks_who_it_is_or_is_refused(mechanism, response):
    with contextlib.suppress(ProtocolError):
        assert authentication(mechanism, response, MECHANISMS).mechanism in {"password", "external"}


@given(st.binary(max_size=120))
def test_decoders_raise_one_error_or_none(data):
    for decode in (read_method, read_properties, lambda raw: authentication("AMQPLAIN", raw, MECHANISMS)):
        with contextlib.suppress(ProtocolError):
            decode(data)


TABLES = [
    write_table({"LOGIN": "guest", "PASSWORD": b"guest", "t": {"u": {"v": True}}, "n": 5}),
    Queue.Declare(queue="q", arguments={"a": [1, 2.5, "x", None], "t": {"x": {"y": "z"}}}).marshal()[4:],
    b"\x00\x00\x00\x04\x01al\x00",
]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(TABLES), st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=4), st.integers(0)
)
def test_mutated_tables_raise_one_error_or_none(table, changes, cut):
    data = bytearray(table)
    for at, value in changes:
        data[at % len(data)] = value
    raw = bytes(data)[: len(data) - cut % len(data)]
    with contextlib.suppress(ValueError):
        read_table(raw, 0)
    with contextlib.suppress(ProtocolError):
        authentication("AMQPLAIN", raw[4:], MECHANISMS)


@pytest.mark.parametrize("response", [b"\x01al\x00", b"\x01aF\x00", b"\x01a", b"\x05a", b"\x01aD\x00"])
def test_the_response_of_amqplain_may_end_anywhere(response):
    with pytest.raises(ProtocolError):
        authentication("AMQPLAIN", response, MECHANISMS)


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_conversations_cut_short_wait(cut):
    drive(Peer().open(), b"".join(CORPUS)[:cut], random.Random(cut))
