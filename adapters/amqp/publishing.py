"""Publishing: basic.publish, the content header and the body, and how all three become a message.

Publishers repeat themselves. The meaning of a basic.publish and of a content header's properties is kept by their
bytes, for all connections together, in tables that are emptied when they are full.
"""

import struct
from typing import Any, Final, NamedTuple, Protocol

from adapters.amqp.codec.copies import with_copies
from adapters.amqp.codec.properties import Template, read_properties
from adapters.amqp.codec.wire import (
    FRAME_ERROR,
    NOT_IMPLEMENTED,
    TRAILING,
    UNEXPECTED_FRAME,
    malformed,
    read_short_string,
)
from gateway.domain.errors import ProtocolError
from gateway.domain.principal import Principal
from gateway.domain.vhosts import DEFAULT_VHOST, in_vhost
from gateway.port.queues import address_of
from store.api.message import Message

PUBLISH: Final = b"\x00\x3c\x00\x28"  # class basic, method publish: the beginning of its payload
TARGETS_COUNT_MAX: Final = 8_192
VHOST_TARGETS_COUNT_MAX: Final = 1_024  # of each other virtual host
VHOSTS_COUNT_MAX: Final = 64  # virtual hosts whose targets are remembered
TEMPLATES_COUNT_MAX: Final = 2_048  # up to 12 KB each: many small headers
USUAL_HEAD_BYTES: Final = 64  # of properties, that are not counted
HEAD_FACTOR: Final = 3  # the memory that a byte of the others takes, about
FIELD_BYTES: Final = 110  # that one of their fields takes besides, about
REMEMBERED_BYTES_MAX: Final = 512  # of one key: longer ones are seldom repeated
_MESSAGE_ID: Final = 0x80  # in the second byte of the property flags: no other property has such flags
CONTENT_HEADER = struct.Struct(">HHQ")  # class, weight, body size; the properties follow


class Target(NamedTuple):
    """The destination of a message."""

    address: str
    mandatory: bool


TARGETS: dict[bytes, Target] = {}  # by the payload of basic.publish, of the virtual host "/"
_TARGETS: dict[str, dict[bytes, Target]] = {DEFAULT_VHOST: TARGETS}
TEMPLATES: dict[bytes, Template] = {}  # by property flags and fields


def targets_of(vhost: str) -> dict[bytes, Target]:
    """Returns the targets that are remembered of a virtual host."""
    if vhost not in _TARGETS and len(_TARGETS) >= VHOSTS_COUNT_MAX:
        for other in [other for other in _TARGETS if other != DEFAULT_VHOST]:
            del _TARGETS[other]  # connections keep theirs
    return _TARGETS.setdefault(vhost, {})


def target_of(payload: bytes, vhost: str = DEFAULT_VHOST, targets: dict[bytes, Target] = TARGETS) -> Target:
    """Returns the target that a basic.publish in a virtual host names; remembered in `targets`.

    Raises `ProtocolError` (FRAME_ERROR, NOT_IMPLEMENTED).
    """
    target = targets.get(payload)
    if target is not None:
        return target
    try:
        exchange, at = read_short_string(payload, 6)
        routing_key, at = read_short_string(payload, at)
        bits = payload[at]
        if at + 1 != len(payload):
            raise ValueError(TRAILING)
    except (ValueError, IndexError) as error:
        raise malformed("Basic.Publish", error) from error
    if bits & 2:
        raise ProtocolError(NOT_IMPLEMENTED, "immediate=true")
    target = Target(address_of(in_vhost(vhost, exchange), routing_key), bool(bits & 1))
    if len(payload) <= REMEMBERED_BYTES_MAX:
        if len(targets) >= (TARGETS_COUNT_MAX if targets is TARGETS else VHOST_TARGETS_COUNT_MAX):
            targets.clear()
        targets[payload] = target
    return target


def template_of(raw: bytes) -> Template:
    """Returns the meaning of properties; remembers it where they may come again.

    Raises `ProtocolError` (FRAME_ERROR, PRECONDITION_FAILED).
    """
    template = TEMPLATES.get(raw)
    if template is None:
        template = read_properties(raw)
        if len(raw) <= REMEMBERED_BYTES_MAX and not raw[1] & _MESSAGE_ID:
            if len(TEMPLATES) >= TEMPLATES_COUNT_MAX:
                TEMPLATES.clear()
            TEMPLATES[raw] = template
    return template


def template_if_sound(raw: bytes) -> Template | None:
    """Returns the meaning of properties; None where the error has to be found again, frame by frame."""
    try:
        return template_of(raw)
    except ProtocolError:
        return None


def head_cost_bytes(size_bytes: int, template: Template) -> int:
    """Returns about how much memory the properties of a message take, from their size and meaning; 0: little."""
    if size_bytes <= USUAL_HEAD_BYTES:
        return 0
    return size_bytes * HEAD_FACTOR + _count(template.tail) * FIELD_BYTES


def _count(value: Any) -> int:
    """Returns how many values there are in tables and arrays, at any depth."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return 1
    return 1 + sum(map(_count, value))


class BodyTaker(Protocol):
    """The taker of a body that is stored in parts as it comes."""

    @property
    def has_room(self) -> bool:
        """Returns whether more of the body can be taken."""

    def take(self, data: bytes) -> None:
        """Takes more of the body."""

    def finish(self, now_ms: int) -> None:
        """Notes that the whole body has come."""


class Content:
    """A message whose frames arrive one after the other."""

    __slots__ = ("body", "body_size", "head_bytes", "received_bytes", "reserved_bytes", "target", "template", "upload")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.template: Template | None = None  # until the content header is there
        self.body_size = 0
        self.head_bytes = 0  # that its properties are counted as
        self.reserved_bytes = 0  # of the connection's share
        self.received_bytes = 0  # of the body
        self.upload: BodyTaker | None = None  # which takes the body instead, as it is stored in parts
        self.body = bytearray()  # grows in one piece: a peer may cut a body into single bytes

    @property
    def complete(self) -> bool:
        """Returns whether all of it is there."""
        return self.template is not None and self.received_bytes == self.body_size

    @property
    def held_bytes(self) -> int:
        """Returns the memory that it is counted as: none of a body in parts."""
        return len(self.body) + self.head_bytes

    def unexpected(self) -> ProtocolError:
        """Returns the error of any other frame than the one that has to come next, in RabbitMQ's words."""
        if self.template is None:
            what = "content header for class 60, got non content header"
        else:
            what = "content body, got non content body"
        return ProtocolError(UNEXPECTED_FRAME, f"expected {what} frame instead")

    def take_header(self, payload: bytes) -> None:
        """Takes the content header. Raises `ProtocolError`."""
        if self.template is not None:
            raise self.unexpected()
        if len(payload) < CONTENT_HEADER.size:
            raise ProtocolError(FRAME_ERROR, "cannot decode content header: it is too short")
        class_id, weight, self.body_size = CONTENT_HEADER.unpack_from(payload)
        if class_id != 60:
            why = f"expected content header for class 60, got one for class {class_id} instead"
            raise ProtocolError(UNEXPECTED_FRAME, why)
        if weight:  # AMQP 0-9-1, 4.2.6.1
            raise ProtocolError(UNEXPECTED_FRAME, f"expected content header of weight 0, got weight {weight} instead")
        self.template = template_of(payload[CONTENT_HEADER.size :])

    def postpone_header(self) -> None:
        """Takes the content header back, which comes again when there is credit for the body."""
        self.template = None

    def take_body(self, payload: bytes) -> None:
        """Takes a body frame. Raises `ProtocolError`."""
        if self.template is None:
            raise self.unexpected()
        if self.received_bytes + len(payload) > self.body_size:
            raise ProtocolError(FRAME_ERROR, f"a body longer than the {self.body_size} bytes announced")
        self.received_bytes += len(payload)
        if self.upload is not None:
            self.upload.take(payload)
        else:
            self.body += payload

    def message(self, principal: Principal, now_ms: int) -> Message:
        """Returns the message, with as much of the body as is held."""
        assert self.template is not None
        message = self.template.message(
            self.target.address,
            bytes(self.body),
            device=principal.device,
            user=principal.name,
            trusted_gateway=principal.trusted_gateway,
            now_ms=now_ms,
        )
        return with_copies(message, self.template.copies) if self.template.copies else message
