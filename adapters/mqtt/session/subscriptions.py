"""The subscriptions of one connection, and their combined effect on a delivery."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from adapters.mqtt.codec.packets import SubscriptionRequest
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.session_state import PositionTuple, SavedSubscription
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.filters import check_filter
from gateway.port.adapter import SubscriptionId
from gateway.port.shared import SharedName, shared_name

QOS_MAX = 2
_PLANS_MAX = 1_024  # combinations of overlapping subscriptions remembered per connection


class Subscription(NamedTuple):
    """A subscription with its options (MQTT 5.0, 3.8.3.1)."""

    sub: SubscriptionId
    pattern: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int | None = None
    ticket: int = 0  # of its newest wish for retained messages; 0: it has had none
    since: tuple[PositionTuple, ...] = ()  # where it began in each log, as far as that was asked
    shared: SharedName | None = None  # the name that it shares with others (4.8.2)


class DeliveryPlan(NamedTuple):
    """The way to deliver, once, a message that some subscriptions matched (3.3.4)."""

    qos: int  # the highest granted (MQTT-3.3.4-2)
    retain_as_published: bool = False
    identifiers: tuple[int, ...] = ()  # of every subscription that has one (MQTT-3.3.4-3)
    no_local: bool = False  # at least one of them wants no messages of this very client


class Subscriptions:
    """Subscriptions by filter and by id; of several to one filter, the newest options count (MQTT-3.8.4-3)."""

    __slots__ = ("_by_id", "_by_pattern", "_bytes", "_next", "_options", "_own", "_plans", "_ticket")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._by_pattern: dict[str, Subscription] = {}
        self._by_id: dict[SubscriptionId, Subscription] = {}
        self._plans: dict[tuple[SubscriptionId, ...], DeliveryPlan | None] = {}
        self._own: dict[tuple[SubscriptionId, ...], DeliveryPlan | None] = {}
        self._next = 1
        self._bytes = 0  # of all filters
        self._ticket = 0  # the newest

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_id.values())

    def get(self, sub: SubscriptionId) -> Subscription | None:
        """Returns a subscription by its id."""
        return self._by_id.get(sub)

    def refusal(self, request: SubscriptionRequest) -> ReasonCode | None:
        """Returns why a filter cannot be subscribed to; None when it can.

        Raises `ProtocolError` (0x82) for No Local on a shared subscription (MQTT-3.8.3-4).
        """
        pattern = request.pattern
        try:
            shared = shared_name(check_filter(pattern))
        except Refusal:
            return ReasonCode.TOPIC_FILTER_INVALID
        if shared is not None:
            if request.no_local:
                raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "No Local on a shared subscription")
            if not self._options.shared_subscriptions:
                return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        size = len(pattern.encode())
        if size > self._options.filter_bytes_max:
            return ReasonCode.QUOTA_EXCEEDED
        if pattern not in self._by_pattern:
            options = self._options
            if len(self._by_id) >= options.subscriptions_max or self._bytes + size > options.filters_bytes_max:
                return ReasonCode.QUOTA_EXCEEDED
        return None

    def put(self, request: SubscriptionRequest, identifier: int | None) -> tuple[Subscription, bool]:
        """Adds a subscription or replaces its options, and returns it with whether it is new."""
        old = self._by_pattern.get(request.pattern)
        if old is None:
            sub = SubscriptionId(self._next)
            self._next += 1
        else:
            sub = old.sub
        return self._keep(
            Subscription(
                sub,
                request.pattern,
                min(request.qos, QOS_MAX),
                request.no_local,
                request.retain_as_published,
                identifier,
                old.ticket if old is not None else 0,
                old.since if old is not None else (),
                shared_name(request.pattern),
            )
        ), old is None

    def draw_ticket(self, sub: SubscriptionId, *, above: int) -> int:
        """Returns the number of a subscription's wish for retained messages, higher than all others and `above`."""
        self._ticket = max(self._ticket, above) + 1
        self._keep(self._by_id[sub]._replace(ticket=self._ticket))
        return self._ticket

    def begun(self, subs: Iterable[SubscriptionId], since: tuple[PositionTuple, ...]) -> None:
        """Notes where subscriptions began; some of them may have ended meanwhile."""
        for sub in subs:
            if sub in self._by_id:
                self._keep(self._by_id[sub]._replace(since=since))

    def remove(self, pattern: str) -> Subscription | None:
        """Forgets a subscription; None when there was none."""
        found = self._by_pattern.pop(pattern, None)
        if found is not None:
            del self._by_id[found.sub]
            self._bytes -= len(pattern.encode())
            self._forget_plans()
        return found

    def restore(self, saved: Iterable[SavedSubscription]) -> None:
        """Restores the subscriptions of a session."""
        for one in saved:
            self._keep(Subscription(SubscriptionId(self._next), *_fields(one), shared_name(one.pattern)))
            self._next += 1
            self._ticket = max(self._ticket, one.ticket)

    def saved(self) -> tuple[SavedSubscription, ...]:
        """Returns the subscriptions as `restore` takes them."""
        return tuple(SavedSubscription(*one[1:8]) for one in self)  # not `sub`, nor fields derived from the pattern

    def plan(self, subs: tuple[SubscriptionId, ...]) -> DeliveryPlan | None:
        """Returns how to deliver a message that these subscriptions matched; None when none of them is left."""
        try:
            return self._plans[subs]
        except KeyError:
            return self._remember(self._plans, subs, [s for i in subs if (s := self._by_id.get(i)) is not None])

    def plan_for_own(self, subs: tuple[SubscriptionId, ...]) -> DeliveryPlan | None:
        """Returns the plan for a message of this very client: those with No Local do not count (MQTT-3.8.3-3)."""
        try:
            return self._own[subs]
        except KeyError:
            found = [s for i in subs if (s := self._by_id.get(i)) is not None and not s.no_local]
            return self._remember(self._own, subs, found)

    @staticmethod
    def _remember(
        plans: dict[tuple[SubscriptionId, ...], DeliveryPlan | None],
        subs: tuple[SubscriptionId, ...],
        found: list[Subscription],
    ) -> DeliveryPlan | None:
        plan = None
        if found:
            plan = DeliveryPlan(
                max(s.qos for s in found),
                any(s.retain_as_published for s in found),
                tuple(s.identifier for s in found if s.identifier is not None),
                any(s.no_local for s in found),
            )
        if len(plans) >= _PLANS_MAX:
            plans.clear()
        plans[subs] = plan
        return plan

    def _keep(self, subscription: Subscription) -> Subscription:
        if subscription.pattern not in self._by_pattern:
            self._bytes += len(subscription.pattern.encode())
        self._by_pattern[subscription.pattern] = subscription
        self._by_id[subscription.sub] = subscription
        self._forget_plans()
        return subscription

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._own.clear()


def _fields(saved: SavedSubscription) -> tuple[str, int, bool, bool, int | None, int, tuple[PositionTuple, ...]]:
    one = saved
    return one.pattern, one.qos, one.no_local, one.retain_as_published, one.identifier, one.ticket, one.since
