"""DTLS in front of an adapter of datagrams: it takes and gives records, and the adapter sees their content."""

from collections.abc import Sequence

from gateway.dtls.sessions import DtlsSessions
from gateway.port.adapter import Deliverable, Effect, Outcome, Peer, TimedAdapter, Token
from gateway.port.datagram import SecuredDatagramAdapter


class DtlsAdapter:
    """A `DatagramAdapter` whose peers have sessions."""

    def __init__(self, inner: SecuredDatagramAdapter, sessions: DtlsSessions) -> None:
        """Puts `sessions` in front of `inner`, which they tell of peers that join and leave."""
        self._inner = inner
        self._sessions = sessions
        self._set_ms = 0  # how far the clock was set since, which makes no session older or younger

    def clock_set(self, by_ms: int) -> None:
        """See `gateway.port.adapter.TimedAdapter`."""
        self._set_ms += by_ms
        if isinstance(self._inner, TimedAdapter):
            self._inner.clock_set(by_ms)

    def receive(self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int) -> Sequence[Effect]:
        """Takes records; the adapter is handed the plaintexts of one wake together."""
        plain: list[tuple[bytes, Peer]] = []
        for data, peer in datagrams:
            plain += [(one, peer) for one in self._sessions.receive(data, peer, now_ms - self._set_ms)]
        return self._inner.receive(plain, now_ms=now_ms) if plain or not datagrams else ()

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """See `DatagramAdapter`."""
        return self._inner.completed(token, outcome, now_ms=now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """See `DatagramAdapter`."""
        return self._inner.deliver(deliveries, now_ms=now_ms)

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """See `DatagramAdapter`."""
        self._sessions.tick(now_ms - self._set_ms)
        return self._inner.tick(now_ms=now_ms)

    def deadline_ms(self) -> int | None:
        """Returns the earlier of both deadlines."""
        due_ms = self._sessions.deadline_ms()
        deadlines = (None if due_ms is None else due_ms + self._set_ms, self._inner.deadline_ms())
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """Returns the records to send now."""
        for data, peer in self._inner.take_output():
            self._sessions.send(data, peer)
        output, self._sessions.output = self._sessions.output, []
        return output
