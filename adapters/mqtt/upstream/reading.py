"""A connection to an upstream broker, whose client we are (`gateway.port.bridge.Upstream`).

PUBACK and PUBREC leave when the gateway has said that the messages are durable, in the order that these came in. A
QoS 2 message is known by its identifier from then to its PUBREL, over as many connections as the session lasts, so
that its repetition is not stored again; only a restart of this process forgets it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from adapters.mqtt.codec import decode, read_fixed_header
from adapters.mqtt.codec.decoder import PacketSpan, check_topic_name
from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.packets import Connack, Packet, Pubrel, Suback, Subscribe, SubscriptionRequest
from adapters.mqtt.codec.primitives import decode_text
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from adapters.mqtt.codec.reason import PUBACK_CODES, ReasonCode
from adapters.mqtt.messages.messages import Template, bridged, with_sparkplug
from adapters.mqtt.messages.sparkplug import Sparkplug, sparkplug_of
from adapters.mqtt.receiving.acknowledgements import PUBACK, PUBCOMP, PUBREC, acknowledgement
from adapters.mqtt.receiving.cache import Cache, topic_cache
from adapters.mqtt.receiving.publish_reader import MESSAGE_COST_BYTES, PublishReader
from adapters.mqtt.receiving.templates import Templates
from adapters.mqtt.upstream.client import UpstreamClient, named
from gateway.domain.bridge_path import extended
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.bridge import LOOPED, Destination, UpstreamSettings
from store.api.message import Message

ENVELOPE_BYTES_MAX = 128 << 10  # of a PUBLISH besides its payload
SUBSCRIBE_ID = 1


class _Ack(NamedTuple):
    """The answer that a message gets in its turn."""

    qos: int
    identifier: bytes
    at: int  # of its message in the batch; -1: none of it is stored
    code: int = 0


class _Known(NamedTuple):
    """The place and the Sparkplug meaning of a topic name."""

    place: Destination | None
    sparkplug: Sparkplug | None


class MqttUpstream:
    """See `gateway.port.bridge.Upstream`."""

    def __init__(self, terms: UpstreamSettings, *, sparkplug: bool) -> None:
        self._terms = terms
        self._sparkplug = sparkplug
        self._client = UpstreamClient(terms)
        self._version = self._client.version
        self._packet_bytes_max = terms.message_bytes_max + ENVELOPE_BYTES_MAX
        self._topics: Cache[_Known] = topic_cache()
        self._gateway = ""  # the id of the upstream, where that is a gateway like this one
        # None: the message has been here before.
        self._templates: Templates[Template | None] = Templates(bridged(Template.of(NO_PROPERTIES), terms.bridge))
        self._exact: set[bytes] = set()  # QoS 2 messages that are durable and not released yet
        self._subscribed = False  # once at least since this process began
        self.passed_over: dict[str, int] = {}
        self.lowered: dict[str, int] = {}
        # Of a connection:
        self.ready = False
        self._rest = b""
        self._skip = 0  # bytes to come of a packet that is skipped
        self._messages: list[Message] = []
        self._acks: list[_Ack] = []
        self._bytes = 0  # of the collected messages
        self._taken: list[_Ack] | None = None  # of the batch that is being stored
        self._taken_bytes = 0

    # ---- a connection begins and ends

    def connected(self, now_ms: int) -> None:
        """See `Upstream`."""
        self._client.connected(now_ms)

    def lost(self) -> None:
        """See `Upstream`. Messages collected and not taken come again, as they were not acknowledged."""
        self._client.lost()
        self.ready = False
        self._rest, self._skip = b"", 0
        self._messages, self._acks, self._bytes = [], [], 0
        self._taken, self._taken_bytes = None, 0

    def leave(self) -> None:
        """See `Upstream`."""
        self._client.leave()

    # ---- time

    def tick(self, now_ms: int, *, reading: bool) -> None:
        """See `Upstream`."""
        self._client.tick(now_ms, reading=reading)

    def deadline_ms(self) -> int | None:
        """See `Upstream`."""
        return self._client.deadline_ms()

    # ---- bytes

    def receive(self, data: bytes, now_ms: int) -> None:
        """See `Upstream`."""
        client = self._client
        client.received(now_ms)
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        buffer = self._rest + data if self._rest else data
        at, five = 0, self._version == 5
        try:
            while not self._skip:
                frame = read_fixed_header(buffer, at, minimal=five)
                if frame is None:
                    break
                if frame.end - at > self._packet_bytes_max:
                    passed = self._pass_over(buffer, frame)
                    if not passed:
                        break
                    at = min(frame.end, len(buffer))
                    self._skip = frame.end - at
                    continue
                if frame.end > len(buffer):
                    break
                if not client.admitted:
                    client.check_length(frame.end - frame.start)
                if frame.first >> 4 == PacketType.PUBLISH:
                    self._publish(frame.first, buffer, frame.start, frame.end, now_ms)
                else:
                    self._control(decode(frame.first, buffer[frame.start : frame.end], self._version), now_ms)
                at = frame.end
        finally:
            self._rest = buffer[at:]

    def take_output(self) -> bytes:
        """See `Upstream`."""
        return self._client.take_output()

    # ---- other packets

    def _control(self, packet: Packet, now_ms: int) -> None:
        client = self._client
        if isinstance(packet, Suback) and client.admitted and not self.ready:
            self._suback(packet)
        elif isinstance(packet, Pubrel) and client.admitted:
            identifier = packet.packet_id.to_bytes(2, "big")
            self._exact.discard(identifier)
            client.out.append(PUBCOMP + identifier)  # of one that a restart has forgotten too
        elif (connack := client.control(packet, now_ms)) is not None:
            self._connack(connack)

    def _connack(self, packet: Connack) -> None:
        self._reads_from(self._client.gateway)
        if not packet.session_present:
            self._exact.clear()
        elif self._subscribed and self._version < 5:
            # A SUBSCRIBE would bring the retained messages once more.
            self.ready = True
            self._client.answered()
            return
        # In 5.0 retained messages come when a subscription is new, and those that come live stay retained.
        five = self._version == 5
        requests = [
            SubscriptionRequest(pattern=one.pattern, qos=one.qos, retain_as_published=five, retain_handling=int(five))
            for one in self._terms.wanted
        ]
        self._client.send(Subscribe(packet_id=SUBSCRIBE_ID, requests=tuple(requests)))

    def _reads_from(self, gateway: str) -> None:
        """Notes which gateway the upstream has said it is; "": another broker."""
        if gateway == self._gateway:
            return
        self._gateway = gateway
        user = extended((), upstream=gateway, own=self._terms.gateway) or ()
        plain = Template.of(Properties(user=user) if user else NO_PROPERTIES)
        self._templates = Templates(bridged(plain, self._terms.bridge))

    def _suback(self, packet: Suback) -> None:
        wanted = self._terms.wanted
        if packet.packet_id != SUBSCRIBE_ID or len(packet.codes) != len(wanted):
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a SUBACK that answers no SUBSCRIBE of ours")
        for one, code in zip(wanted, packet.codes, strict=True):
            if code >= 0x80:
                raise ProtocolError(code, f"the upstream refuses {one.pattern!r}: {named(code)}")
            if code < one.qos:
                self.lowered[one.pattern] = code
        self.ready = self._subscribed = True
        self._client.answered()

    # ---- messages

    def _publish(self, first: int, data: bytes, start: int, end: int, now_ms: int) -> None:
        """Collects a message, and its acknowledgement. Raises `ProtocolError`."""
        if not self._client.admitted:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "PUBLISH before CONNACK")
        reader, templates = PublishReader(first, data, start, end), self._templates
        name, qos, identifier = reader.name, reader.qos, reader.identifier
        template = templates.read(reader, self._template) if self._version == 5 else templates.plain
        if qos == 2 and identifier in self._exact:
            self._acks.append(_Ack(2, identifier, -1))
            return
        if template is None:
            self._pass_by(qos, identifier, LOOPED, ReasonCode.SUCCESS)
            return
        known = self._topics.known.get(name) or self._topic(name)
        place, said = known
        if place is None:
            self._refuse(qos, identifier, Cause.NOT_FOUND)
            return
        try:
            message = template.message(
                place.address,
                reader.rest(),
                qos=qos,
                retain=bool(first & 1),
                device=place.device,
                principal=None,
                now_ms=now_ms,
            )
        except Refusal as refusal:
            self._refuse(qos, identifier, refusal.cause)
            return
        if said is not None:
            message = with_sparkplug(message, said)
        if qos:
            self._acks.append(_Ack(qos, identifier, len(self._messages)))
        self._messages.append(message)
        self._bytes += end - start + MESSAGE_COST_BYTES

    def _topic(self, name: bytes) -> _Known:
        """Returns the meaning of a topic name, and remembers it. Raises `ProtocolError`."""
        topic = check_topic_name(decode_text(name))
        known = _Known(self._terms.destination_of(topic), sparkplug_of(topic) if self._sparkplug else None)
        self._topics.keep(name, known)
        return known

    def _template(self, properties: Properties) -> Template | None:
        """Returns the template that a PUBLISH's properties make; None: they say that the message has been here before.

        Raises `ProtocolError`.
        """
        if properties.topic_alias is not None:
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, "a topic alias, though we take none")
        user = extended(properties.user, upstream=self._gateway, own=self._terms.gateway)
        if user is None:
            return None
        properties = msgspec.structs.replace(properties, subscription_ids=(), user=user)
        return bridged(Template.of(NO_PROPERTIES if properties == NO_PROPERTIES else properties), self._terms.bridge)

    def _pass_over(self, data: bytes, frame: PacketSpan) -> bool:
        """Refuses a too large message by its head; returns whether the head is all there. Raises `ProtocolError`."""
        if frame.first >> 4 != PacketType.PUBLISH:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {frame.end - frame.start} bytes")
        if len(data) - frame.start < 2:
            return False
        qos = frame.first >> 1 & 3
        at = frame.start + 2 + (data[frame.start] << 8 | data[frame.start + 1])
        if len(data) < at + 2:
            return False
        self._refuse(qos, data[at : at + 2], Cause.TOO_LARGE)
        return True

    def _refuse(self, qos: int, identifier: bytes, cause: Cause) -> None:
        """Passes over a message for good: it is acknowledged in its turn, or the upstream would send it forever."""
        self._pass_by(qos, identifier, cause.value, PUBACK_CODES.get(cause, ReasonCode.UNSPECIFIED_ERROR))

    def _pass_by(self, qos: int, identifier: bytes, why: str, code: int) -> None:
        self.passed_over[why] = self.passed_over.get(why, 0) + 1
        if qos:
            self._acks.append(_Ack(qos, identifier, -1, code))

    # ---- batches

    @property
    def full(self) -> bool:
        """See `Upstream`."""
        terms = self._terms
        return (
            self.unacknowledged >= terms.receive_maximum or self._bytes + self._taken_bytes >= terms.pending_bytes_max
        )

    @property
    def unacknowledged(self) -> int:
        """See `Upstream`."""
        return len(self._acks) + (0 if self._taken is None else len(self._taken))

    def take(self) -> Sequence[Message] | None:
        """See `Upstream`."""
        if self._taken is not None or not (self._messages or self._acks):
            return None
        messages, self._messages = self._messages, []
        self._taken, self._acks = self._acks, []
        self._taken_bytes, self._bytes = self._bytes, 0
        return messages

    def settled(self, refused: Mapping[int, Refusal], left: Collection[int] = ()) -> None:
        """See `Upstream`."""
        assert self._taken is not None
        acks, self._taken, self._taken_bytes = self._taken, None, 0
        if left:
            unsettled = frozenset(left)
            acks = [one for one in acks if one.at not in unsettled]
        for refusal in refused.values():
            cause = refusal.cause.value
            self.passed_over[cause] = self.passed_over.get(cause, 0) + 1
        out, five = bytearray(), self._version == 5
        for qos, identifier, index, code in acks:
            if index in refused:
                code = PUBACK_CODES.get(refused[index].cause, ReasonCode.UNSPECIFIED_ERROR)  # noqa: PLW2901
            if code and five:  # which ends the exchange (4.3.3)
                out += acknowledgement(qos, identifier, code)
            elif qos == 1:
                out += PUBACK + identifier
            else:
                self._exact.add(identifier)
                out += PUBREC + identifier
        if self._client.admitted:
            self._client.out.append(bytes(out))
