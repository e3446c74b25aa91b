"""Requests that have been seen, and their answers (RFC 7252, 4.5).

Requests are kept for EXCHANGE_LIFETIME, under their sender and Message ID; all requests of one wake are taken in, and
given up, together. Of requests that only read the newest are kept, as long as there is room: a repeat of another one
is read again, which 4.5 allows. The Message ID of a Non-confirmable one may be used again after NON_LIFETIME (4.8.2).
Where a limit is reached, those go first that their sender has stopped sending again (MAX_TRANSMIT_SPAN); if none are as
old as that, new ones are refused.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from gateway.port.adapter import Peer

MAX_TRANSMIT_SPAN_MS = 45_000  # RFC 7252, 4.8.2
NON_LIFETIME_MS = 145_000  # RFC 7252, 4.8.2; never longer than EXCHANGE_LIFETIME
EXPIRY_SLACK_MS = 1_000  # the past is tidied up once a second, not once a message
DROPPED_PER_TICK_MAX = 16_384
READ_COUNT_MAX = 4_096  # requests that read, with their responses
READ_PEER_COUNT_MAX = 8  # of one peer
READ_BYTES_MAX = 4 << 20  # of their responses


class Exchange(msgspec.Struct, gc=False):
    """One request, from its arrival to the end of its lifetime. It refers to nothing that could refer back to it."""

    peer: Peer
    tag: bytes  # Message ID and Token, as they came
    head: bytes  # the first two bytes of its response when all is well
    arrival_ms: int
    confirmable: bool
    acked: bool = False  # an empty acknowledgement was sent: the response travels in a message of its own
    response: bytes = b""  # the answer to a repeated request
    tail: bytes = b""  # options of its response when all is well
    read_again: bool = False  # answered in its acknowledgement, and a repeat is answered by what is read anew
    silence: int = 0  # No-Response: bit n - 1 is set where responses of class n are not wanted

    @property
    def mid(self) -> int:
        """The request's Message ID."""
        return self.tag[0] << 8 | self.tag[1]


class PeerExchanges:
    """The exchanges remembered of one peer."""

    __slots__ = ("by_mid", "peer")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.by_mid: dict[int, Exchange] = {}


class Exchanges:
    """All exchanges of one socket. `by_peer` has a conversation for every peer that has an exchange, and no other."""

    def __init__(self, *, lifetime_ms: int, total_max: int, peer_max: int, peers_max: int) -> None:
        self.lifetime_ms = lifetime_ms
        self.non_lifetime_ms = min(NON_LIFETIME_MS, lifetime_ms)
        self.total_max = total_max
        self.peer_max = peer_max
        self.peers_max = peers_max
        self.by_peer: dict[Peer, PeerExchanges] = {}
        self._wakes: deque[tuple[int, Sequence[Exchange]]] = deque()  # by arrival
        self._count = 0  # == sum(len(exchanges) for _, exchanges in _wakes)
        self._reads: dict[tuple[Peer, int], Exchange] = {}  # those that read, the oldest first; none of `_wakes`
        self._reads_of: dict[Peer, deque[int]] = {}  # their Message IDs
        self._read_bytes = 0

    def __len__(self) -> int:
        return self._count

    def room(self, now_ms: int) -> int:
        """Returns how many more can be remembered, after giving up those old enough to make room."""
        if self._count >= self.total_max or len(self.by_peer) >= self.peers_max:
            self._make_room(now_ms)
        return self.total_max - self._count

    def find(self, peer: Peer, tag: bytes, now_ms: int) -> Exchange | None:
        """Returns the exchange that a message repeats: the same Message ID from the same peer within its lifetime.

        A different Token tells that the peer has used a Message ID again too soon; that is a new request.
        """
        conversation = self.by_peer.get(peer)
        if conversation is None:
            return None
        known = conversation.by_mid.get(tag[0] << 8 | tag[1])
        if known is None or known.tag != tag:
            return None
        lifetime_ms = self.lifetime_ms if known.confirmable else self.non_lifetime_ms
        return known if now_ms - known.arrival_ms < lifetime_ms else None

    def has_room_for(self, peer: Peer, mid: int) -> bool:
        """Returns whether an exchange with this peer would be within the limits for peers.

        A peer that has used all its Message IDs uses one again: that exchange takes the place of the one before.
        """
        conversation = self.by_peer.get(peer)
        if conversation is None:
            return len(self.by_peer) < self.peers_max
        return len(conversation.by_mid) < self.peer_max or mid in conversation.by_mid

    def answered_apart(self, peer: Peer, mid: int) -> bool:
        """Returns whether a request that is remembered has a response in a message of its own."""
        conversation = self.by_peer.get(peer)
        known = None if conversation is None else conversation.by_mid.get(mid)
        return known is not None and (known.acked or not known.confirmable)

    def open(self, exchange: Exchange) -> None:
        """Recognises an exchange from now on. It is forgotten by `forget`, or by its age once it was `remember`ed."""
        conversation = self.by_peer.get(exchange.peer)
        if conversation is None:
            conversation = self.by_peer[exchange.peer] = PeerExchanges(exchange.peer)
        else:
            exchange.peer = conversation.peer  # one tuple for all of them
        conversation.by_mid[exchange.mid] = exchange

    def remember(self, exchanges: Sequence[Exchange], now_ms: int) -> None:
        """Keeps exchanges that are open for EXCHANGE_LIFETIME."""
        self._wakes.append((now_ms, exchanges))
        self._count += len(exchanges)

    def keep_read(self, exchange: Exchange) -> bool:
        """Keeps an exchange that is open and answered while there is room for its response; returns whether it does."""
        peer, size_bytes = exchange.peer, len(exchange.response)
        conversation = self.by_peer.get(peer)
        crowded = conversation is None or 2 * len(conversation.by_mid) > self.peer_max
        if crowded or not size_bytes or not self.lifetime_ms or 2 * len(self.by_peer) > self.peers_max:
            return False
        self._drop_read(peer, exchange.mid)
        mids = self._reads_of.setdefault(peer, deque())
        mids.append(exchange.mid)
        self._reads[peer, exchange.mid] = exchange
        self._read_bytes += size_bytes
        if len(mids) > READ_PEER_COUNT_MAX:
            self._drop_read(peer, mids[0])
        while len(self._reads) > READ_COUNT_MAX or self._read_bytes > READ_BYTES_MAX:
            self._drop_read(*next(iter(self._reads)))
        return True

    def _drop_read(self, peer: Peer, mid: int) -> None:
        exchange = self._reads.pop((peer, mid), None)
        if exchange is None:
            return
        mids = self._reads_of[peer]
        mids.remove(mid)
        if not mids:
            del self._reads_of[peer]
        self._read_bytes -= len(exchange.response)
        self.forget(exchange)

    def forget(self, exchange: Exchange) -> None:
        """Recognises an exchange no longer."""
        conversation = self.by_peer.get(exchange.peer)
        if conversation is not None and conversation.by_mid.get(exchange.mid) is exchange:
            del conversation.by_mid[exchange.mid]
            if not conversation.by_mid:
                del self.by_peer[exchange.peer]

    def expire(self, now_ms: int, at_least: int = 0) -> None:
        """Forgets exchanges whose lifetime is over, about `at_least` and two wakes of them, so that no call is long."""
        horizon = now_ms - self.lifetime_ms
        reads = self._reads
        while reads and (oldest := next(iter(reads.values()))).arrival_ms <= horizon:
            self._drop_read(oldest.peer, oldest.mid)
        wakes = self._wakes
        dropped = wakes_dropped = 0
        while wakes and wakes[0][0] <= horizon and (dropped < at_least or wakes_dropped < 2):
            _, exchanges = wakes.popleft()
            self._count -= len(exchanges)
            for exchange in exchanges:
                self.forget(exchange)
            dropped += len(exchanges)
            wakes_dropped += 1

    def deadline_ms(self) -> int | None:
        """Returns when `expire` should be called again."""
        first_ms = self._wakes[0][0] if self._wakes else None
        if self._reads:
            read_ms = next(iter(self._reads.values())).arrival_ms
            first_ms = read_ms if first_ms is None else min(first_ms, read_ms)
        return None if first_ms is None else first_ms + self.lifetime_ms + EXPIRY_SLACK_MS

    def _make_room(self, now_ms: int) -> None:
        """Gives up those that read, and from the oldest on those whose Message ID was used again or is sent no more."""
        while self._reads:
            self._drop_read(*next(iter(self._reads)))
        horizon = now_ms - min(MAX_TRANSMIT_SPAN_MS, self.lifetime_ms)
        given_up = 0
        while self._wakes and given_up < DROPPED_PER_TICK_MAX:
            arrival_ms, exchanges = self._wakes.popleft()
            self._count -= len(exchanges)
            if arrival_ms > horizon:
                kept = [exchange for exchange in exchanges if self._is_open(exchange)]
                if kept:
                    self._wakes.appendleft((arrival_ms, kept))
                    self._count += len(kept)
                    break
            else:
                for exchange in exchanges:
                    self.forget(exchange)
            given_up += len(exchanges)

    def _is_open(self, exchange: Exchange) -> bool:
        conversation = self.by_peer.get(exchange.peer)
        return conversation is not None and conversation.by_mid.get(exchange.mid) is exchange
