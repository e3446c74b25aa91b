"""The Sparkplug B topics of one connection, each read once."""

from msgspec.structs import replace

from adapters.mqtt.connecting.link import Link
from adapters.mqtt.messages.messages import Template, told
from adapters.mqtt.messages.sparkplug import sparkplug_of
from store.api.message import Message

__all__ = ["SparkplugTopics"]

_NO_ID = b"\0\0"


class SparkplugTopics:
    """The meaning of a client's topics for its messages, remembered for up to `topics_max` topics."""

    __slots__ = ("_known", "_link", "_topics_max")

    def __init__(self, link: Link, topics_max: int) -> None:
        self._link = link
        self._topics_max = topics_max
        self._known: dict[bytes, Message] = {}  # by topic name: an empty message with what it says

    def told(self, message: Message) -> Message:
        """A message with what its topic says of it."""
        link = self._link
        said = sparkplug_of(message.address) if link.options.sparkplug else None
        return message if said is None else told(message, said, client_id=link.client_id if link.anonymous else None)

    def learn(self, name: bytes, template: Template, address: str) -> bool:
        """Remember what a topic name says, if it does; `template` is that of a PUBLISH without properties."""
        plain = template.message(address, b"", qos=0, retain=False, device=self._link.device, now_ms=0)
        message = self.told(plain)
        if message is plain:
            return False
        if len(self._known) >= self._topics_max:
            self._known.clear()
        self._known[name] = message
        return True

    def known(self, first: int, data: bytes, start: int, end: int, now_ms: int) -> tuple[Message, bytes] | None:
        """The message of a PUBLISH that has no properties and whose topic is remembered, and its packet identifier.

        None: look closer, as at QoS 2, and at what is repeated or malformed. Hot for who speaks Sparkplug: 1.5 us.
        """
        at = start + 2 + (data[start] << 8 | data[start + 1])
        message = self._known.get(data[start + 2 : at])
        if message is None or first & 0x0C:
            return None
        identifier = _NO_ID
        if first & 2:
            identifier = data[at : at + 2]
            at += 2
            if identifier == _NO_ID:
                return None
        if self._link.version == 5:
            if at >= end or data[at]:
                return None
            at += 1
        if at > end:
            return None
        body, qos, retain = data[at:end], first >> 1 & 1, bool(first & 1)
        return replace(message, body=body, time_ms=now_ms, qos=qos, retain=retain), identifier
