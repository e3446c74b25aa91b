"""The observed addresses and filters of one socket: their subscriptions, and when each is read again."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from adapters.coap.observe.observation import Observation, Observed
from adapters.coap.reading.reads import Observable
from gateway.port.adapter import Call, Effect, Subscribe, SubscriptionId, Token, Unsubscribe
from gateway.port.reads import LastValue, LastValues

CHECKS_PER_TICK_MAX = 256  # resources read again in one tick, so that no tick is long


class Checked(NamedTuple):
    """A resource that has been read again. `overtaken`: a message was delivered meanwhile."""

    observed: Observed
    overtaken: bool


class ObservedResources:
    """The resources that are observed. `effects` are the requests to the gateway, until `take_effects`."""

    def __init__(self, *, check_ms: int, new_token: Callable[[], Token]) -> None:
        self.effects: list[Effect] = []
        self._check_ms = check_ms
        self._new_token = new_token
        self._observed: dict[SubscriptionId, Observed] = {}
        self._by_observable: dict[Observable, Observed] = {}
        self._checks: deque[tuple[int, SubscriptionId]] = deque()  # by the time they are due
        self._checking: dict[Token, SubscriptionId] = {}
        self._last_sub = 0

    def get(self, sub: SubscriptionId) -> Observed | None:
        """Returns the resource of a subscription."""
        return self._observed.get(sub)

    def of(self, observable: Observable, now_ms: int) -> Observed:
        """Returns the resource that an observable names; subscribes to one that is not observed yet."""
        known = self._by_observable.get(observable)
        if known is not None:
            return known
        self._last_sub += 1
        sub = SubscriptionId(self._last_sub)
        observed = self._observed[sub] = self._by_observable[observable] = Observed(sub, observable)
        self.effects.append(Subscribe(sub=sub, pattern=observable.pattern))
        self._checks.append((now_ms + self._check_ms, sub))
        return observed

    def remove(self, observation: Observation) -> None:
        """Removes an observation; a resource that nobody observes is unsubscribed from."""
        observed = self._observed[observation.sub]
        del observed.observations[observation.peer, observation.token]
        if observed.observations:
            return
        del self._observed[observed.sub], self._by_observable[observed.observable]
        if observed.check is not None:
            del self._checking[observed.check[0]]
        self.effects.append(Unsubscribe(sub=observed.sub))

    def begin_checks(self, now_ms: int) -> None:
        """Asks for the resources that are due to be read again."""
        checks = self._checks
        for _ in range(CHECKS_PER_TICK_MAX):
            if not checks or checks[0][0] > now_ms:
                break
            _, sub = checks.popleft()
            observed = self._observed.get(sub)
            if observed is None:
                continue
            checks.append((now_ms + self._check_ms, sub))
            if observed.check is None:
                token = self._new_token()
                self._checking[token] = sub
                observed.check = (token, observed.version)
                self.effects.append(Call(request=_check_of(observed.observable), token=token))

    def checked(self, token: Token) -> Checked | None:
        """Takes the token of an answer; returns the resource that was read, None for a token of something else."""
        sub = self._checking.pop(token, None)
        if sub is None:
            return None
        observed = self._observed[sub]
        assert observed.check is not None
        version, observed.check = observed.check[1], None
        return Checked(observed, version != observed.version)

    def deadline_ms(self) -> int | None:
        """Returns when `begin_checks` is due."""
        while self._checks and self._checks[0][1] not in self._observed:
            self._checks.popleft()
        return self._checks[0][0] if self._checks else None

    def take_effects(self) -> list[Effect]:
        """Returns the requests to the gateway now."""
        if not self.effects:
            return []
        effects, self.effects = self.effects, []
        return effects


def _check_of(observable: Observable) -> LastValue | LastValues:
    """Returns the request that tells whether an observable may still be read, and the value of an address."""
    if observable.many:
        return LastValues(pattern=observable.pattern, limit=1)
    return LastValue(address=observable.pattern)
