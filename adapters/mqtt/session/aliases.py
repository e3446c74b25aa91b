"""Topic aliases towards a client that has asked for them (MQTT 5.0, 3.3.2.3.4).

The first topics that a connection is sent get an alias each. All clients share an encoded packet; only the two bytes of
the alias, and the topic where it is sent for the first time, are a client's own.
"""

from adapters.mqtt.codec.primitives import encode_varint
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.session.encoded import Encoded, Piece, WithoutTopic, size_bytes
from adapters.mqtt.session.inflight import Inflight


class Aliases:
    """The aliases of one connection: of its first topics, never taken back. At most `count`."""

    __slots__ = ("_context", "_count", "_inflight", "_of")

    def __init__(self, context: ConnectionContext, inflight: Inflight, count: int) -> None:
        self._context = context
        self._inflight = inflight
        self._count = count  # <= the client's maximum (MQTT-3.1.2-26)
        self._of: dict[str, bytes] = {}

    def get(self, address: str) -> bytes | None:
        """Returns the alias that the client knows for an address."""
        return self._of.get(address)

    def give(self, address: str, qos: int) -> bytes | None:
        """Returns a new alias for the topic of a packet that is sent now; None when it may not be, or there are enough.

        A packet that waits for a save is overtaken by others, which may not use the alias before it.
        """
        if len(self._of) >= self._count or (qos == 2 and self._context.durable) or (qos and self._inflight.room <= 0):
            return None
        alias = self._of[address] = (len(self._of) + 1).to_bytes(2, "big")
        return alias

    def over(self, encoded: Encoded) -> "Aliased":
        """Returns packets as this client gets them."""
        return Aliased(self, encoded, self._context.packet_bytes_max)


class Aliased:
    """The packets of a batch with the aliases of one client, in place of `Encoded`; each is to be sent once made."""

    __slots__ = ("_aliases", "_encoded", "_limit", "largest", "pieces")

    def __init__(self, aliases: Aliases, encoded: Encoded, limit: int) -> None:
        self._aliases = aliases
        self._encoded = encoded
        self._limit = limit  # bytes of the largest packet that the client takes
        self.largest = 0
        self.pieces: list[Piece | None] = [None] * len(encoded.pieces)

    def make(self, index: int) -> Piece:
        """Returns one packet: with its topic alone, with an alias, or with both, which gives it the alias."""
        encoded = self._encoded
        piece = encoded.pieces[index] or encoded.make(index)
        qos, head, _ = piece
        if head:
            address = encoded.address(index)
            without = encoded.without_topic(index)
            alias = self._aliases.get(address)
            if alias is not None:
                shorter = _joined(qos, without.head, b"\0\0", without, alias)
                if size_bytes(shorter) <= self._limit:  # of a very short topic it is the longer one
                    piece = shorter
            else:
                topic = address.encode("utf-8", "replace")
                larger = encode_varint(without.length + len(topic))
                size = 1 + len(larger) + without.length + len(topic)
                if size <= self._limit and (alias := self._aliases.give(address, qos)) is not None:
                    named = len(topic).to_bytes(2, "big") + topic
                    piece = _joined(qos, without.head[:1] + larger, named, without, alias)
        self.largest = max(self.largest, size_bytes(piece))
        return piece


def _joined(qos: int, head: bytes, topic: bytes, without: WithoutTopic, alias: bytes) -> Piece:
    before, behind = head + topic, without.properties + alias + without.rest
    return (qos, before, behind) if qos else (0, before + behind, b"")
