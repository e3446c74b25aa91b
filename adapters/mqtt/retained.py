"""Retained messages for new subscriptions (MQTT 5.0, 3.3.1.3)."""

from collections.abc import Sequence

from adapters.mqtt.delivery import is_own
from adapters.mqtt.encoded import encode_message, size_bytes
from adapters.mqtt.inflight import Inflight
from adapters.mqtt.keeper import Keeper
from adapters.mqtt.link import Link
from adapters.mqtt.subscriptions import Plan, Subscriptions
from gateway.message import Message
from gateway.port import Outcome, Retained, SubscriptionId

__all__ = ["RetainedFeed"]


class RetainedFeed:
    """Asks for retained messages and sends them as the client has room.

    One filter at a time, so that no more than one answer of `retained_max` messages is held.
    """

    __slots__ = ("_busy", "_inflight", "_keeper", "_link", "_messages", "_plan", "_subscriptions", "_wanted")

    def __init__(self, link: Link, keeper: Keeper, subscriptions: Subscriptions, inflight: Inflight) -> None:
        self._link = link
        self._keeper = keeper
        self._subscriptions = subscriptions
        self._inflight = inflight
        self._wanted: dict[SubscriptionId, None] = {}  # each at most once, so as many as there may be subscriptions
        self._busy = False  # one filter's messages are awaited or being sent
        self._plan: Plan | None = None  # how they are sent
        self._messages: list[Message] = []  # still to be sent, the first one last

    def want(self, sub: SubscriptionId) -> None:
        """Send what matches this subscription."""
        self._wanted[sub] = None
        self._ask()

    def forget(self, sub: SubscriptionId) -> None:
        """The subscription has ended."""
        self._wanted.pop(sub, None)

    def _ask(self) -> None:
        if self._busy or not self._wanted:
            return
        sub = next(iter(self._wanted))
        del self._wanted[sub]
        subscription = self._subscriptions.get(sub)
        assert subscription is not None, "an ended subscription wants nothing"
        self._busy = True
        self._link.call(
            Retained(pattern=subscription.pattern, limit=self._link.options.retained_max),
            lambda outcome, now_ms: self._found(sub, outcome, now_ms),
        )

    def _found(self, sub: SubscriptionId, outcome: Outcome, now_ms: int) -> None:
        self._plan = self._subscriptions.plan((sub,))
        if outcome.error is None and self._plan is not None:
            found: Sequence[Message] = outcome.value
            self._messages = list(reversed(found))
        if self._messages:
            self.pump(now_ms)
        else:
            self._next()

    def pump(self, now_ms: int) -> None:
        """Send while there is room; when all is sent, go on with the next filter."""
        if self._messages:
            self._send(now_ms)
            if not self._messages:
                self._next()

    def _next(self) -> None:
        self._busy = False
        self._ask()

    def _send(self, now_ms: int) -> None:
        messages, plan, inflight, link = self._messages, self._plan, self._inflight, self._link
        assert plan is not None
        while messages:
            message = messages[-1]
            qos, head, tail = piece = encode_message(message, plan, link.dialect, now_ms, retained=True)
            if qos and inflight.room <= 0:
                return
            messages.pop()
            own = plan.no_local and is_own(message, link)
            if not head or own or size_bytes(piece) > link.packet_bytes_max:
                continue
            if not qos:
                link.out.append(head)
                continue
            packet_id = next(inflight.ids())
            inflight.sent[packet_id] = None
            packet = head + packet_id.to_bytes(2, "big") + tail
            if qos == 1:
                link.out.append(packet)
            else:
                inflight.exact[packet_id] = None
                self._keeper.after_save(packet)
