"""Direct reply-to (an extension of RabbitMQ): answers come to a channel without a queue that its client declares.

Consuming `amq.rabbitmq.reply-to` makes an exclusive queue with a name of its own that begins so, which goes with the
consumer; a client that has got the name may ask by queue.declare whether it is still there. A
message that the channel publishes with this name in `reply_to` leaves with the queue's name there, and the answering
client publishes to that as to any queue.
"""

from typing import Any

import msgspec

from adapters.amqp.codec.properties import NATIVE, REPLY_TO
from adapters.amqp.codec.property_fields import edited
from store.api.message import REPLY_QUEUE, Message


def asks_for_reply(message: Message) -> bool:
    """Returns whether the answer to a message is wanted by the channel that publishes it."""
    return message.native is not None and message.native[NATIVE].get(REPLY_QUEUE) == REPLY_TO


def with_reply_queue(message: Message, queue: str) -> Message:
    """Returns the message with the name of the queue for answers in `reply_to`."""
    assert message.native is not None
    own: dict[str, Any] = message.native[NATIVE]
    raw: bytes = own["properties"]
    own = {**own, "properties": edited(raw, fields={"reply_to": queue}), REPLY_QUEUE: queue}
    return msgspec.structs.replace(message, native={**message.native, NATIVE: own})
