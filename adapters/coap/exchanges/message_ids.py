"""The Message IDs of our own messages: none is used again for EXCHANGE_LIFETIME towards an endpoint (RFC 7252, 4.4).

A response in a message of its own has the Message ID of its request, masked: as unique as the endpoint's own are.
Notifications count upwards, from far away of these. An endpoint that observes anew goes on with its count, and each
kind leaves out the Message IDs that the other one has used.
"""

from collections import OrderedDict, deque

from adapters.coap.exchanges.exchanges import Exchanges
from gateway.port.adapter import Peer

MID_DISTANCE = 0x8000  # between the first Message IDs of notifications and of responses to a peer
MID_COUNT = 0x1_0000
MID_LIFETIME_MS = 247_000  # EXCHANGE_LIFETIME (RFC 7252, 4.8.2)
STEP_MS = 4_000  # how exactly it is known when a Message ID was used
ENDPOINTS_MAX = 65_536  # that have observed of late


class Numbering:
    """The Message IDs of notifications to one endpoint: those since the first one of `_since` were used of late."""

    __slots__ = ("_next", "_since", "used_ms")

    def __init__(self, first: int) -> None:
        self.used_ms = 0  # when the last one was used
        self._next = first
        self._since: deque[tuple[int, int]] = deque()  # times, and the first Message IDs used from then on

    def take(self, now_ms: int) -> int:
        """Returns the next one."""
        self._forget(now_ms)
        if not self._since or now_ms >= self._since[-1][0] + STEP_MS:
            self._since.append((now_ms, self._next))
        mid = self._next
        self._next = (mid + 1) % MID_COUNT
        self.used_ms = now_ms
        return mid

    def has(self, mid: int, now_ms: int) -> bool:
        """Returns whether one may have been used of late."""
        self._forget(now_ms)
        if not self._since:
            return False
        first = self._since[0][1]
        return (mid - first) % MID_COUNT < (self._next - first) % MID_COUNT

    def _forget(self, now_ms: int) -> None:
        while self._since and self._since[0][0] + STEP_MS + MID_LIFETIME_MS < now_ms:
            self._since.popleft()


class MessageIds:
    """The Message IDs of one socket. `recent` has the endpoints that were sent notifications of late."""

    def __init__(self, exchanges: Exchanges, mask: int) -> None:
        self.mask = mask
        self.recent: OrderedDict[Peer, Numbering] = OrderedDict()  # the one used longest ago first
        self._exchanges = exchanges

    def begin(self, peer: Peer, mid: int) -> Numbering:
        """Returns the numbering of an endpoint that observes; `mid` is its request's."""
        return self.recent.get(peer) or Numbering(mid ^ self.mask ^ MID_DISTANCE)

    def of_notification(self, peer: Peer, numbering: Numbering, now_ms: int) -> int:
        """Returns the Message ID of a new notification."""
        recent = self.recent
        for _ in range(MID_COUNT):
            mid = numbering.take(now_ms)
            if not self._exchanges.answered_apart(peer, mid ^ self.mask):
                break
        recent[peer] = numbering
        recent.move_to_end(peer)
        oldest = next(iter(recent))
        while len(recent) > ENDPOINTS_MAX or recent[oldest].used_ms + MID_LIFETIME_MS < now_ms:
            del recent[oldest]
            oldest = next(iter(recent))
        return mid

    def of_response(self, peer: Peer, mid: int, now_ms: int) -> int:
        """Returns the Message ID of a response in a message of its own; `mid` is its request's."""
        own = mid ^ self.mask
        numbering = self.recent.get(peer)
        if numbering is None or not numbering.has(own, now_ms):
            return own
        return self.of_notification(peer, numbering, now_ms)
