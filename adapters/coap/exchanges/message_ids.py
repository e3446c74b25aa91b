"""The Message IDs of our own messages: none is used again for EXCHANGE_LIFETIME towards an endpoint (RFC 7252, 4.4).

A response in a message of its own has the Message ID of its request, masked: as unique as the endpoint's own are.
Notifications count upwards, from far away of these. An endpoint that observes anew goes on with its count, and each
kind leaves out the Message IDs that the other one has used; but notifications to an endpoint leave out none any more
once half of them all are taken or left out, as it would be long to search for one where most are in use.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from gateway.port.adapter import Peer

MID_DISTANCE = 0x8000  # between the first Message IDs of notifications and of responses to a peer
MID_COUNT = 0x1_0000
MID_LIFETIME_MS = 247_000  # EXCHANGE_LIFETIME (RFC 7252, 4.8.2)
MIDS_TAKEN_MAX = MID_COUNT // 2  # of a numbering within a lifetime, while it leaves out those of responses
STEP_MS = 4_000  # how exactly it is known when a Message ID was used
ENDPOINTS_MAX = 65_536  # that have observed of late


class Numbering:
    """The Message IDs of notifications to one endpoint: those since the first one of `_since` were used of late."""

    __slots__ = ("__weakref__", "_next", "_since", "used_ms")

    def __init__(self, first: int) -> None:
        self.used_ms = 0  # when the last one was used
        self._next = first  # it goes on beyond MID_COUNT
        self._since: deque[tuple[int, int]] = deque()  # times, and the first one used from then on

    def take(self, now_ms: int) -> int:
        """Returns the next one."""
        self._forget(now_ms)
        if not self._since or now_ms >= self._since[-1][0] + STEP_MS:
            self._since.append((now_ms, self._next))
        mid = self._next % MID_COUNT
        self._next += 1
        self.used_ms = now_ms
        return mid

    @property
    def crowded(self) -> bool:
        """Returns whether so many were taken of late that others are not looked for."""
        return bool(self._since) and self._next - self._since[0][1] > MIDS_TAKEN_MAX

    def has(self, mid: int, now_ms: int) -> bool:
        """Returns whether one may have been used of late."""
        self._forget(now_ms)
        if not self._since:
            return False
        first = self._since[0][1]
        return (mid - first) % MID_COUNT < self._next - first

    def _forget(self, now_ms: int) -> None:
        while self._since and self._since[0][0] + STEP_MS + MID_LIFETIME_MS < now_ms:
            self._since.popleft()


class MessageIds(Protocol):
    """The Message IDs of our own messages."""

    @property
    def mask(self) -> int:
        """Returns the bits by which the Message ID of a separate response differs from its request's."""

    def begin(self, peer: Peer, mid: int) -> Numbering:
        """Returns the numbering of an endpoint that observes; `mid` is its request's."""

    def of_notification(self, peer: Peer, numbering: Numbering, now_ms: int) -> int:
        """Returns the Message ID of a new notification."""

    def of_response(self, peer: Peer, mid: int, now_ms: int) -> int:
        """Returns the Message ID of a response in a message of its own; `mid` is its request's."""


class SocketMessageIds(MessageIds):
    """The Message IDs of one socket. `recent` has the endpoints that were sent notifications of late.

    Each of `answered_apart` returns whether a request of a peer has had a response in a message of its own. With
    `shared` an endpoint may begin several times: as its plain messages, and in each of its contexts.
    """

    def __init__(self, mask: int, *, shared: bool = False) -> None:
        self._mask = mask
        self._shared = shared
        self.answered_apart: list[Callable[[Peer, int], bool]] = []
        self.recent: OrderedDict[Peer, Numbering] = OrderedDict()  # the one used longest ago first
        self._begun: WeakValueDictionary[Peer, Numbering] = (
            WeakValueDictionary()
        )  # of all that observe, where it is shared

    @property
    def mask(self) -> int:
        """See `MessageIds`."""
        return self._mask

    def begin(self, peer: Peer, mid: int) -> Numbering:
        """See `MessageIds`."""
        numbering = self._begun.get(peer) or self.recent.get(peer) or Numbering(mid ^ self._mask ^ MID_DISTANCE)
        if self._shared:
            self._begun[peer] = numbering
        return numbering

    def of_notification(self, peer: Peer, numbering: Numbering, now_ms: int) -> int:
        """See `MessageIds`."""
        recent = self.recent
        mid = numbering.take(now_ms)
        while not numbering.crowded and any(answered(peer, mid ^ self._mask) for answered in self.answered_apart):
            mid = numbering.take(now_ms)
        recent[peer] = numbering
        recent.move_to_end(peer)
        oldest = next(iter(recent))
        while len(recent) > ENDPOINTS_MAX or recent[oldest].used_ms + MID_LIFETIME_MS < now_ms:
            del recent[oldest]
            oldest = next(iter(recent))
        return mid

    def of_response(self, peer: Peer, mid: int, now_ms: int) -> int:
        """See `MessageIds`."""
        own = mid ^ self._mask
        numbering = self.recent.get(peer)
        if numbering is None or not numbering.has(own, now_ms):
            return own
        return self.of_notification(peer, numbering, now_ms)


class InnerMessageIds(MessageIds):
    """The Message IDs of peers behind a security layer, whose addresses `outer_of` returns: an endpoint has one set.

    Its protected and its plain messages must not have the same ones, nor those of two contexts.
    """

    def __init__(self, ids: MessageIds, outer_of: Callable[[Peer], Peer]) -> None:
        self._ids = ids
        self._outer_of = outer_of

    @property
    def mask(self) -> int:
        """See `MessageIds`."""
        return self._ids.mask

    def begin(self, peer: Peer, mid: int) -> Numbering:
        """See `MessageIds`."""
        return self._ids.begin(self._outer_of(peer), mid)

    def of_notification(self, peer: Peer, numbering: Numbering, now_ms: int) -> int:
        """See `MessageIds`."""
        return self._ids.of_notification(self._outer_of(peer), numbering, now_ms)

    def of_response(self, peer: Peer, mid: int, now_ms: int) -> int:
        """See `MessageIds`."""
        return self._ids.of_response(self._outer_of(peer), mid, now_ms)
