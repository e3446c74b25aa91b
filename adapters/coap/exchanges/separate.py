"""Confirmable responses in messages of their own, one in flight to an endpoint at a time (RFC 7252, 4.7 and 5.2.2).

NSTART counts each Confirmable message to an endpoint, so a response waits for a notification, too, and goes before
those that wait: a client waits for it. When a response is given up the next one is sent, but for those whose exchanges
are forgotten by then: an endpoint that is gone keeps others for so long.
"""

from collections import deque

from adapters.coap.exchanges.retransmit import Retransmitter
from adapters.coap.messages.settings import CoapOptions
from gateway.port.adapter import Peer, Random


class SeparateResponses:
    """The Confirmable responses of one socket: those in flight, and those that wait.

    `notified` has the endpoints to which a Confirmable notification is in flight. Datagrams are put into `output`.
    """

    def __init__(self, settings: CoapOptions, *, random: Random) -> None:
        self._pending_max = settings.requests_outstanding_max
        self._lifetime_ms = settings.exchange_lifetime_ms
        self._retransmitter = Retransmitter(settings, pending_max=self._pending_max, random=random)
        self.notified: set[Peer] = set()
        self._in_flight: set[Peer] = set()  # the endpoints of the responses that the retransmitter has
        self._waiting: dict[Peer, deque[tuple[int, bytes, int]]] = {}  # Message IDs, datagrams, and since when
        self._waiting_count = 0

    @property
    def full(self) -> bool:
        """Returns whether no more can be taken."""
        return len(self._retransmitter) + self._waiting_count >= self._pending_max

    @property
    def idle(self) -> bool:
        """Returns whether nothing is in flight."""
        return not self._in_flight and not self._waiting

    def busy(self, peer: Peer) -> bool:
        """Returns whether a Confirmable message to an endpoint is in flight, or a response waits to be sent."""
        return peer in self._in_flight or peer in self.notified or peer in self._waiting

    def send(self, peer: Peer, mid: int, datagram: bytes, now_ms: int) -> list[tuple[bytes, Peer]]:
        """Returns what to send now of a response: it, or nothing where it has to wait."""
        if self.busy(peer):
            self._waiting.setdefault(peer, deque()).append((mid, datagram, now_ms))
            self._waiting_count += 1
            return []
        self._in_flight.add(peer)
        self._retransmitter.add(peer, mid, datagram, now_ms)
        return [(datagram, peer)]

    def settle(self, peer: Peer, mid: int) -> None:
        """Notes that an endpoint has acknowledged or reset a message."""
        if self._retransmitter.settle(peer, mid):
            self._in_flight.discard(peer)

    def next(self, peer: Peer, now_ms: int) -> list[tuple[bytes, Peer]]:
        """Returns the response that has waited longest, if it can be sent now."""
        waiting = self._waiting.get(peer)
        if waiting is None or peer in self._in_flight or peer in self.notified:
            return []
        mid, datagram, _ = waiting.popleft()
        self._waiting_count -= 1
        if not waiting:
            del self._waiting[peer]
        self._in_flight.add(peer)
        self._retransmitter.add(peer, mid, datagram, now_ms)
        return [(datagram, peer)]

    def again(self, now_ms: int) -> tuple[list[tuple[bytes, Peer]], list[Peer]]:
        """Returns the datagrams to send again by now, and the endpoints whose response is given up."""
        out = self._retransmitter.again(now_ms)
        gone = [peer for peer, _ in self._retransmitter.given_up]
        self._in_flight.difference_update(gone)
        for peer in gone:
            self._drop(peer, now_ms - self._lifetime_ms)
        return out, gone

    def _drop(self, peer: Peer, before_ms: int) -> None:
        waiting = self._waiting.get(peer, deque())
        while waiting and waiting[0][2] <= before_ms:
            waiting.popleft()
            self._waiting_count -= 1
        if not waiting:
            self._waiting.pop(peer, None)

    def deadline_ms(self) -> int | None:
        """Returns when `again` is due."""
        return self._retransmitter.deadline_ms()
