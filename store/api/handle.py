"""The handle of a lease: text by which its holder can settle, give back or extend one message.

    version u8 | queue u32 | offset u64 | lease u64 | leased_at u64 | deliveries u32 | visible_at_ms u64 |
    group, UTF-8 | MAC 16 B

Big-endian, base64url without padding. The MAC is HMAC-SHA-256 cut to 128 bits (RFC 2104, 5), with a key that the store
group keeps in its KV: so every master and every proxy of the group can check a handle that any of them made, and no
client can make one. `lease` stays the same when the lease is extended, so an older handle of it keeps working.
`leased_at` is how far the log was then: a handle is void after the deletion of its queue or group.
"""

import base64
import binascii
import hmac
import struct
from typing import NamedTuple

from store.base.errors import BadHandle
from store.format.frame import LogOffset, QueueNumber, QueueOffset

KEY_BYTES = 32
HANDLE_CHARS_MAX = 1024  # more cannot be a handle, and is not looked at
_VERSION = 2
_FIELDS = struct.Struct(">BIQQQIQ")
_MAC_BYTES = 16


class LeaseHandle(NamedTuple):
    """The fields of a lease's handle. `deliveries` is how often the message had been leased before."""

    queue: QueueNumber
    group: str
    offset: QueueOffset
    lease: int
    leased_at: LogOffset
    deliveries: int
    visible_at_ms: int

    def encode(self, key: bytes) -> str:
        """Returns the handle, signed."""
        fields = _FIELDS.pack(_VERSION, self.queue, *self[2:])
        data = fields + self.group.encode()
        return base64.urlsafe_b64encode(data + _mac(key, data)).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str, key: bytes) -> "LeaseHandle":
        """Decodes a handle. Raises `BadHandle` unless a holder of the key has made exactly this text."""
        if len(text) > HANDLE_CHARS_MAX:
            raise BadHandle(f"a handle has at most {HANDLE_CHARS_MAX} characters")
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadHandle("a handle is base64url") from error
        data, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if len(data) < _FIELDS.size or not hmac.compare_digest(mac, _mac(key, data)):
            raise BadHandle("the handle was not made by this store, or was changed")
        version, queue, offset, lease, leased_at, deliveries, visible_at_ms = _FIELDS.unpack_from(data)
        if version != _VERSION:
            raise BadHandle(f"a handle of version {version}")
        group = data[_FIELDS.size :].decode()
        handle = cls(
            QueueNumber(queue), group, QueueOffset(offset), lease, LogOffset(leased_at), deliveries, visible_at_ms
        )
        if handle.encode(key) != text:  # base64 has spellings that mean the same
            raise BadHandle("the handle was not made by this store, or was changed")
        return handle


def queue_of(text: str) -> QueueNumber | None:
    """Returns the queue that a handle names, to find the store group that can check it; None: it names none.

    Nothing is verified.
    """
    try:
        raw = base64.b64decode(text[:HANDLE_CHARS_MAX] + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return QueueNumber(_FIELDS.unpack_from(raw)[1])
    except (ValueError, struct.error):
        return None


def group_of_handle(text: str) -> str | None:
    """Returns the group of consumers that a handle says it is of; None: it is no handle. Nothing is verified."""
    try:
        raw = base64.b64decode(text[:HANDLE_CHARS_MAX] + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return raw[_FIELDS.size : -_MAC_BYTES].decode()
    except ValueError:
        return None


class Grant:
    """The common part of all messages leased by one `take`; their leases share it, so that a lease costs nothing.

    `visible_at_ms` is by the store's steady clock, which a wall clock set back leaves ahead.
    """

    __slots__ = ("group", "key", "lease", "leased_at", "owner", "queue", "visible_at_ms")

    def __init__(
        self,
        *,
        queue: QueueNumber,
        group: str,
        owner: int,
        lease: int,
        leased_at: LogOffset,
        visible_at_ms: int,
        key: bytes,
    ) -> None:
        self.queue = queue
        self.group = group
        self.owner = owner
        self.lease = lease
        self.leased_at = leased_at
        self.visible_at_ms = visible_at_ms
        self.key = key

    def until(self, visible_at_ms: int) -> "Grant":
        """Returns the same lease, ending at another time."""
        return Grant(
            queue=self.queue,
            group=self.group,
            owner=self.owner,
            lease=self.lease,
            leased_at=self.leased_at,
            visible_at_ms=visible_at_ms,
            key=self.key,
        )

    def handle(self, offset: QueueOffset, deliveries: int) -> str:
        """Returns the handle of one message."""
        return LeaseHandle(
            self.queue, self.group, offset, self.lease, self.leased_at, deliveries, self.visible_at_ms
        ).encode(self.key)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")[:_MAC_BYTES]
