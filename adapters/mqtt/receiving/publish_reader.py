"""The head of a PUBLISH packet (MQTT 5.0, 3.3)."""

from adapters.mqtt.codec.primitives import CUT, PacketReader, malformed

MESSAGE_COST_BYTES = 256  # of a message in memory besides its packet's bytes, about
NO_ID = b"\0\0"  # a packet identifier that no packet may have (MQTT-2.2.1-3)


class PublishReader(PacketReader):
    """A cursor over a PUBLISH, behind its topic name and packet identifier (`NO_ID` at QoS 0).

    The body of the packet is `data[start:end]`. Raises `ProtocolError` (0x81) for a head that is malformed.
    """

    __slots__ = ("identifier", "name", "qos")

    def __init__(self, first: int, data: bytes, start: int, end: int) -> None:
        # One call in place of five: it is made for every PUBLISH that a fast path does not take.
        self.qos = qos = first >> 1 & 3
        if qos == 3:
            raise malformed("QoS 3")
        name_at = start + 2
        if name_at > end:
            raise malformed(CUT)
        at = name_at + (data[start] << 8 | data[start + 1])
        self.name = data[name_at:at]
        identifier = NO_ID
        if qos:
            identifier = data[at : at + 2]
            at += 2
            if identifier == NO_ID:
                raise malformed("packet identifier 0")
        if at > end:
            raise malformed(CUT)
        self.data, self.at, self.end, self.identifier = data, at, end, identifier
