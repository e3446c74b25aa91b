"""Templates of the messages that PUBLISH packets with the same properties make."""

from collections.abc import Callable
from typing import Generic, TypeVar

from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.primitives import PacketReader
from adapters.mqtt.codec.properties import Properties, decode_properties
from adapters.mqtt.receiving.cache import Cache

TEMPLATES_MAX = 64  # sets of properties kept of one peer
TEMPLATE_BYTES_MAX = 512  # longer ones are decoded every time

T = TypeVar("T")


class Templates(Generic[T]):
    """The templates of one peer, cached by the bytes of their properties; `plain` is that of a PUBLISH without any."""

    __slots__ = ("_cache", "plain")

    def __init__(self, plain: T) -> None:
        self.plain = plain
        self._cache: Cache[T] = Cache(TEMPLATES_MAX, TEMPLATE_BYTES_MAX)

    def read(self, reader: PacketReader, make: Callable[[Properties], T]) -> T:
        """Returns the template of the properties that come next; a new one is made by `make`.

        Raises `ProtocolError` as `decode_properties` and `make` do.
        """
        data, start = reader.data, reader.at
        if start < reader.end and not data[start]:
            reader.at += 1
            return self.plain
        end = reader.varint() + reader.at
        raw = data[start:end]
        if raw in self._cache.known and end <= reader.end:
            reader.at = end
            return self._cache.known[raw]
        reader.at = start
        template = make(decode_properties(reader, PacketType.PUBLISH))
        self._cache.keep(raw, template)
        return template
