"""The Sparkplug B topics of one connection, each read once."""

from msgspec.structs import replace

from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.messages.messages import Template, with_sparkplug
from adapters.mqtt.messages.sparkplug import sparkplug_of
from adapters.mqtt.receiving.cache import Cache, topic_cache
from adapters.mqtt.receiving.publish_reader import NO_ID
from store.api.message import Message


class SparkplugTopics:
    """The meaning of a client's topics for its messages."""

    __slots__ = ("_context", "_topics")

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._topics: Cache[Message] = topic_cache()  # an empty message with the fields that the topic implies

    def with_sparkplug(self, message: Message) -> Message:
        """Returns a message with the fields that its topic implies."""
        context = self._context
        said = sparkplug_of(message.address) if context.options.sparkplug else None
        return (
            message
            if said is None
            else with_sparkplug(message, said, client_id=context.client_id if context.anonymous else None)
        )

    def learn(self, name: bytes, template: Template, address: str) -> bool:
        """Remembers the meaning of a topic name, if it has one; `template` is that of a PUBLISH without properties."""
        device, principal = self._context.device, self._context.principal
        plain = template.message(address, b"", qos=0, retain=False, device=device, principal=principal, now_ms=0)
        message = self.with_sparkplug(plain)
        if message is plain:
            return False
        self._topics.keep(name, message)
        return True

    def known(self, first: int, data: bytes, start: int, end: int, now_ms: int) -> tuple[Message, bytes] | None:
        """Returns message and packet identifier of a PUBLISH without properties whose topic is remembered.

        None: look closer, as at QoS 2, and at repeated or malformed packets. Hot for clients of Sparkplug: 1.5 us.
        """
        at = start + 2 + (data[start] << 8 | data[start + 1])
        message = self._topics.known.get(data[start + 2 : at])
        if message is None or first & 0x0C:
            return None
        identifier = NO_ID
        if first & 2:
            identifier = data[at : at + 2]
            at += 2
            if identifier == NO_ID:
                return None
        if self._context.version == 5:
            if at >= end or data[at]:
                return None
            at += 1
        if at > end:
            return None
        body, qos, retain = data[at:end], first >> 1 & 1, bool(first & 1)
        return replace(message, body=body, time_ms=now_ms, qos=qos, retain=retain), identifier
