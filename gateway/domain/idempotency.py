"""Keys of requests: a message published under a key is stored once, however often and wherever it is sent again.

The key goes into the log in the frame of its messages, as a guard (`store.guards`). The master that is to store a
second frame with the key stores nothing of it, and says so: then the publisher asks for the stored request of that key
(`RecallKey`).
"""

import struct
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from gateway.domain.errors import Cause, Refusal
from store.api.client import StoreClient
from store.format.frame import LogOffset, Position
from store.format.records import KvPut, encode
from store.guards.rows import NAME_BYTES, ONCES

RETRY_AFTER_MS = 60_000
_SAID = struct.Struct(">IIQ")  # the key's row, the first message's, when that is due (0: at once)


class IdempotencyKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of one `Publish`."""

    name: bytes  # of the requester, the operation and the key: `digest` of all that
    fingerprint: bytes  # of the request's content: under one key always the same
    expires_at_ms: int  # when it is forgotten


class KeyRepeated(Refusal):
    """Raised when a group has stored a message under this key before, or its table of keys is full; nothing is stored.

    `refused` are the messages that could not have been stored in any case, by index.
    """

    def __init__(self, group: int, refused: Mapping[int, Refusal]) -> None:
        super().__init__(Cause.CONFLICT, "this key was used before")
        self.group = group
        self.refused = refused


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a key."""

    fingerprint: bytes
    first: Position  # of the first message that was stored
    deliver_at_ms: int | None  # when that is to be delivered, if it waits


def digest(*parts: str | bytes) -> bytes:
    """Returns a name of some texts, different for different ones."""
    made = blake2b(digest_size=NAME_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        made.update(len(data).to_bytes(8, "big") + data)
    return made.digest()


def once_record(key: IdempotencyKey, *, row: int, first: int, deliver_at_ms: int | None) -> bytes:
    """Returns the record by which a log remembers a key; `row` is its own, `first` that of the first message."""
    value = _SAID.pack(row, first, deliver_at_ms or 0) + key.fingerprint
    return encode(KvPut(key.name.hex(), value, namespace=ONCES, expires_at_ms=key.expires_at_ms))


async def recall(store: StoreClient, group: int, name: bytes) -> StoredRequest:
    """Returns the request stored under a key. Raises `Refusal` when the group does not remember it, `StoreError`."""
    one = store.logs.get(group)
    entry = None if one is None else await one.keys.get(name.hex(), namespace=ONCES)
    if entry is None:
        raise Refusal(
            Cause.OVERLOAD,
            "the limit of remembered idempotency keys is reached; try again later",
            retry_after_ms=RETRY_AFTER_MS,
        )
    row, first, deliver_at_ms = _SAID.unpack_from(entry.value)
    frame = LogOffset(entry.revision - 1 - row)
    return StoredRequest(
        fingerprint=entry.value[_SAID.size :], first=Position(frame, first), deliver_at_ms=deliver_at_ms or None
    )
