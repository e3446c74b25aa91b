"""Bodies larger than a datagram: put together from Block1, and kept to be read by Block2 (RFC 7959).

Both kinds of transfer are held under the same limits: their number, those of one peer, and the bytes of all. A
transfer without a block for EXCHANGE_LIFETIME is forgotten; sooner, the one that was silent longest gives way to a
new one that finds no room, so that a client cannot keep others out by uploads that it never ends. A body whose last
block was read is held for as long as that block may be asked for again, and gives way before any other.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from adapters.coap.codec.registry import BAD_REQUEST, BLOCK1, REQUEST_ENTITY_INCOMPLETE, REQUEST_ENTITY_TOO_LARGE
from adapters.coap.codec.wire import Option
from adapters.coap.messages.request import Block, CoapRequest
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.adapter import Peer

SILENCE_SPARED_MS = 4_000  # a peer that lost a datagram has sent it again by then (RFC 7252, 4.8: at most 3 s)
READ_MS = 45_000  # a request for the last block is sent again within MAX_TRANSMIT_SPAN (RFC 7252, 4.8.2)
OPTION_BYTES = 128  # bytes that count for an option, or the method, of a transfer's name besides its value

Key: TypeAlias = tuple[Option, ...]
_Name: TypeAlias = tuple[Peer, Key]
B = TypeVar("B", bytearray, "BodySnapshot")


@dataclass(slots=True)
class _Transfer(Generic[B]):
    body: B
    size_bytes: int
    received_ms: int


class _Transfers(Generic[B]):
    """Transfers by peer and request, the one that was silent longest first."""

    def __init__(self, settings: CoapOptions) -> None:
        self._settings = settings
        self._under_way: OrderedDict[_Name, _Transfer[B]] = OrderedDict()
        self._finished: OrderedDict[_Name, _Transfer[B]] = OrderedDict()  # the one that finished first is first
        self._of_peer: dict[Peer, dict[Key, None]] = {}  # the keys of both
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._under_way) + len(self._finished)

    def get(self, peer: Peer, key: Key, now_ms: int) -> B | None:
        """Returns the part held of a transfer, whose time begins anew; None when there is none."""
        name = peer, key
        transfer = self._under_way.pop(name, None) or self._finished.pop(name, None)
        if transfer is None:
            return None
        transfer.received_ms = now_ms
        self._under_way[name] = transfer
        of_peer = self._of_peer[peer]
        del of_peer[key]
        of_peer[key] = None
        return transfer.body

    def put(self, peer: Peer, key: Key, body: B, size_bytes: int, now_ms: int) -> bool:
        """Holds a new transfer, one of the same name being forgotten; returns False when there is no room for it."""
        self.drop(peer, key)
        settings = self._settings
        while len(of_peer := self._of_peer.get(peer, {})) >= settings.block_transfers_peer_max:
            finished = (one for one in of_peer if (peer, one) in self._finished)
            if not self._give_way((peer, next(finished, next(iter(of_peer)))), now_ms):
                return False
        while len(self) >= settings.block_transfers_max:
            if not self._give_way(self._first(), now_ms):
                return False
        size_bytes += sum([len(value) + OPTION_BYTES for _, value in key])
        if not self._take(size_bytes, now_ms):
            return False
        self._under_way[peer, key] = _Transfer(body, size_bytes, now_ms)
        self._of_peer.setdefault(peer, {})[key] = None
        return True

    def grow(self, peer: Peer, key: Key, size_bytes: int, now_ms: int) -> bool:
        """Counts more bytes for a transfer whose block has just come; returns False when there is no room for them."""
        if not self._take(size_bytes, now_ms):
            return False
        self._under_way[peer, key].size_bytes += size_bytes
        return True

    def done(self, peer: Peer, key: Key) -> None:
        """Holds a transfer, whose last block `get` was called for, for a while, as one of the first to give way."""
        self._finished[peer, key] = self._under_way.pop((peer, key))

    def drop(self, peer: Peer, key: Key) -> None:
        """Forgets a transfer, if it is held."""
        name = peer, key
        transfer = self._under_way.pop(name, None) or self._finished.pop(name, None)
        if transfer is None:
            return
        self._size_bytes -= transfer.size_bytes
        of_peer = self._of_peer[peer]
        del of_peer[key]
        if not of_peer:
            del self._of_peer[peer]

    def drop_all(self, peer: Peer) -> None:
        """Forgets all transfers of a peer."""
        for key in list(self._of_peer.get(peer, ())):
            self.drop(peer, key)

    def expire(self, now_ms: int) -> None:
        """Forgets transfers that have been silent for too long."""
        for transfers, lifetime_ms in self._lifetimes():
            while transfers:
                (peer, key), transfer = next(iter(transfers.items()))
                if transfer.received_ms + lifetime_ms > now_ms:
                    break
                self.drop(peer, key)

    def deadline_ms(self) -> int | None:
        """Returns when `expire` is due."""
        deadlines = [
            next(iter(transfers.values())).received_ms + lifetime_ms
            for transfers, lifetime_ms in self._lifetimes()
            if transfers
        ]
        return min(deadlines, default=None)

    def _lifetimes(self) -> tuple[tuple[OrderedDict[_Name, _Transfer[B]], int], ...]:
        return (self._under_way, self._settings.exchange_lifetime_ms), (self._finished, READ_MS)

    def _first(self) -> _Name:
        """Returns the transfer that is to give way first."""
        return next(iter(self._finished or self._under_way))

    def _take(self, size_bytes: int, now_ms: int) -> bool:
        """Counts bytes; returns False when they are too many even without the transfers that can give way."""
        most = self._settings.block_bytes_max
        while self._size_bytes + size_bytes > most:
            if size_bytes > most or not len(self) or not self._give_way(self._first(), now_ms):
                return False
        self._size_bytes += size_bytes
        return True

    def _give_way(self, name: _Name, now_ms: int) -> bool:
        """Forgets a transfer, unless it is under way and its last block so recent that the next may follow.

        A block of later than now came before the clock of streams was set back.
        """
        if name in self._under_way and 0 <= now_ms - self._under_way[name].received_ms < SILENCE_SPARED_MS:
            return False
        self.drop(*name)
        return True


class Uploads(_Transfers[bytearray]):
    """Bodies that arrive in Block1, in order, each acted upon as a whole (RFC 7959, 2.5)."""

    def acknowledged(self, request: CoapRequest) -> Option:
        """Returns the Block1 of the response to a block, which may ask for smaller ones (RFC 7959, 2.5)."""
        block = request.block1
        assert block is not None
        if block.number == 0 and not block.bert:
            block = block._replace(exponent=min(block.exponent, Block.of_size(self._settings.block_size).exponent))
        return BLOCK1, block.encode()

    def add(
        self, peer: Peer, request: CoapRequest, payload: bytes, now_ms: int, *, read_again: bool = False
    ) -> bytes | None:
        """Takes one block; the whole body once it is there, else None.

        With `read_again` the body is held on, so that its last block may be repeated, as one of the first to give way.

        Raises `ProtocolError`: 4.00 for a block that is not as long as it says, 4.08 when one before it is missing,
        4.13 for too large a body; `Refusal` (OVERLOAD) when a limit for transfers is reached.
        """
        block = request.block1
        assert block is not None
        if not block.fits(len(payload)):
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
            if not self.put(peer, request.key, bytearray(payload), len(payload), now_ms):
                raise Refusal(Cause.OVERLOAD, "too many transfers in blocks")
            return None
        body = self.get(peer, request.key, now_ms)
        end = block.offset + len(payload)
        if read_again and body is not None and not block.more and len(body) == end and body.endswith(payload):
            self.done(peer, request.key)
            return bytes(body)
        if body is None or len(body) != block.offset:
            self.drop(peer, request.key)
            raise ProtocolError(REQUEST_ENTITY_INCOMPLETE, f"Block1: a block before number {block.number} is missing")
        if not self.grow(peer, request.key, len(payload), now_ms):
            self.drop(peer, request.key)
            raise Refusal(Cause.OVERLOAD, "too many bytes in blocks")
        body += payload
        if block.more:
            return None
        (self.done if read_again else self.drop)(peer, request.key)
        return bytes(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySnapshot:
    """A body to be read in blocks, as it was when its first block was read, and the options every block carries."""

    body: bytes
    options: tuple[Option, ...]
    asked: bytes = b""  # the payload of the FETCH that it answers


class Snapshots(_Transfers[BodySnapshot]):
    """Bodies that peers read in Block2.

    A body that finds no room is read anew for each block: its ETag tells changes.
    """


class BlockTransfers:
    """The transfers of a socket, or of all connections of a process, in both directions."""

    def __init__(self, settings: CoapOptions) -> None:
        self.uploads = Uploads(settings)
        self.snapshots = Snapshots(settings)

    def drop_all(self, peer: Peer) -> None:
        """Forgets all transfers of a peer, which is gone."""
        self.uploads.drop_all(peer)
        self.snapshots.drop_all(peer)

    def expire(self, now_ms: int) -> None:
        """Forgets transfers that have been silent for too long."""
        self.uploads.expire(now_ms)
        self.snapshots.expire(now_ms)

    def deadline_ms(self) -> int | None:
        """Returns when `expire` is due."""
        deadlines = (self.uploads.deadline_ms(), self.snapshots.deadline_ms())
        return min([deadline for deadline in deadlines if deadline is not None], default=None)


class SharedTransfers(BlockTransfers):
    """Transfers of several endpoints, none of which has to be woken for them: their owner calls `expire`."""

    def deadline_ms(self) -> None:
        """Returns None: silent transfers are forgotten with the next input."""
