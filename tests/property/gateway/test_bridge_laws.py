"""Laws of bridges: however bytes are cut and connections lost, what is acknowledged is stored, and in order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connack, Puback, Publish, Pubrec, Pubrel, Suback
from gateway.bridges.shared.addresses import captured, filled, numbered
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.domain.filters import matches
from tests.support.mqtt.upstream_broker import Broker
from tests.support.process.examples import examples

LEVELS = st.lists(st.sampled_from(["a", "b", "", "$c"]), min_size=1, max_size=5)
PATTERN = st.lists(st.sampled_from(["a", "b", "", "+", "$c"]), min_size=1, max_size=4)


@given(PATTERN, st.booleans(), LEVELS)
def test_a_filter_matches_what_filters_match(pattern, many, topic):
    levels = [*pattern, "#"] if many else pattern
    found = captured(levels, topic)
    assert (found is not None) == matches("/".join(levels), "/".join(topic))
    if found is not None:
        # The parts that the wildcards match, put in their places, make the topic.
        numbers = iter(range(1, 10))
        template = "/".join(f"{{{next(numbers)}}}" if level in {"+", "#"} else level for level in levels)
        assert filled(template, numbered(found)) == "/".join(topic)


def broker_bytes(version):
    return b"".join(
        encode(one, version)
        for one in (
            Connack(),
            Suback(packet_id=1, codes=(2,)),
            Publish(topic="a/1", payload=b"1", qos=1, packet_id=1),
            Publish(topic="a/2", payload=b"2" * 200, qos=2, packet_id=2),
            Publish(topic="a/3", payload=bytes(200_000), qos=1, packet_id=3),
            Publish(topic="other", payload=b"", qos=1, packet_id=4),
            Pubrel(packet_id=9),
            Publish(topic="a/5", payload=b"5", qos=0),
            Publish(topic="a/6", payload=b"6", qos=2, packet_id=6),
        )
    )


@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_cutting_of_the_bytes_is_the_whole(version, data):
    def run(cuts):
        broker = Broker(version=version)
        broker.bridge.connected(broker.now_ms)
        raw = broker_bytes(broker.version)
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            broker.bridge.receive(raw[start:end], broker.now_ms)
        messages = broker.store()
        return [(one.address, one.body) for one in messages], broker.heard(), broker.bridge.passed_over

    size = len(broker_bytes(5 if version == "5.0" else 4))
    near = st.integers(0, 300) | st.integers(size - 60, size) | st.integers(0, size)
    assert run(sorted(data.draw(st.lists(near, max_size=8)))) == run([])


@given(st.integers(0, (1 << 32) - 1))
@settings(max_examples=examples(300), deadline=None)
def test_what_is_acknowledged_is_stored_and_all_is_in_the_end(seed):
    """An upstream that sends again whatever was not acknowledged, over connections that are lost at any time."""
    chance = random.Random(seed)
    broker = Broker(receive_maximum=4)
    broker.connect()
    qos = {n: chance.choice([1, 2]) for n in range(1, 13)}  # by packet identifier
    left = dict(qos)
    stored: list[int] = []
    sent: set[int] = set()
    lost = 0

    def hear():
        for packet in broker.heard():
            if isinstance(packet, Puback | Pubrec):
                assert packet.packet_id in stored
                sent.discard(packet.packet_id)
                if left.pop(packet.packet_id, None) == 2:
                    broker.release(packet.packet_id)

    while left:
        step = chance.choice(["send", "send", "store", "store", "refuse", "lose"])
        waiting = [n for n in left if n not in sent]
        if step == "send" and waiting and not broker.bridge.full:
            broker.publish(str(waiting[0]), qos=left[waiting[0]], first_id=waiting[0], dup=lost > 0)
            sent.add(waiting[0])
        elif step in {"store", "refuse"} and (messages := broker.bridge.take()) is not None:
            if step == "refuse":  # which the shell does by trying again; here the connection is lost meanwhile
                broker.bridge.lost()
                broker.connect(present=True)
                sent.clear()
                continue
            stored += [int(one.body) for one in messages]
            broker.bridge.settled({})
            if chance.random() < 0.5:
                hear()
        elif step == "lose" and lost < 10:
            lost += 1
            broker.bridge.lost()
            broker.connect(present=True)
            sent.clear()
        else:
            hear()
    assert set(stored) == set(qos)
    assert all(stored.count(n) == 1 for n in qos if qos[n] == 2)


@given(st.binary(max_size=200), st.sampled_from(["5.0", "3.1.1"]), st.booleans(), st.data())
@settings(max_examples=examples(400), deadline=None)
def test_any_bytes_are_read_or_refused(noise, version, let_in, data):
    broker = Broker(version=version)
    if let_in:
        broker.connect()
    else:
        broker.bridge.connected(broker.now_ms)
    raw = bytearray(broker_bytes(broker.version)[:400] if data.draw(st.booleans()) else noise)
    for at in data.draw(st.lists(st.integers(0, max(0, len(raw) - 1)), max_size=4)):
        if raw:
            raw[at] = data.draw(st.integers(0, 255))
    try:
        broker.bridge.receive(bytes(raw), broker.now_ms)
        broker.bridge.receive(noise, broker.now_ms)
    except ProtocolError:
        pass
    messages = broker.bridge.take()
    if messages is not None:
        broker.bridge.settled({n: Refusal(Cause.MALFORMED) for n in range(0, len(messages), 2)})
    broker.bridge.take_output()
