"""A connection with one MQTT message in flight tells its peer what it would if the message went the general way."""

import asyncio
from types import SimpleNamespace

import pytest

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import Disconnect, Pingreq, Puback, Publish
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Outcome
from gateway.security.limits import SendingPace
from gateway.security.limits_settings import LimitsConfig
from tests.support.gateway.singles_client import SinglesClient

pytestmark = pytest.mark.anyio


class Permissions:
    """The rights of a user: none to publish, where `denied` says so."""

    def __init__(self):
        self.access, self.denied, self.asked = self, {}, 0
        self.identity = SimpleNamespace(client_id="")

    def refused(self, _messages):
        self.asked += 1
        return self.denied


@pytest.mark.parametrize("version", [4, 5])
def test_a_single_message_is_acknowledged_when_it_is_stored(version):
    peer = SinglesClient(version)
    flow = peer.connection.flow
    before_in, before_out = flow.bytes_in, flow.bytes_out
    peer.publish()
    assert len(peer.hub.singles) == 1
    assert not peer.hub.published
    assert peer.said()
    peer.acknowledge()
    assert peer.said(Puback(packet_id=2))
    assert peer.rests
    assert flow.bytes_out - before_out == 4
    assert flow.bytes_in - before_in == len(encode(Publish(topic="t", payload=b"x", qos=1, packet_id=2), version))
    peer.publish(3)
    peer.acknowledge()
    assert peer.said(Puback(packet_id=3))


def test_what_is_refused_at_once_behind_a_single_message_is_answered_behind_it():
    peer = SinglesClient(topic_levels_max=3)
    peer.publish(2)
    peer.publish(3, "a/b/c/d")
    assert peer.said()
    peer.acknowledge()
    assert peer.said(Puback(packet_id=2), Puback(packet_id=3, code=0x90))
    assert peer.rests


def test_a_single_message_counts_in_the_quota_of_what_comes_behind_it():
    peer = SinglesClient(receive_maximum=2)
    peer.publish(2)
    peer.publish(3)
    peer.publish(4)
    written = b"".join(peer.transport.written)
    assert (written[0], written[2]) == (0xE0, 0x93)
    assert peer.transport.is_closing()


def test_a_single_message_is_over_a_quota_that_exchanges_at_qos_2_have_used_up():
    peer = SinglesClient(receive_maximum=2)
    peer.send(*(Publish(topic="t", qos=2, packet_id=n) for n in (5, 6)))
    peer.store()
    peer.transport.written.clear()
    peer.publish(7)
    assert not peer.hub.singles
    assert b"".join(peer.transport.written)[2] == 0x93


def test_what_the_adapter_has_to_say_is_said_before_the_acknowledgement_of_one_that_does_not_read():
    peer = SinglesClient()
    peer.publish()
    peer.connection.pause_writing()
    peer.send(Pingreq())
    peer.acknowledge()
    assert peer.said()
    assert peer.rests
    peer.connection.resume_writing()
    assert b"".join(peer.transport.written) == b"\xd0\x00" + encode(Puback(packet_id=2), 5)


def test_a_refusal_has_its_code_in_version_5():
    peer = SinglesClient()
    peer.publish()
    peer.fail(Cause.QUOTA)
    assert peer.said(Puback(packet_id=2, code=0x97))
    assert peer.rests
    assert not peer.transport.is_closing()


def test_a_refusal_ends_the_connection_in_version_3():
    peer = SinglesClient(4)
    peer.publish()
    peer.fail(Cause.QUOTA)
    assert peer.said()
    assert peer.transport.is_closing()
    assert peer.rests


@pytest.mark.parametrize("stored", [True, False])
def test_nothing_is_said_to_one_that_has_gone(stored):
    peer = SinglesClient()
    peer.publish()
    peer.connection.connection_lost(None)
    peer.acknowledge() if stored else peer.fail(Cause.UNAVAILABLE)
    assert peer.said()
    assert peer.rests


def test_a_half_closed_peer_gets_its_acknowledgement_and_then_the_end():
    peer = SinglesClient()
    peer.publish()
    assert peer.connection.eof_received()
    peer.acknowledge()
    assert peer.said(Puback(packet_id=2))
    assert peer.transport.closed


@pytest.mark.parametrize("version", [4, 5])
def test_what_may_not_be_published_is_asked_for_once_and_refused(version):
    peer = SinglesClient(version)
    permissions = Permissions()
    peer.connection.principal = Principal(name="ada", permissions=permissions)
    bytes_in = peer.connection.flow.bytes_in
    peer.publish()
    peer.acknowledge()
    assert peer.said(Puback(packet_id=2))
    permissions.denied = {0: Refusal(Cause.FORBIDDEN, "no")}
    peer.publish(3)
    assert not peer.hub.singles
    assert permissions.asked == 2
    assert peer.hub.denied == permissions.denied
    assert peer.connection.flow.bytes_in - bytes_in == 2 * len(
        encode(Publish(topic="t", payload=b"x", qos=1, packet_id=3), version)
    )
    peer.store(Outcome(refused=permissions.denied))
    assert peer.rests
    assert peer.transport.is_closing() is (version == 4)


async def test_who_waits_until_everything_is_answered_waits_for_a_single_message():
    peer = SinglesClient()
    peer.publish()
    waits = asyncio.ensure_future(peer.connection.answered())
    await asyncio.sleep(0)
    assert not waits.done()
    peer.connection.supersede()
    peer.acknowledge()
    await waits
    assert peer.connection.superseded
    assert peer.rests
    written = b"".join(peer.transport.written)
    assert (written[0], written[2]) == (0xE0, 0x8E)
    assert encode(Puback(packet_id=2), 5) not in written


def test_a_single_message_is_a_sign_of_life():
    peer = SinglesClient()
    adapter = peer.connection.adapter
    adapter.keep_alive.received_ms = 0
    peer.publish()
    assert adapter.deadline_ms() > 1_600_000_000_000


def test_a_message_behind_a_goodbye_is_not_published():
    peer = SinglesClient()
    peer.send(Disconnect())
    peer.publish()
    assert not peer.hub.singles
    assert not peer.hub.published


def test_a_process_that_has_slept_holds_it():
    peer = SinglesClient()
    peer.hub.pauses.slept = True
    peer.publish()
    assert not peer.hub.singles
    assert len(peer.hub.pauses.held) == 1


def test_a_connection_with_a_pace_takes_the_way_of_all():
    peer = SinglesClient()
    peer.connection.pace = SendingPace.of(LimitsConfig(messages_per_s=100), now_ms=0)
    assert peer.connection.pace is not None
    peer.publish()
    assert not peer.hub.singles
    assert len(peer.hub.published) == 1


def test_it_is_not_read_while_the_store_is_full():
    peer = SinglesClient()
    peer.hub.crowded = True
    peer.publish()
    assert not peer.transport.reading
    assert peer.hub.waiting
    peer.hub.crowded = False
    peer.acknowledge()
    assert peer.said(Puback(packet_id=2))
    assert peer.transport.reading


def test_a_single_message_that_cannot_go_the_short_way_after_all_is_answered_once():
    peer = SinglesClient()
    peer.publish()
    connection, single, size_bytes = peer.hub.singles.pop()
    effect = connection.publish_of(single)
    assert [message.body for message in effect.messages] == [b"x"]
    peer.publish(3)
    connection.published(effect.token, DONE, size_bytes)
    assert peer.said(Puback(packet_id=2))
    peer.store()
    assert peer.said(Puback(packet_id=3))
    assert peer.rests


def test_one_that_the_adapter_was_told_of_before_the_ingest_asks_is_the_same_effect():
    peer = SinglesClient(topic_levels_max=3)
    peer.publish()
    peer.publish(3, "a/b/c/d")
    connection, single, size_bytes = peer.hub.singles.pop()
    effect = connection.publish_of(single)
    connection.published(effect.token, DONE, size_bytes)
    assert peer.said(Puback(packet_id=2), Puback(packet_id=3, code=0x90))
    assert peer.rests


@pytest.mark.parametrize(
    "packet",
    [
        Publish(topic="t", payload=b"x", qos=0),
        Publish(topic="t", payload=b"x", qos=2, packet_id=2),
        Publish(topic="t", payload=b"x", qos=1, packet_id=2, retain=True),
        Publish(topic="t", payload=b"x", qos=1, packet_id=2, dup=True),
        Publish(topic="unknown", payload=b"x", qos=1, packet_id=2),
        Publish(topic="$delayed/5/t", payload=b"x", qos=1, packet_id=2),
        Publish(topic="spBv1.0/g/NDATA/n", payload=b"x", qos=1, packet_id=2),
        Publish(topic="t", payload=b"x", qos=1, packet_id=2, properties=Properties(content_type="a")),
        Publish(topic="t", payload=b"x", qos=1, packet_id=2, properties=Properties(topic_alias=1)),
    ],
)
def test_what_is_not_plain_takes_the_way_of_all(packet):
    peer = SinglesClient()
    peer.send(packet)
    assert not peer.hub.singles


def test_a_packet_cut_in_two_takes_the_way_of_all():
    peer = SinglesClient()
    data = encode(Publish(topic="t", payload=b"x", qos=1, packet_id=2), 5)
    peer.connection.data_received(data[:3])
    peer.connection.data_received(data[3:])
    assert not peer.hub.singles
    peer.store()
    assert peer.said(Puback(packet_id=2))
