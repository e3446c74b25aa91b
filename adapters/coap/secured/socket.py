"""One UDP socket whose peers have sessions below CoAP (DTLS), each let in as a principal."""

from collections.abc import Sequence

import msgspec

from adapters.coap.endpoint.endpoint import CoapEndpoint
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.messages.times import SocketTime
from adapters.coap.secured.endpoints import Endpoints, SecuredEndpoint
from gateway.domain.principal import Principal
from gateway.port.adapter import Deliverable, Deliveries, Effect, Outcome, Peer, Random, Token


class SecuredSocket:
    """The `SecuredDatagramAdapter` of CoAP. A session is an endpoint of its own (RFC 7252, 9.1.1)."""

    def __init__(self, settings: CoapOptions, time: SocketTime | None = None, *, random: Random) -> None:
        self._time = time
        self._settings = msgspec.structs.replace(settings, amplification_max=0)  # addresses are verified by cookies
        self._random = random
        self._endpoints = Endpoints(self._new_endpoint)
        self._sessions: dict[Peer, tuple[SecuredEndpoint, Peer]] = {}  # by address: its endpoint, and its name there
        self._next_session = 0
        self._effects: list[Effect] = []

    def _new_endpoint(self, who: Principal | None) -> CoapEndpoint:
        endpoint = CoapEndpoint(self._settings, random=self._random, time=self._time)
        if who is not None:
            endpoint.admit(who)
        return endpoint

    def joined(self, peer: Peer, who: Principal | None) -> None:
        """Lets a peer in that has a session; without a principal it is a stranger, and let in as such."""
        self.left(peer)
        self._next_session += 1
        endpoint = self._endpoints.plain if who is None else self._endpoints.of(who.name, who)
        endpoint.sessions_count += 1
        self._sessions[peer] = endpoint, (*peer, self._next_session)

    def left(self, peer: Peer) -> None:
        """Forgets a peer that has no session any more."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            endpoint, name = session
            endpoint.sessions_count -= 1
            endpoint.core.forget(name)
            self._effects += self._endpoints.take_effects(endpoint)

    def receive(self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int) -> Sequence[Effect]:
        """Takes datagrams that arrived together: each endpoint has its own at once."""
        shares: dict[str, tuple[SecuredEndpoint, list[tuple[bytes, Peer]]]] = {}
        for data, peer in datagrams:
            session = self._sessions.get(peer)
            if session is not None:
                endpoint, name = session
                shares.setdefault(endpoint.name, (endpoint, []))[1].append((data, name))
        for endpoint, own in shares.values():
            self._effects += self._endpoints.receive(endpoint, own, now_ms)
        return self._take_effects()

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of an effect."""
        self._effects += self._endpoints.completed(token, outcome, now_ms)
        return self._take_effects()

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Notifies observers."""
        return self._endpoints.deliver(deliveries, now_ms) if isinstance(deliveries, Deliveries) else 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Runs the timers that are due."""
        self._effects += self._endpoints.tick(now_ms)
        return self._take_effects()

    def deadline_ms(self) -> int | None:
        """Returns the earliest of all endpoints; at once where something is to be asked of the gateway."""
        return 0 if self._effects else self._endpoints.deadline_ms()

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """Returns the datagrams to send now, to peers that still have the session that they are for."""
        output, self._endpoints.output = self._endpoints.output, []
        found = [(data, name, self._sessions.get(name[:-1])) for _, data, name in output]
        return [(data, name[:-1]) for data, name, session in found if session is not None and session[1] == name]

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
