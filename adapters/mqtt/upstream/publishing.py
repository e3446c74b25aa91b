"""A broker that events are published to (`gateway.port.bridge.BrokerPublisher`).

Over QoS 1 a message is taken when its PUBACK has come, over QoS 2 when its PUBCOMP has. The session is clean: the
outcome of a message without an answer when the connection ends is unknown, and its caller publishes it again.
"""

from collections.abc import Sequence
from typing import Final

from adapters.mqtt.codec import decode, read_fixed_header
from adapters.mqtt.codec.packets import Connack, Packet, Puback, Pubcomp, Pubrec, Pubrel
from adapters.mqtt.codec.primitives import encode_text, encode_varint
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.messages.sinks import sink_tail
from adapters.mqtt.upstream.client import UpstreamClient, because, named
from gateway.domain.bridge_path import PATH, forwarded_path
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.bridge import BrokerAnswer, PublisherTerms
from store.api.message import Message

PACKET_BYTES_MAX: Final = 128 << 10  # of a packet that a broker sends; none of them carries a message
IN_FLIGHT_MAX: Final = 65_535  # packet identifiers
TOPIC_BYTES_MAX: Final = 65_535
PACKET_BYTES_LIMIT: Final = 268_435_455  # of a packet behind its head (2.1.4)
# The broker has looked at the message and does not want it; another one may well be taken.
OF_MESSAGE: Final = frozenset(
    {ReasonCode.TOPIC_NAME_INVALID, ReasonCode.PACKET_TOO_LARGE, ReasonCode.PAYLOAD_FORMAT_INVALID}
)
# Ends of a connection that the message in flight may have caused.
_ENDS: Final = OF_MESSAGE | {ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR}


class MqttPublisher:
    """See `gateway.port.bridge.BrokerPublisher`."""

    def __init__(self, terms: PublisherTerms) -> None:
        self._terms = terms
        self._client = UpstreamClient(terms)
        self._rest = b""
        self._packet_bytes_max = PACKET_BYTES_LIMIT
        self._next = 1
        self._in_flight: dict[int, bool] = {}  # packet identifier: whether its PUBREC has come
        self._answers: list[BrokerAnswer] = []
        self._ended = False  # by a packet of the broker's
        self.in_flight_max = IN_FLIGHT_MAX

    @property
    def ready(self) -> bool:
        """See `BrokerPublisher`."""
        return self._client.admitted

    # ---- the connection

    def connected(self, now_ms: int) -> None:
        """See `BrokerPublisher`."""
        self._client.connected(now_ms)

    def leave(self) -> None:
        """See `BrokerPublisher`."""
        self._client.leave()

    def tick(self, now_ms: int, *, reading: bool) -> None:
        """See `BrokerPublisher`."""
        self._client.tick(now_ms, reading=reading)

    def deadline_ms(self) -> int | None:
        """See `BrokerPublisher`."""
        return self._client.deadline_ms()

    def take_output(self) -> bytes:
        """See `BrokerPublisher`."""
        return self._client.take_output()

    # ---- the broker's packets

    def receive(self, data: bytes, now_ms: int) -> None:
        """See `BrokerPublisher`."""
        client = self._client
        client.received(now_ms)
        buffer, at = self._rest + data, 0
        try:
            while (frame := read_fixed_header(buffer, at, minimal=client.version == 5)) is not None:
                if frame.end - at > PACKET_BYTES_MAX:
                    raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {frame.end - at} bytes")
                if frame.end > len(buffer):
                    break
                client.check_length(frame.end - frame.start)
                self._take(decode(frame.first, buffer[frame.start : frame.end], client.version), now_ms)
                at = frame.end
        finally:
            self._rest = buffer[at:]

    def _take(self, packet: Packet, now_ms: int) -> None:
        if isinstance(packet, Puback | Pubrec | Pubcomp) and self._client.admitted:
            self._answered(packet)
            return
        try:
            connack = self._client.control(packet, now_ms)
        except ProtocolError:
            self._ended = True
            raise
        if connack is not None:
            self._client.answered()
            self._check(connack)

    def _check(self, packet: Connack) -> None:
        """Notes the limits of the broker. Raises `ProtocolError` where the request is beyond them."""
        said, terms = packet.properties, self._terms
        if said.maximum_qos is not None and terms.qos > said.maximum_qos:
            what = f"the upstream takes QoS {said.maximum_qos} at most; write another qos"
            raise ProtocolError(ReasonCode.QOS_NOT_SUPPORTED, what)
        if terms.retain and said.retain_available == 0:
            raise ProtocolError(ReasonCode.RETAIN_NOT_SUPPORTED, "the upstream retains nothing; write retain: false")
        self.in_flight_max = min(said.receive_maximum or IN_FLIGHT_MAX, IN_FLIGHT_MAX)
        self._packet_bytes_max = said.maximum_packet_bytes or PACKET_BYTES_LIMIT

    def _answered(self, packet: Puback | Pubrec | Pubcomp) -> None:
        number = packet.packet_id
        received = self._in_flight.get(number)
        if (
            received is None
            or received != isinstance(packet, Pubcomp)
            or (self._terms.qos == 1) != isinstance(packet, Puback)
        ):
            name = type(packet).__name__.upper()
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{name} {number} answers nothing that was sent")
        if isinstance(packet, Pubrec) and packet.code < 0x80:
            self._in_flight[number] = True
            self._client.send(Pubrel(packet_id=number))
            return
        del self._in_flight[number]
        if packet.code >= 0x80 and not isinstance(packet, Pubcomp):
            why = f"the sink refuses the event: {named(packet.code)}{because(packet.properties)}"
            self._answers.append(BrokerAnswer(number, why, of_message=packet.code in OF_MESSAGE))
        else:
            self._answers.append(BrokerAnswer(number))

    def answers(self) -> Sequence[BrokerAnswer]:
        """See `BrokerPublisher`."""
        answers, self._answers = self._answers, []
        return answers

    def message_at_fault(self, error: ProtocolError) -> int | None:
        """See `BrokerPublisher`."""
        if not self._ended or error.code not in _ENDS or len(self._in_flight) != 1:
            return None
        return next(iter(self._in_flight))

    # ---- publishing

    def publish(self, topic: str, message: Message, now_ms: int) -> int | None:
        """See `BrokerPublisher`."""
        terms, client = self._terms, self._client
        assert client.admitted
        ids = [one for name, text in message.properties if name == PATH for one in text.split()]
        # A consumer that takes each user property for an attribute stumbles over this one: between gateways only.
        path = forwarded_path(ids, upstream=client.gateway, own=terms.gateway if ids or client.gateway else "")
        if path is None:
            return None
        if len(topic.encode("utf-8", "replace")) > TOPIC_BYTES_MAX:
            raise Refusal(Cause.TOO_LARGE, f"the topic has more than {TOPIC_BYTES_MAX} bytes")
        tail = sink_tail(
            message,
            version=client.version,
            structured=terms.structured,
            expiry_s=terms.expiry_s,
            path=path,
            more=terms.properties,
            now_ms=now_ms,
        )
        number = self._number() if terms.qos else 0
        body = (
            encode_text(topic.encode("utf-8", "replace").decode())
            + (number.to_bytes(2, "big") if number else b"")
            + tail
        )
        head = bytes((0x30 | terms.qos << 1 | terms.retain,)) + encode_varint(min(len(body), PACKET_BYTES_LIMIT))
        if len(body) > PACKET_BYTES_LIMIT or len(head) + len(body) > self._packet_bytes_max:
            raise Refusal(Cause.TOO_LARGE, f"the sink takes packets of at most {self._packet_bytes_max} bytes")
        if number:
            self._in_flight[number] = False
        client.out += (head, body)
        return number

    def _number(self) -> int:
        """Returns a packet identifier that nothing in flight has."""
        assert len(self._in_flight) < IN_FLIGHT_MAX
        while self._next in self._in_flight:
            self._next = self._next % IN_FLIGHT_MAX + 1
        number, self._next = self._next, self._next % IN_FLIGHT_MAX + 1
        return number
