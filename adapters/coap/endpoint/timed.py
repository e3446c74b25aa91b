"""Sockets of CoAP behind a clock that may be set: the time of their exchanges goes on as before."""

from collections.abc import Sequence

from adapters.coap.messages.times import SocketTime
from gateway.domain.principal import Principal
from gateway.port.adapter import Deliverable, Effect, Outcome, Peer, Token
from gateway.port.datagram import DatagramAdapter, SecuredDatagramAdapter


class TimedSocket:
    """A `DatagramAdapter` that calls another one by the time of exchanges, and is told when the clock is set.

    So a set clock makes no exchange older or younger, whatever holds it: a request that is new is never taken for a
    repeat, and no old one keeps its place.
    """

    def __init__(self, inner: DatagramAdapter, time: SocketTime) -> None:
        """Takes the adapter, and the times that it was made with."""
        self.inner = inner
        self._time = time

    def clock_set(self, by_ms: int) -> None:
        """See `gateway.port.adapter.TimedAdapter`."""
        self._time.clock_set(by_ms)

    def receive(self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int) -> Sequence[Effect]:
        """See `DatagramAdapter`."""
        return self.inner.receive(datagrams, now_ms=self._time.steady_ms(now_ms))

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """See `DatagramAdapter`."""
        return self.inner.completed(token, outcome, now_ms=self._time.steady_ms(now_ms))

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """See `DatagramAdapter`."""
        return self.inner.deliver(deliveries, now_ms=self._time.steady_ms(now_ms))

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """See `DatagramAdapter`."""
        return self.inner.tick(now_ms=self._time.steady_ms(now_ms))

    def deadline_ms(self) -> int | None:
        """See `DatagramAdapter`."""
        due_ms = self.inner.deadline_ms()
        return None if due_ms is None else self._time.wall_ms(due_ms)

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """See `DatagramAdapter`."""
        return self.inner.take_output()


class TimedSecuredSocket(TimedSocket):
    """The same of a `SecuredDatagramAdapter`."""

    inner: SecuredDatagramAdapter

    def __init__(self, inner: SecuredDatagramAdapter, time: SocketTime) -> None:
        """Takes the adapter, and the times that it was made with."""
        super().__init__(inner, time)

    def joined(self, peer: Peer, who: Principal | None) -> None:
        """See `SecuredDatagramAdapter`."""
        self.inner.joined(peer, who)

    def left(self, peer: Peer) -> None:
        """See `SecuredDatagramAdapter`."""
        self.inner.left(peer)
