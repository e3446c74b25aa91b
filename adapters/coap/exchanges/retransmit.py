"""Confirmable messages of ours, sent again until they are acknowledged (RFC 7252, 4.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from adapters.coap.messages.settings import CoapOptions
from gateway.port.adapter import Peer, Random

JITTER_BITS = 16
HEAP_SLACK = 64


@dataclass(slots=True)
class _Pending:
    datagram: bytes
    timeout_ms: int
    due_ms: int
    sent_again: int = 0


class Retransmitter:
    """Messages in flight. The first timeout is ACK_TIMEOUT, stretched by chance; each further one is twice the last."""

    def __init__(self, settings: CoapOptions, *, pending_max: int, random: Random) -> None:
        self._ack_timeout_ms = settings.ack_timeout_ms
        self._spread_ms = int(settings.ack_timeout_ms * (settings.ack_random_factor - 1))
        self._max_retransmit = settings.max_retransmit
        self._pending_max = pending_max
        self._random = random
        self._pending: dict[tuple[Peer, int], _Pending] = {}
        self.given_up: list[tuple[Peer, int]] = []  # by the last call of `again`
        self._due: list[tuple[int, Peer, int]] = []  # a heap; entries that no longer agree with _pending are stale

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def full(self) -> bool:
        """Returns whether no more can be taken."""
        return len(self._pending) >= self._pending_max

    def add(self, peer: Peer, mid: int, datagram: bytes, now_ms: int) -> None:
        """Watches over a Confirmable message that is sent now for the first time."""
        assert not self.full
        jitter_ms = self._spread_ms * self._random.getrandbits(JITTER_BITS) >> JITTER_BITS
        timeout_ms = self._ack_timeout_ms + jitter_ms
        self._pending[peer, mid] = _Pending(datagram, timeout_ms, now_ms + timeout_ms)
        heappush(self._due, (now_ms + timeout_ms, peer, mid))
        if len(self._due) > 2 * len(self._pending) + HEAP_SLACK:
            self._due = [(pending.due_ms, *key) for key, pending in self._pending.items()]
            heapify(self._due)

    def settle(self, peer: Peer, mid: int) -> bool:
        """Notes that the peer has acknowledged or reset a message; returns whether it was one in flight."""
        return self._pending.pop((peer, mid), None) is not None

    def again(
        self, now_ms: int, renew: Callable[[Peer, int, bytes], tuple[int, bytes] | None] | None = None
    ) -> list[tuple[bytes, Peer]]:
        """Returns the datagrams to send again by now.

        After MAX_RETRANSMIT times and one more timeout a message is given up. `renew` may return the Message ID and the
        datagram that take the place of one, with its count of attempts, or settle one.
        """
        out: list[tuple[bytes, Peer]] = []
        self.given_up = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, peer, mid = heappop(self._due)
            pending = self._pending.get((peer, mid))
            if pending is None or pending.due_ms != due_ms:
                continue
            if pending.sent_again >= self._max_retransmit:
                del self._pending[peer, mid]
                self.given_up.append((peer, mid))
                continue
            fresh = None if renew is None else renew(peer, mid, pending.datagram)
            if (peer, mid) not in self._pending:
                continue
            if fresh is not None:
                del self._pending[peer, mid]
                mid, pending.datagram = fresh
                self._pending[peer, mid] = pending
            out.append((pending.datagram, peer))
            pending.sent_again += 1
            pending.timeout_ms *= 2
            pending.due_ms = now_ms + pending.timeout_ms
            heappush(self._due, (pending.due_ms, peer, mid))
        return out

    def deadline_ms(self) -> int | None:
        """Returns when `again` is due."""
        while self._due:
            due_ms, peer, mid = self._due[0]
            pending = self._pending.get((peer, mid))
            if pending is not None and pending.due_ms == due_ms:
                return due_ms
            heappop(self._due)
        return None
