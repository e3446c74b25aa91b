"""The load programs' own reading of the wire: what they count must be what was there."""

import random
import socket
import struct
import threading
from contextlib import suppress
from itertools import pairwise

import h2.config
import h2.connection
import h2.events
import pytest

from tests.bench.load import one_each as one_each_module
from tests.bench.load.amqp.amqp_wire import (
    ACK,
    BODY,
    HEADER,
    NACK,
    ChannelAcks,
    Confirms,
    Session,
    frame,
    method,
    short,
)
from tests.bench.load.base import LoadError, json_payload
from tests.bench.load.coap.coap_devices import CoapDevices
from tests.bench.load.http.http_wire import Http1, Http2, Post
from tests.bench.load.mqtt.mqtt_publish import MqttPublish
from tests.bench.load.mqtt.mqtt_storm import MqttStorm
from tests.bench.load.mqtt.mqtt_subscribers import MqttSubscribers, pubacks
from tests.bench.load.mqtt.mqtt_wire import PINGRESP, PublishCounter, publish, topic
from tests.bench.load.one_each import one_each


def pieces(data, chance):
    cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(20))})
    return [data[start:end] for start, end in pairwise(cuts)]


@pytest.mark.parametrize("seed", range(20))
def test_publish_packets_are_counted_however_they_are_cut(seed):
    chance = random.Random(seed)
    packets, expected = [], 0
    for _ in range(chance.randrange(1, 12)):
        alike = chance.randrange(1, 40)
        size = chance.choice((0, 1, 80, 100, 127, 128, 300, 20_000))
        packets += [publish(topic(1), json_payload(size), qos=chance.randrange(2), identifier=7)] * alike
        packets += [PINGRESP] * chance.randrange(3)
        expected += alike
    counter = PublishCounter()
    for piece in pieces(b"".join(packets), chance):
        counter.feed(piece)
    assert counter.count == expected


def test_the_blocks_of_a_connection_hold_every_topic_and_no_identifier_twice():
    load = MqttPublish(topics=1_250, window=200)
    blocks = load.blocks(1)
    size = len(publish(topic(0), json_payload(100), qos=1, identifier=1))
    packets = [block[at : at + size] for block in blocks for at in range(0, len(block), size)]
    end = size - 100 - 2  # of the topic; behind it the identifier and the payload
    assert {packet[end - len(topic(0)) : end] for packet in packets} == {topic(n) for n in range(1_250, 2_500)}
    assert len({packet[end : end + 2] for packet in packets}) == len(packets) == 1_300


def confirm(confirms, name, tag, *, multiple):
    confirms.take(name, struct.pack("!QB", tag, multiple))


def test_confirms_count_single_and_multiple_ones_in_any_order():
    confirms = Confirms()
    confirm(confirms, ACK, 2, multiple=False)
    confirm(confirms, ACK, 5, multiple=False)
    assert confirms.answered == 2
    confirm(confirms, ACK, 3, multiple=True)
    assert confirms.answered == 4
    confirm(confirms, NACK, 4, multiple=False)
    assert (confirms.answered, confirms.nacked) == (5, 1)
    confirm(confirms, ACK, 5, multiple=True)
    assert confirms.answered == 5


def test_deliveries_are_counted_however_they_are_cut():
    stream = b"".join(
        method((60, 60), short("ctag") + struct.pack("!QB", tag, 0) + short("e") + short("key"))
        + frame(HEADER, bytes(14))
        + frame(BODY, b"body" * tag)
        for tag in range(1, 40)
    )
    for seed in range(20):
        session, (ours, theirs) = Session.__new__(Session), socket.socketpair()
        session.socket, session._rest = theirs, b""
        total, newest = 0, 0
        with ours, theirs:
            for piece in pieces(stream, random.Random(seed)):
                ours.sendall(piece)
                count, tag = session.deliveries()
                total, newest = total + count, max(newest, tag)
        assert (total, newest) == (39, 39)


def test_http1_answers_are_counted_however_they_are_cut():
    answers = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello" * 9 + b"HTTP/1.1 204 No Content\r\n\r\n" * 3
    for seed in range(20):
        wire = Http1(Post("event", json_payload(40), 1), "localhost")
        for piece in pieces(answers, random.Random(seed)):
            wire.feed(piece)
        assert wire.statuses == {200: 9, 204: 3}


def test_http2_requests_arrive_whole_within_the_windows():
    post = Post("batch", json_payload(100), 100)
    wire = Http2(post, "localhost")
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    server.initiate_connection()
    bodies: dict[int, bytes] = {}
    to_server = wire.opening + wire.requests(8)
    while to_server:
        for event in server.receive_data(to_server):
            if isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                server.send_headers(event.stream_id, [(":status", "202"), ("x-some", "header")], end_stream=True)
        to_server = wire.feed(server.data_to_send())
    assert list(bodies.values()) == [post.body] * 8
    assert wire.statuses == {202: 8}


def test_http2_says_when_the_server_gives_up():
    wire = Http2(Post("event", json_payload(40), 1), "localhost")
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(wire.opening)
    server.close_connection()
    with pytest.raises(LoadError):
        wire.feed(server.data_to_send())


def test_channels_are_confirmed_however_the_acks_are_cut():
    stream = b"".join(method(ACK, struct.pack("!QB", tag, 0), channel) for tag in range(1, 5) for channel in (3, 1, 2))
    for seed in range(20):
        session, (ours, theirs) = Session.__new__(Session), socket.socketpair()
        session.socket, found = theirs, []
        acks = ChannelAcks(session)
        with ours, theirs:
            for piece in pieces(stream, random.Random(seed)):
                ours.sendall(piece)
                found += acks.read()
        assert found == [3, 1, 2] * 4


def test_an_endpoint_asks_again_only_when_its_own_request_is_answered():
    _, first, answered = CoapDevices()._peer(None, 7)
    token = first[4:8]
    assert answered(b"\x60\x00" + first[2:4]) == b""  # an empty acknowledgement
    assert answered(b"\x64\x44" + first[2:4] + b"late") == b""
    following = answered(b"\x64\x44" + first[2:4] + token)
    assert following[:2] == first[:2]
    assert following[2:8] != first[2:8]
    assert following[8:] == first[8:]
    with pytest.raises(LoadError):
        answered(b"\x64\xa3" + following[2:8])


def test_each_peer_has_one_request_under_way_and_lost_ones_are_sent_again(monkeypatch):
    monkeypatch.setattr(one_each_module, "AGAIN_S", 0.02)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    asked: list[bytes] = []
    answered = [0]

    def following(data):
        if int(data) < len(answered) - 1:  # answered twice, as it was sent twice
            return b""
        answered.append(int(data))
        return b"%d" % len(answered[1:])

    def answer():
        while (data := ours.recv(64)) != b"end":
            asked.append(data)
            if len(asked) > 1:  # the first is lost
                ours.send(data)

    with ours, theirs:
        answering = threading.Thread(target=answer)
        answering.start()
        found = one_each([(theirs, b"0", following)], duration_s=0.3, pid=0, again=True)
        theirs.setblocking(True)
        theirs.send(b"end")
        answering.join()
    assert found.also["sent_again"] >= 1
    assert asked[:2] == [b"0", b"0"]
    assert list(dict.fromkeys(map(int, asked))) == list(range(found.done + 1))


def serve(answer):
    """Answers what comes on each connection to a port of this process; returns the listening socket."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)

    def one(connection):
        with connection, suppress(OSError):  # the load has gone
            while data := connection.recv(1 << 12):
                for peer, said in answer(connection, data):
                    peer.sendall(said)

    def accept():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listening


def test_a_storm_ends_when_every_connection_is_accepted():
    seen = []

    def answer(connection, data):
        assert data[:1] == b"\x10"
        seen.append(data)
        return [(connection, b"\x20\x02\x00\x00")]

    with serve(answer) as listening:
        found = MqttStorm(port=listening.getsockname()[1], conns=25, at_once=4).run()
    assert found.done == len(set(seen)) == 25
    assert found.also["max_ms"] >= found.also["mean_ms"] > 0


def test_a_storm_whose_connections_are_refused_fails():
    with (
        serve(lambda connection, _: [(connection, b"\x20\x02\x00\x03")]) as listening,
        pytest.raises(LoadError, match="not accepted"),
    ):
        MqttStorm(port=listening.getsockname()[1], conns=3, at_once=3).run()


def test_pubacks_answer_each_delivery():
    packets = [publish(topic(n), json_payload(size), qos=1, identifier=n + 1) for n, size in enumerate((10, 100, 300))]
    assert pubacks(b"".join(packets)) == b"".join(b"\x40\x02" + struct.pack("!H", n + 1) for n in range(3))
    for wrong in (b"", packets[0][:-1], PINGRESP, publish(topic(1), b"{}", qos=0, identifier=0)):
        with pytest.raises(LoadError):
            pubacks(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("each_s", [0.0, 0.05])
def test_each_subscriber_gets_its_next_message_when_it_has_had_the_one_before(each_s):
    subscribers, published = {}, []

    def answer(connection, data):
        kind = data[0] >> 4
        if kind == 1:
            return [(connection, b"\x20\x02\x00\x00")]
        if kind == 8:
            size = data[4] << 8 | data[5]
            subscribers[data[6 : 6 + size]] = connection
            return [(connection, b"\x90\x03\x00\x01\x01")]
        if kind == 4:
            return []
        said, at = [], 0
        while at < len(data):
            size, start = data[at + 1] + 2, at + 2
            peer = subscribers[data[start + 2 : start + 2 + (data[start] << 8 | data[start + 1])]]
            published.append(peer)
            said.append((peer, data[at : at + size]))
            at += size
        return said

    with serve(answer) as listening:
        load = MqttSubscribers(port=listening.getsockname()[1], conns=5, duration_s=1, payload=20, each_s=each_s)
        found = load.run()
    assert len(subscribers) == 5
    assert found.done > 5
    if each_s:
        assert found.value == found.also["mean_ms"]
        assert found.done <= 5 / each_s + 5
    else:
        assert found.done <= len(published) <= found.done + 5
