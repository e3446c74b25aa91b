"""Requests about bodies in parts, for `gateway.port.adapter.Call`: longer than the gateway holds whole.

A message with such a body has none of its own. It names the parts, which are stored before it
(`store.format.body_parts`), and goes to named queues alone: subscribers and readers of topics, who take messages whole,
never meet it.

To publish one: `BeginBody`, `StorePart` for each part in order, where several may be in flight, and `PublishBody` once
all are answered. To deliver one: `ReadPart` for each of its frames.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.port.adapter import Request
from store.api.message import Message
from store.format.frame import LogOffset

PARTS: Final = "parts"  # key in `Message.native`: [bytes of the body, {store group: frames of its parts}]


class BodyParts(NamedTuple):
    """A body in parts: its size, and the frames of its parts in order, for each store group that has them."""

    size_bytes: int
    frames: Mapping[int, Sequence[LogOffset]]


class StoredBody(msgspec.Struct, frozen=True, kw_only=True):
    """A published message: how many queues have it, and whether a full queue has not taken it."""

    queues: int
    overflowed: bool = False


class BeginBody(Request[Sequence[int]], frozen=True, kw_only=True):
    """Asks for the store groups that the parts of a body are for: where the queues lie that want the message.

    Refused as publishing it is, and with PRECONDITION for a delay or `retain`, which a body in parts cannot have.
    """

    message: Message
    size_bytes: int


class StorePart(Request[Mapping[int, LogOffset]], frozen=True, kw_only=True):
    """Stores a part of a body in each of some store groups; answers its frame in each, once that is durable."""

    groups: Sequence[int]
    data: bytes


class PublishBody(Request[StoredBody], frozen=True, kw_only=True):
    """Publishes a message whose parts (`with_parts`) are stored, since `began_ms`.

    Refused with OVERLOAD where a queue wants it by now in a store group that has no parts, and where it took too long.
    """

    message: Message
    began_ms: int


class ReadPart(Request[bytes], frozen=True, kw_only=True):
    """Asks for the part of a body that a frame holds. Refused with DAMAGED where it is lost."""

    frame: LogOffset


def parts_of(message: Message) -> BodyParts | None:
    """Returns the parts of a message's body; None for a message that has its body itself."""
    if message.body or message.native is None or (found := message.native.get(PARTS)) is None:
        return None
    return BodyParts(*found)


def with_parts(message: Message, parts: BodyParts) -> Message:
    """Returns the message with its body in parts."""
    return msgspec.structs.replace(message, body=b"", native={**(message.native or {}), PARTS: list(parts)})


def in_group(message: Message, group: int) -> Message:
    """Returns the message with those parts of its body alone that lie in the log of a store group.

    They are kept for as long as the message is there; those in other logs only for the queues that lie there.
    """
    parts = parts_of(message)
    if parts is None or len(parts.frames) == 1 or group not in parts.frames:
        return message
    return with_parts(message, parts._replace(frames={group: parts.frames[group]}))


def body_size(message: Message) -> int:
    """Returns how many bytes the body has, wherever they lie."""
    parts = parts_of(message)
    return len(message.body) if parts is None else parts.size_bytes
