"""Bodies larger than a datagram: put together from Block1, and kept to be read by Block2 (RFC 7959).

Both kinds of transfer are held under the same limits: their number, those of one peer, and the bytes of all. A
transfer that hears nothing for EXCHANGE_LIFETIME is forgotten.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from adapters.coap.registry import BAD_REQUEST, REQUEST_ENTITY_INCOMPLETE, REQUEST_ENTITY_TOO_LARGE
from adapters.coap.request import Request
from adapters.coap.settings import CoapOptions
from adapters.coap.wire import Option
from gateway.errors import Cause, ProtocolError, Refusal
from gateway.port import Peer

__all__ = ["Snapshot", "Snapshots", "Uploads"]

B = TypeVar("B", bytearray, "Snapshot")


@dataclass(slots=True)
class _Transfer(Generic[B]):
    body: B
    size_bytes: int
    expires_at_ms: int


class _Transfers(Generic[B]):
    """Transfers by peer and request, the one that was silent longest first."""

    def __init__(self, settings: CoapOptions) -> None:
        self._settings = settings
        self._transfers: dict[tuple[Peer, Hashable], _Transfer[B]] = {}
        self._of_peer: dict[Peer, int] = {}  # sums up to len(_transfers)
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._transfers)

    def get(self, peer: Peer, key: Hashable, now_ms: int) -> B | None:
        """What is held of a transfer, whose time begins anew."""
        transfer = self._transfers.pop((peer, key), None)
        if transfer is None:
            return None
        transfer.expires_at_ms = now_ms + self._settings.exchange_lifetime_ms
        self._transfers[peer, key] = transfer
        return transfer.body

    def has_room(self, peer: Peer, size_bytes: int) -> bool:
        """Whether another transfer of a peer's would be within the limits."""
        settings = self._settings
        return (
            len(self._transfers) < settings.block_transfers_max
            and self._of_peer.get(peer, 0) < settings.block_transfers_peer_max
            and self._size_bytes + size_bytes <= settings.block_bytes_max
        )

    def put(self, peer: Peer, key: Hashable, body: B, size_bytes: int, now_ms: int) -> None:
        """Hold a new transfer; one of the same name is forgotten."""
        self.drop(peer, key)
        self._transfers[peer, key] = _Transfer(body, size_bytes, now_ms + self._settings.exchange_lifetime_ms)
        self._of_peer[peer] = self._of_peer.get(peer, 0) + 1
        self._size_bytes += size_bytes

    def grow(self, peer: Peer, key: Hashable, size_bytes: int) -> bool:
        """Count more bytes for a transfer; whether they are within the limit."""
        if self._size_bytes + size_bytes > self._settings.block_bytes_max:
            return False
        self._size_bytes += size_bytes
        self._transfers[peer, key].size_bytes += size_bytes
        return True

    def drop(self, peer: Peer, key: Hashable) -> None:
        """Forget a transfer, if it is held."""
        transfer = self._transfers.pop((peer, key), None)
        if transfer is None:
            return
        self._size_bytes -= transfer.size_bytes
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def expire(self, now_ms: int) -> None:
        """Forget what has been silent for too long."""
        while self._transfers:
            (peer, key), transfer = next(iter(self._transfers.items()))
            if transfer.expires_at_ms > now_ms:
                break
            self.drop(peer, key)

    def deadline_ms(self) -> int | None:
        """When `expire` is wanted."""
        return next(iter(self._transfers.values())).expires_at_ms if self._transfers else None


class Uploads(_Transfers[bytearray]):
    """Bodies that arrive in Block1, in order, each acted upon as a whole (RFC 7959, 2.5)."""

    def add(self, peer: Peer, request: Request, payload: bytes, now_ms: int) -> bytes | None:
        """Take one block; the whole body once it is there, else None.

        Raises `ProtocolError`: 4.00 for a block that is not as long as it says, 4.08 when one before it is missing,
        4.13 for too large a body; `Refusal` (OVERLOAD) when a limit for transfers is reached.
        """
        block = request.block1
        assert block is not None
        if (block.more and len(payload) != block.size) or len(payload) > block.size:
            self.drop(peer, request.key)
            raise ProtocolError(BAD_REQUEST, f"Block1: {len(payload)} bytes in a block of {block.size}")
        limit = self._settings.max_body_bytes
        if max(block.offset + len(payload), request.size1 or 0) > limit:
            self.drop(peer, request.key)
            raise ProtocolError(REQUEST_ENTITY_TOO_LARGE, f"a body is at most {limit} bytes")
        if block.number == 0:
            self.drop(peer, request.key)
            if not block.more:
                return payload
            if not self.has_room(peer, len(payload)):
                raise Refusal(Cause.OVERLOAD, "too many transfers in blocks")
            self.put(peer, request.key, bytearray(payload), len(payload), now_ms)
            return None
        body = self.get(peer, request.key, now_ms)
        if body is None or len(body) != block.offset:
            self.drop(peer, request.key)
            raise ProtocolError(REQUEST_ENTITY_INCOMPLETE, f"Block1: a block before number {block.number} is missing")
        if not self.grow(peer, request.key, len(payload)):
            self.drop(peer, request.key)
            raise Refusal(Cause.OVERLOAD, "too many bytes in blocks")
        body += payload
        if block.more:
            return None
        self.drop(peer, request.key)
        return bytes(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A body to be read in blocks, as it was when its first block was read, and the options every block carries."""

    body: bytes
    options: tuple[Option, ...]


class Snapshots(_Transfers[Snapshot]):
    """Bodies that peers read in Block2. What finds no room is read anew for each block: its ETag tells changes."""

    def keep(self, peer: Peer, key: Hashable, snapshot: Snapshot, now_ms: int) -> None:
        """Hold a body while it is read, if there is room."""
        self.drop(peer, key)
        if self.has_room(peer, len(snapshot.body)):
            self.put(peer, key, snapshot, len(snapshot.body), now_ms)
