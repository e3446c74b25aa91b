"""The exchanges of one peer in one security context: which request each response is bound to (RFC 8613, 8.3)."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TypeVar

from adapters.coap.codec.registry import EMPTY, MAX_AGE, NON, OBSERVE
from adapters.coap.codec.wire import decode
from adapters.coap.oscore.context import RequestId, SecurityContext
from gateway.port.adapter import Peer

REQUESTS_COUNT_MAX = 256  # of one peer, whose responses are still to come
OBSERVED_COUNT_MAX = 1_024  # tokens of one peer that it observes with
REPLY_BYTES = 256  # that a reply takes besides its datagrams

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class PendingRequest:
    """A request whose response is still to come. Its nonce serves for one response (RFC 8613, 5.2)."""

    id: RequestId
    token: bytes
    nonce_unused: bool = True


@dataclass(slots=True)
class Association:
    """One peer of a context: `inner` is the name that its endpoint knows it by."""

    context: SecurityContext
    outer: Peer
    inner: Peer
    requests: dict[int, PendingRequest] = field(default_factory=dict)  # by Message ID
    observed: dict[bytes, RequestId] = field(default_factory=dict)  # by token

    def asked(self, mid: int, token: bytes, request: RequestId) -> None:
        """Notes a request."""
        self.requests.pop(mid, None)
        _put(self.requests, mid, PendingRequest(request, token), REQUESTS_COUNT_MAX)

    def request_of(self, mid: int, token: bytes, *, mask: int, piggybacked: bool) -> PendingRequest | None:
        """Returns the request that a response of ours is for, None where it is not known any more.

        A piggybacked response has the request's Message ID, a separate one that with the endpoint's mask on it, unless
        a notification has used that, and a notification another.
        """
        number = self._request_mid(mid, token, mask=mask, piggybacked=piggybacked)
        if number is not None:
            return self.requests[number]
        observed = self.observed.get(token)
        return None if observed is None else PendingRequest(observed, token, nonce_unused=False)

    def observes(self, token: bytes, request: RequestId) -> None:
        """Notes that notifications with this token are bound to a request."""
        self.observed.pop(token, None)
        _put(self.observed, token, request, OBSERVED_COUNT_MAX)

    def answered(self, mid: int, token: bytes, *, mask: int, piggybacked: bool) -> None:
        """Forgets a request that has its last response."""
        number = self._request_mid(mid, token, mask=mask, piggybacked=piggybacked)
        if number is not None:
            del self.requests[number]
        else:
            self.observed.pop(token, None)

    def _request_mid(self, mid: int, token: bytes, *, mask: int, piggybacked: bool) -> int | None:
        """Returns the Message ID of the request that a response is for, None where that is one of `observed`."""
        number = mid if piggybacked else mid ^ mask
        pending = self.requests.get(number)
        if pending is not None and pending.token == token:
            return number
        if piggybacked or token in self.observed:
            return None
        return next((one for one, pending in self.requests.items() if pending.token == token), None)


def _is_renumbered(one: bytes, other: bytes) -> bool:
    """Returns whether a notification is another one sent again, with a number and a Max-Age of its own."""
    packets = [decode(data) for data in (one, other)]
    kept = [[option for option in packet.options if option[0] not in {OBSERVE, MAX_AGE}] for packet in packets]
    return kept[0] == kept[1] and len({(packet.mid, packet.token, packet.payload) for packet in packets}) == 1


def _put(items: MutableMapping[K, V], key: K, value: V, most: int) -> None:
    if len(items) >= most:
        del items[next(iter(items))]
    items[key] = value


@dataclass(slots=True)
class _Reply:
    cause: bytes  # the datagram that it is for: the request's, or the one it protects
    datagram: bytes  # b"": none yet
    until_ms: int


class Replies:
    """Datagrams by peer and Message ID, so that a repeated datagram is not protected twice (RFC 8613, 7.5.1)."""

    def __init__(self, *, lifetime_ms: int, bytes_max: int) -> None:
        self._lifetime_ms = lifetime_ms
        self._bytes_max = bytes_max
        self._replies: dict[tuple[Peer, int, bool], _Reply] = {}  # the oldest first
        self._size_bytes = 0  # <= bytes_max

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, peer: Peer, mid: int, cause: bytes, now_ms: int, *, ours: bool) -> bytes | None:
        """Returns the datagram for a cause, b"" where there is none yet; None where the cause is new."""
        found = self._replies.get((peer, mid, ours))
        if found is None or found.until_ms <= now_ms:
            return None
        return found.datagram if found.cause == cause or (ours and _is_renumbered(found.cause, cause)) else None

    def put(self, peer: Peer, mid: int, cause: bytes, datagram: bytes, now_ms: int, *, ours: bool) -> None:
        """Remembers a cause and its datagram."""
        self._drop((peer, mid, ours))
        self._replies[peer, mid, ours] = _Reply(cause, datagram, now_ms + self._lifetime_ms)
        self._size_bytes += len(cause) + len(datagram) + REPLY_BYTES
        while self._size_bytes > self._bytes_max:
            self._drop(next(iter(self._replies)))

    def answer(self, peer: Peer, mid: int, datagram: bytes) -> None:
        """Adds the response to a request that is remembered."""
        found = self._replies.get((peer, mid, False))
        if found is not None:
            self._size_bytes += len(datagram) - len(found.datagram)
            found.datagram = datagram

    def answered_apart(self, peer: Peer, mid: int) -> bool:
        """Returns whether a request that is remembered has a response in a message of its own."""
        found = self._replies.get((peer, mid, False))
        return found is not None and (found.cause[0] >> 4 & 3 == NON or found.datagram[1:2] == bytes((EMPTY,)))

    def expire(self, now_ms: int) -> None:
        """Forgets old datagrams."""
        while self._replies:
            key = next(iter(self._replies))
            if self._replies[key].until_ms > now_ms:
                break
            self._drop(key)

    def deadline_ms(self) -> int | None:
        """Returns when `expire` is due."""
        return next(iter(self._replies.values())).until_ms if self._replies else None

    def _drop(self, key: tuple[Peer, int, bool]) -> None:
        found = self._replies.pop(key, None)
        if found is not None:
            self._size_bytes -= len(found.cause) + len(found.datagram) + REPLY_BYTES
