"""The domain message, into which every protocol's messages are turned, and from which they are made."""

from typing import Any

import msgspec

EVENT = "cloudevents"  # key in `Message.native` of an event's attributes that are no fields, such as `subject`
REPLY_QUEUE = "reply_queue"  # key in `Message.native["amqp"]`: the queue that answers are wanted in
SUBJECT = "subject"  # key in `EVENT`, and in `Message.native["amqp"]` where headers of no event say one
COPIES = "copies"  # key in `Message.native["amqp"]`: addresses that it is routed to queues by, besides its own


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message, whatever protocol it came by.

    The record in the log is this struct as a MessagePack array. Fields are only ever added at the end, so that older
    records stay readable. `None` means absent; an empty text is a value.

    The topic is not a field: it follows from the address by the router, and the log row's queue names it.
    An empty `id` means "the one the log gives": readers fill in the record's position (`gateway.domain.batch`).

    `principal` is the trusted gateway that speaks for another device, by its authenticated name. It is None where the
    device speaks for itself, and for messages that a bridge has read: their device is named by its configuration.
    It is empty where nobody has logged in: the device is the client's own name, or was found in the address. Records of
    older versions have None for such clients, too. Adapters set it from what the gateway has authenticated, and never
    from what a client says.
    """

    address: str  # levels joined by "/", never empty
    body: bytes = b""
    time_ms: int = 0  # when it happened, or when it arrived, ms since 1970
    protocol: str = ""  # "mqtt", "coap", "http", "amqp": the adapter that took it in
    device: str = ""  # the device it speaks for: authenticated identity, else the client's own name
    qos: int = 1  # 0, 1 or 2, as its sender asked
    retain: bool = False
    id: str = ""
    key: str | None = None  # ordering key; None: the device
    type: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    expires_at_ms: int | None = None
    deliver_at_ms: int | None = None
    reply_to: str | None = None  # an address
    correlation: bytes | None = None
    traceparent: str | None = None
    principal: str | None = None  # the authenticated principal; None: the device; "": nobody has logged in
    properties: tuple[tuple[str, str], ...] = ()  # ordered, repeats kept
    native: dict[str, Any] | None = None  # by protocol name: data that only that protocol understands, kept as it came

    def expired(self, now_ms: int) -> bool:
        """Returns whether its time to live is over at `now_ms`."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode
