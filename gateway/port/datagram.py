"""The port of protocols over UDP: one adapter for all exchanges of a socket, whatever its peers."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gateway.domain.principal import Principal
from gateway.port.adapter import Deliverable, Effect, Outcome, Peer, Random, Token


class DatagramAdapter(Protocol):
    """All exchanges of one UDP socket. The methods that it shares with `gateway.port.adapter.Adapter` mean the same."""

    def receive(self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int) -> Sequence[Effect]:
        """Takes datagrams that arrived together."""

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of one of this adapter's effects."""

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Returns how many of the deliveries it took."""

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Runs the timers due: `deadline_ms` has come."""

    def deadline_ms(self) -> int | None:
        """Returns when to call `tick` next."""

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """Returns the datagrams to send now."""


class SecuredDatagramAdapter(DatagramAdapter, Protocol):
    """One whose peers have sessions below it (DTLS). Datagrams are of peers that have joined."""

    def joined(self, peer: Peer, who: Principal | None) -> None:
        """Lets a peer in that has a session, as a principal; None: it has proven nothing."""

    def left(self, peer: Peer) -> None:
        """Ends the observations of a peer whose session is over."""


@runtime_checkable
class DatagramFactory(Protocol):
    """A factory of listeners for datagrams."""

    def bind(self, options: Any, *, random: Random) -> DatagramAdapter:
        """Returns the state machine of a new datagram socket."""


@runtime_checkable
class SecuredDatagramFactory(Protocol):
    """A factory whose protocol goes over DTLS."""

    def bind_secured(self, options: Any, *, random: Random) -> SecuredDatagramAdapter:
        """Returns the state machine of a new socket with DTLS."""
