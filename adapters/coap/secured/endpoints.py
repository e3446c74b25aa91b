"""The endpoints of one socket: that of peers without a security layer, and one for each principal behind it.

An endpoint behind a security layer sees peers of its own, and never another's. Its effects are its principal's. An
endpoint that holds nothing any more, and that no session has, is given up.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from adapters.coap.endpoint.endpoint import CoapEndpoint
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Call,
    Deliveries,
    Effect,
    Outcome,
    Peer,
    Publish,
    Subscribe,
    SubscriptionId,
    Token,
    Unsubscribe,
)

PLAIN = ""  # the name of the endpoint of peers without a security layer
IDLE_ENDPOINTS_MAX = 256  # endpoints that hold nothing are looked for when there are so many more than before


class _Owner(NamedTuple):
    """The endpoint that a token or a subscription belongs to, and the endpoint's own name for it."""

    endpoint: "SecuredEndpoint"
    number: int


class SecuredEndpoint:
    """One endpoint, and the principal behind it; None: as the socket's peers are."""

    __slots__ = ("core", "due_ms", "name", "sessions_count", "subs", "who")

    def __init__(self, name: str, core: CoapEndpoint, who: Principal | None) -> None:
        self.name = name
        self.core = core
        self.who = who
        self.sessions_count = 0  # sessions that have this endpoint: it is theirs until they end
        self.due_ms: int | None = None  # the deadline that the heap has
        self.subs: dict[int, SubscriptionId] = {}  # by its own number, that of the socket


class Endpoints:
    """Translates between the gateway, which knows one socket, and the endpoints. `output` has their datagrams."""

    def __init__(self, make: Callable[[Principal | None], CoapEndpoint]) -> None:
        self._make = make
        self._endpoints: dict[str, SecuredEndpoint] = {}
        self._tokens: dict[Token, _Owner] = {}
        self._subs: dict[SubscriptionId, _Owner] = {}
        self._next_token = self._next_sub = 0
        self._due: list[tuple[int, str]] = []  # a heap; entries that no longer agree with `due_ms` are stale
        self._swept_count = 0  # endpoints left by the last sweep
        self.output: list[tuple[SecuredEndpoint, bytes, Peer]] = []
        self.plain = self.of(PLAIN, None)

    def __len__(self) -> int:
        return len(self._endpoints)

    def of(self, name: str, who: Principal | None) -> SecuredEndpoint:
        """Returns the endpoint of a principal, made where there is none."""
        found = self._endpoints.get(name)
        if found is None:
            if len(self._endpoints) >= self._swept_count + IDLE_ENDPOINTS_MAX:
                self._sweep()
            found = self._endpoints[name] = SecuredEndpoint(name, self._make(who), who)
        elif who is not found.who:
            found.who = who
            if who is not None:
                found.core.admit(who)
        return found

    def new_token(self) -> Token:
        """Returns a token for an effect of the security layer itself."""
        self._next_token += 1
        return Token(self._next_token)

    # ---- the port, of one endpoint or of all

    def receive(
        self, endpoint: SecuredEndpoint, datagrams: Sequence[tuple[bytes, Peer]], now_ms: int
    ) -> Sequence[Effect]:
        """Hands datagrams to an endpoint."""
        return self._done(endpoint, endpoint.core.receive(datagrams, now_ms=now_ms))

    def completed(self, token: Token, outcome: Outcome, now_ms: int) -> Sequence[Effect]:
        """Tells the endpoint whose effect it was how it ended."""
        owner = self._tokens.pop(token, None)
        if owner is None:
            return ()
        endpoint = owner.endpoint
        return self._done(endpoint, endpoint.core.completed(Token(owner.number), outcome, now_ms=now_ms))

    def deliver(self, deliveries: Deliveries, now_ms: int) -> int:
        """Hands deliveries to the endpoints whose subscriptions matched; takes all."""
        shares: dict[str, tuple[SecuredEndpoint, list[int], list[tuple[SubscriptionId, ...]]]] = {}
        for pick, subs in zip(deliveries.picks, deliveries.subs, strict=True):
            matched: dict[str, list[SubscriptionId]] = {}
            for sub in subs:
                owner = self._subs.get(sub)
                if owner is not None:
                    matched.setdefault(owner.endpoint.name, []).append(SubscriptionId(owner.number))
                    shares.setdefault(owner.endpoint.name, (owner.endpoint, [], []))
            for name, own in matched.items():
                _, picks, all_subs = shares[name]
                picks.append(pick)
                all_subs.append(tuple(own))
        for endpoint, picks, all_subs in shares.values():
            endpoint.core.deliver(Deliveries(deliveries.batch, picks, all_subs), now_ms=now_ms)
            self.collect(endpoint)
        return len(deliveries.picks)

    def tick(self, now_ms: int) -> list[Effect]:
        """Ticks the endpoints whose deadline has come."""
        effects: list[Effect] = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, name = heappop(self._due)
            endpoint = self._endpoints.get(name)
            if endpoint is not None and endpoint.due_ms == due_ms:
                endpoint.due_ms = None
                effects += self._done(endpoint, endpoint.core.tick(now_ms=now_ms), at_least_ms=now_ms + 1)
        return effects

    def deadline_ms(self) -> int | None:
        """Returns the earliest deadline of all."""
        while self._due:
            due_ms, name = self._due[0]
            endpoint = self._endpoints.get(name)
            if endpoint is not None and endpoint.due_ms == due_ms:
                return due_ms
            heappop(self._due)
        return None

    def arm(self, endpoint: SecuredEndpoint, at_least_ms: int = 0) -> None:
        """Looks at an endpoint's deadline."""
        deadline = endpoint.core.deadline_ms()
        if deadline is None or (endpoint.due_ms is not None and endpoint.due_ms <= deadline):
            return
        endpoint.due_ms = max(deadline, at_least_ms)
        heappush(self._due, (endpoint.due_ms, endpoint.name))

    def collect(self, endpoint: SecuredEndpoint, at_least_ms: int = 0) -> None:
        """Takes an endpoint's datagrams."""
        self.output += [(endpoint, data, peer) for data, peer in endpoint.core.take_output()]
        self.arm(endpoint, at_least_ms)

    def take_effects(self, endpoint: SecuredEndpoint) -> Sequence[Effect]:
        """Returns the effects of an endpoint that do not come of an input."""
        return self._done(endpoint, endpoint.core.observers.take_effects())

    # ---- inside

    def _done(self, endpoint: SecuredEndpoint, effects: Sequence[Effect], at_least_ms: int = 0) -> Sequence[Effect]:
        """Takes an endpoint's datagrams, and translates its effects for the gateway."""
        self.collect(endpoint, at_least_ms)
        return [self._translated(endpoint, effect) for effect in effects] if effects else ()

    def _translated(self, endpoint: SecuredEndpoint, effect: Effect) -> Effect:
        replace = msgspec.structs.replace
        if isinstance(effect, Publish | Call):
            token = self.new_token()
            self._tokens[token] = _Owner(endpoint, effect.token)
            return replace(effect, token=token, who=endpoint.who)
        if isinstance(effect, Subscribe):
            self._next_sub += 1
            sub = SubscriptionId(self._next_sub)
            self._subs[sub] = _Owner(endpoint, effect.sub)
            endpoint.subs[effect.sub] = sub
            return replace(effect, sub=sub, who=endpoint.who)
        assert isinstance(effect, Unsubscribe)
        sub = endpoint.subs.pop(effect.sub)
        del self._subs[sub]
        return replace(effect, sub=sub)

    def _sweep(self) -> None:
        """Gives up the endpoints that hold nothing, and that no session has."""
        waiting = {owner.endpoint.name for owner in self._tokens.values()}
        for name, endpoint in list(self._endpoints.items()):
            if name != PLAIN and not endpoint.sessions_count and name not in waiting and endpoint.core.idle:
                del self._endpoints[name]
        self._swept_count = len(self._endpoints)
