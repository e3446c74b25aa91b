"""Retained messages for new subscriptions (MQTT 5.0, 3.3.1.3)."""

from adapters.mqtt.delivery import is_own
from adapters.mqtt.encoded import encode_message, size_bytes
from adapters.mqtt.inflight import Inflight
from adapters.mqtt.keeper import Keeper
from adapters.mqtt.link import Link
from adapters.mqtt.subscriptions import Plan, Subscriptions
from gateway.message import Message
from gateway.port import Outcome, Retained, RetainedPage, SubscriptionId

__all__ = ["PAGE_BYTES_MAX", "PAGE_COUNT_MAX", "RetainedFeed"]

PAGE_COUNT_MAX = 1_000
PAGE_BYTES_MAX = 1 << 20  # of bodies, about; what a client that does not read makes us hold, and once more encoded


class _Feed:
    """One filter's messages on their way."""

    __slots__ = ("after", "left", "messages", "sub")

    def __init__(self, sub: SubscriptionId, left: int) -> None:
        self.sub = sub
        self.left = left  # how many more it may bring
        self.after: str | None = ""  # where the next page begins; None: there is none
        self.messages: list[Message] = []  # of the last page, those still to be sent, the first one last

    @property
    def over(self) -> bool:
        """Whether all is sent."""
        return not self.messages and (self.after is None or self.left <= 0)


class RetainedFeed:
    """Asks for retained messages and sends them as the client has room.

    One filter at a time and one page of it: the next page is asked for when the last one has been sent and the shell
    has taken it, which it does not while the client reads too slowly.
    """

    __slots__ = ("_awaiting", "_feed", "_inflight", "_keeper", "_link", "_subscriptions", "_wanted", "_written_at")

    def __init__(self, link: Link, keeper: Keeper, subscriptions: Subscriptions, inflight: Inflight) -> None:
        self._link = link
        self._keeper = keeper
        self._subscriptions = subscriptions
        self._inflight = inflight
        self._wanted: dict[SubscriptionId, None] = {}  # each at most once, so as many as there may be subscriptions
        self._feed: _Feed | None = None  # of the filter that is being served
        self._awaiting = False  # a page has been asked for
        self._written_at = -1  # `link.takes` when messages were sent last

    def want(self, sub: SubscriptionId) -> None:
        """Send what matches this subscription, behind what is being sent already."""
        self._wanted[sub] = None

    def forget(self, sub: SubscriptionId) -> None:
        """The subscription has ended: nothing more is sent for it (MQTT-3.10.4-2)."""
        self._wanted.pop(sub, None)
        if self._feed is not None and self._feed.sub == sub:
            self._feed = None

    @property
    def due(self) -> bool:
        """Whether `pump` would ask for a page."""
        feed = self._feed
        if feed is None and not self._wanted:
            return False
        return not self._awaiting and (feed is None or not feed.messages) and self._written_at != self._link.takes

    def pump(self, now_ms: int) -> None:
        """Send while there is room; when a page is sent and taken, ask for the next, or for the next filter's."""
        feed = self._feed
        if feed is not None:
            if feed.messages:
                self._send(feed, now_ms)
            if feed.over and not self._awaiting:
                self._feed = None
        if self.due:
            self._ask()

    def _ask(self) -> None:
        feed = self._feed
        if feed is None:
            sub = next(iter(self._wanted))
            del self._wanted[sub]
            feed = self._feed = _Feed(sub, self._link.options.retained_max)
        subscription = self._subscriptions.get(feed.sub)
        assert subscription is not None, "an ended subscription wants nothing"
        assert feed.after is not None, "a feed that is over is forgotten"
        request = Retained(
            pattern=subscription.pattern,
            limit=min(PAGE_COUNT_MAX, feed.left),
            max_bytes=PAGE_BYTES_MAX,
            after=feed.after,
        )
        self._awaiting = True
        self._link.call(request, lambda outcome, _now_ms: self._found(feed, outcome))

    def _found(self, feed: _Feed, outcome: Outcome) -> None:
        """A page; `pump` follows."""
        self._awaiting = False
        if outcome.error is not None:
            feed.after = None
            return
        page: RetainedPage = outcome.value
        feed.after = page.after
        feed.left -= len(page.messages)
        feed.messages = list(reversed(page.messages))

    def _send(self, feed: _Feed, now_ms: int) -> None:
        messages, inflight, link = feed.messages, self._inflight, self._link
        plan: Plan | None = self._subscriptions.plan((feed.sub,))
        assert plan is not None, "an ended subscription has no feed"
        while messages:
            message = messages[-1]
            qos, head, tail = piece = encode_message(message, plan, link.dialect, now_ms, retained=True)
            if qos and inflight.room <= 0:
                return
            messages.pop()
            own = plan.no_local and is_own(message, link)
            if not head or own or size_bytes(piece) > link.packet_bytes_max:
                continue
            self._written_at = link.takes
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
