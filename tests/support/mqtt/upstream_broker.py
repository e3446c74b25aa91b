"""The broker's side of a bridge, in bytes: what an upstream says and what it has heard, without sockets."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import Connack, Packet, Publish, Pubrel, Suback
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from adapters.mqtt.upstream.reading import MqttUpstream
from gateway.bridges.shared.addresses import BridgedFilter, DestinationMap
from gateway.domain.errors import Refusal
from gateway.port.bridge import UpstreamFilter, UpstreamSettings
from store.api.message import Message

VERSIONS = {"5.0": 5, "3.1.1": 4}


def terms(*subscriptions: BridgedFilter, **changes: Any) -> UpstreamSettings:
    """Returns terms with the usual defaults."""
    subscriptions = subscriptions or (BridgedFilter("a/#", 2, "plant/{1}", "{bridge}"),)
    return UpstreamSettings(
        **{
            "bridge": "up",
            "client_id": "headgate-up",
            "username": None,
            "password": None,
            "version": "5.0",
            "clean": False,
            "session_expiry_s": 600,
            "keep_alive_s": 30,
            "answer_timeout_ms": 5_000,
            "receive_maximum": 10,
            "pending_bytes_max": 1 << 20,
            "message_bytes_max": 1 << 10,
            "wanted": [UpstreamFilter(one.pattern, one.qos) for one in subscriptions],
            "destination_of": DestinationMap("up", subscriptions),
            **changes,
        }
    )


class Broker:
    """One upstream and its bridge, packet by packet."""

    def __init__(self, *subscriptions: BridgedFilter, sparkplug: bool = True, **changes: Any) -> None:
        self.terms = terms(*subscriptions, **changes)
        self.version = VERSIONS[self.terms.version]
        self.bridge = MqttUpstream(self.terms, sparkplug=sparkplug)
        self.now_ms = 1_700_000_000_000

    def connect(self, *, present: bool = False, properties: Properties = NO_PROPERTIES) -> list[Packet]:
        """Opens a connection up to the SUBACK, and returns what the bridge sent."""
        self.bridge.connected(self.now_ms)
        said = self.heard()
        self.say(Connack(session_present=present, properties=properties))
        asked = self.heard()
        if asked:
            self.say(Suback(packet_id=asked[0].packet_id, codes=tuple(one.qos for one in self.terms.wanted)))
        return said + asked

    def say(self, *packets: Packet) -> None:
        """Sends packets of the broker."""
        self.bridge.receive(b"".join(encode(one, self.version) for one in packets), self.now_ms)

    def publish(self, *bodies: str, qos: int = 1, first_id: int = 1, topic: str = "a/b", **fields: Any) -> None:
        """Sends messages, whose identifiers begin at `first_id`."""
        self.say(
            *(
                Publish(topic=topic, payload=body.encode(), qos=qos, packet_id=first_id + n if qos else None, **fields)
                for n, body in enumerate(bodies)
            )
        )

    def release(self, *ids: int) -> None:
        """Sends PUBREL packets."""
        self.say(*(Pubrel(packet_id=one) for one in ids))

    def heard(self) -> list[Packet]:
        """Returns the packets that the bridge has sent since."""
        data = self.bridge.take_output()
        packets, at = [], 0
        while (frame := read_fixed_header(data, at)) is not None:
            packets.append(decode(frame.first, data[frame.start : frame.end], self.version))
            at = frame.end
        assert at == len(data)
        return packets

    def store(self, refused: Mapping[int, Refusal] | None = None) -> Sequence[Message]:
        """Takes the messages that wait, settles them, and returns them."""
        messages = self.bridge.take()
        assert messages is not None
        self.bridge.settled(refused or {})
        return messages
