"""Retained messages for new subscriptions (MQTT 5.0, 3.3.1.3).

A durable session keeps the retained messages that it still has to get at QoS 1 and 2: which wishes are not fulfilled,
how far the one under way has come, and the messages sent and not acknowledged, for the log will not bring those again.
"""

from typing import NamedTuple

from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.messages.messages import publish_pieces
from adapters.mqtt.session.delivery import is_own
from adapters.mqtt.session.encoded import encode_message, size_bytes
from adapters.mqtt.session.inflight import Inflight, Kept
from adapters.mqtt.session.keeper import SessionKeeper
from adapters.mqtt.session.session_state import PacketExchanges, SavedDelivery, SavedFeed
from adapters.mqtt.session.subscriptions import DeliveryPlan, Subscriptions
from gateway.domain.keys import retained_key
from gateway.port.adapter import Deliveries, Outcome, SubscriptionId
from gateway.port.reads import Retained, RetainedPage
from store.api.message import Message, decode, encode

PAGE_COUNT_MAX = 1_000
PAGE_BYTES_MAX = 1 << 20  # of bodies, about; held for a client that does not read, and once more encoded
NEWER_BYTES_MAX = 64 << 10  # of topics with newer messages; then live messages wait until all retained ones are sent
KEPT_BYTES_MAX = 64 << 10  # in a durable session: sent and not acknowledged, besides one more message

_PUBREL = b"\x62\x02"


class _Feed:
    """The messages of one subscription on their way."""

    __slots__ = ("after", "last", "left", "messages", "page", "sub", "ticket")

    def __init__(self, sub: SubscriptionId, ticket: int, left: int) -> None:
        self.sub = sub
        self.ticket = ticket  # of the wish it fulfils
        self.left = left  # how many more it may bring
        self.page = ""  # where the last page begins, or the first one will
        self.last: str | None = None  # the address of the last message sent of it, None before the first
        self.after: str | None = ""  # where the next page begins; None: there is none
        self.messages: list[Message] = []  # of the last page, those still to be sent, the first one last

    def take(self, page: RetainedPage) -> None:
        """Takes the page that was asked for, without messages that an earlier connection has sent already."""
        self.after = page.after
        self.left -= len(page.messages)
        self.messages = list(reversed(page.messages))
        if self.last is not None:  # which need not be there any more
            sent = retained_key(self.last)
            self.messages = [message for message in self.messages if retained_key(message.address) > sent]
        if not self.messages:
            self.turn()

    def turn(self) -> None:
        """Goes on to the next page, as all of the last one is sent."""
        if self.after is not None:
            self.page, self.last = self.after, None

    @property
    def over(self) -> bool:
        """Returns whether all is sent."""
        return not self.messages and (self.after is None or self.left <= 0)


class _RetainedRequest(NamedTuple):
    """A subscription that wants retained messages. Wishes are fulfilled one after the other, in ticket order."""

    sub: SubscriptionId
    ticket: int


class RetainedFeed:
    """Asks for retained messages and sends them as the client has room.

    One filter at a time and one page of it: the next page is asked for when the last one has been sent and the shell
    has taken it, which it does not while the client reads too slowly.
    """

    __slots__ = (
        "_again_ms",
        "_awaiting",
        "_context",
        "_fed",
        "_feed",
        "_inflight",
        "_keeper",
        "_newer",
        "_newer_bytes",
        "_saved",
        "_subscriptions",
        "_wanted",
        "_written_at",
    )

    def __init__(
        self, context: ConnectionContext, keeper: SessionKeeper, subscriptions: Subscriptions, inflight: Inflight
    ) -> None:
        self._context = context
        self._keeper = keeper
        self._subscriptions = subscriptions
        self._inflight = inflight
        self._wanted: dict[SubscriptionId, int] = {}  # tickets, ascending; as many as there may be subscriptions
        self._fed = 0  # the wishes up to this ticket have been fulfilled
        self._feed: _Feed | None = None  # the wish that is being fulfilled
        self._saved: tuple[int, SavedFeed | None] = (0, None)  # `progress` when it was saved last
        self._awaiting = False  # a page has been asked for
        self._again_ms = 0  # no page is asked for before this time: the store gives none for now
        # Topics that brought a subscription a newer message, by its newest ticket then: the messages of a page are out
        # of date.
        self._newer: dict[tuple[SubscriptionId, str], int] = {}
        self._newer_bytes = 0  # of those topics
        self._written_at = -1  # `context.takes` when messages were sent last

    # ---- wishes

    def want(self, sub: SubscriptionId) -> None:
        """Sends the messages that match this subscription, behind those being sent already."""
        self._wanted.pop(sub, None)
        if not self._context.options.retained_max:
            return
        self._wanted[sub] = self._subscriptions.draw_ticket(sub, above=self._fed)

    def forget(self, sub: SubscriptionId) -> None:
        """Sends nothing more for a subscription that has ended (MQTT-3.10.4-2)."""
        self._wanted.pop(sub, None)
        if self._feed is not None and self._feed.sub == sub:
            self._feed = None

    def restore(self, state: PacketExchanges) -> None:
        """Continues where an earlier connection of the session has stopped."""
        self._fed = state.fed
        wishes = [
            _RetainedRequest(one.sub, one.ticket) for one in self._subscriptions if one.qos and one.ticket > state.fed
        ]
        for wish in sorted(wishes, key=lambda wish: wish.ticket):
            self._wanted[wish.sub] = wish.ticket
        saved = state.feed
        first = next(iter(self._wanted.items()), None)
        if saved is not None and first is not None and first[1] == saved.ticket:
            self._begin()
            assert self._feed is not None
            self._feed.page = self._feed.after = saved.after
            self._feed.last = saved.last
        self._saved = self.progress()

    def progress(self) -> tuple[int, SavedFeed | None]:
        """Returns the values of `PacketExchanges.fed` and `PacketExchanges.feed`."""
        feed = self._feed
        return self._fed, None if feed is None else SavedFeed(feed.ticket, feed.page, feed.last)

    def save(self) -> tuple[int, SavedFeed | None]:
        """Returns `progress`, which is about to be saved."""
        self._saved = self.progress()
        return self._saved

    @property
    def unsaved(self) -> bool:
        """Returns whether a later connection would begin further back than it has to."""
        return self._saved != self.progress()

    # ---- live messages meanwhile

    @property
    def active(self) -> bool:
        """Returns whether retained messages are still wanted: then `sent_live` is called with deliveries."""
        return self._feed is not None or bool(self._wanted)

    @property
    def holds(self) -> bool:
        """Returns whether live messages have to wait."""
        return self._newer_bytes >= NEWER_BYTES_MAX

    def sent_live(self, deliveries: Deliveries, taken: int) -> None:
        """Notes live messages that were sent: retained ones that they replace are skipped (MQTT-4.6.0-6)."""
        messages, feed, newer = deliveries.batch.messages, self._feed, self._newer
        for pick, subs in zip(deliveries.picks[:taken], deliveries.subs, strict=False):
            message = messages[pick]
            if not message.retain:
                continue
            for sub in subs:
                ticket = self._wanted.get(sub) or (feed.ticket if feed is not None and feed.sub == sub else 0)
                if ticket and newer.get((sub, message.address), 0) < ticket:
                    newer[sub, message.address] = ticket
                    self._newer_bytes += len(message.address)

    def _forget_newer(self) -> None:
        self._newer.clear()
        self._newer_bytes = 0
        self._inflight.freed = True  # deliveries that waited go on

    # ---- pages

    def deadline_ms(self) -> int | None:
        """Returns when `pump` would ask for a page; 0: at once."""
        feed = self._feed
        if (feed is None and not self._wanted) or self._awaiting or self._written_at == self._context.takes:
            return None
        return None if feed is not None and feed.messages else self._again_ms

    def pump(self, now_ms: int) -> None:
        """Sends while there is room, and asks for the next page, or the next filter's, when one is sent and taken."""
        if self._inflight.again:
            self._send_again(now_ms)
        feed = self._feed
        if feed is not None:
            if feed.messages:
                self._send(feed, now_ms)
            if feed.over and not self._awaiting:
                self._end(feed)
        due_ms = self.deadline_ms()
        if due_ms is not None and due_ms <= now_ms:
            self._ask()
        if self._newer and not self.active:
            self._forget_newer()

    def _begin(self) -> _Feed:
        sub, ticket = next(iter(self._wanted.items()))
        del self._wanted[sub]
        self._feed = _Feed(sub, ticket, self._context.options.retained_max)
        return self._feed

    def _end(self, feed: _Feed) -> None:
        self._feed, self._fed = None, feed.ticket
        if not self._wanted:  # else with the last of them: a repetition after a crash is no harm
            self._keeper.save_soon()

    def _ask(self) -> None:
        feed = self._feed or self._begin()
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
        self._context.call(request, lambda outcome, now_ms: self._found(feed, outcome, now_ms))

    def _found(self, feed: _Feed, outcome: Outcome, now_ms: int) -> None:
        """Takes a page; `pump` follows. A page that is refused for now is asked for again: it is no empty one."""
        self._awaiting, self._again_ms = False, 0
        if outcome.error is None:
            feed.take(outcome.value)
        elif outcome.error.retry_after_ms:
            self._again_ms = now_ms + outcome.error.retry_after_ms
        else:
            feed.after = None

    # ---- messages

    def _send(self, feed: _Feed, now_ms: int) -> None:
        messages, inflight, context = feed.messages, self._inflight, self._context
        plan: DeliveryPlan | None = self._subscriptions.plan((feed.sub,))
        assert plan is not None, "an ended subscription has no feed"
        while messages:
            message = messages[-1]
            qos, head, tail = piece = encode_message(message, plan, context.dialect, now_ms, retained=True)
            if qos and (inflight.again or inflight.room <= 0 or inflight.kept_bytes >= KEPT_BYTES_MAX):
                return
            messages.pop()
            feed.last = message.address
            own = plan.no_local and is_own(message, context)
            replaced = self._newer.get((feed.sub, message.address), 0) >= feed.ticket
            if not head or own or replaced or size_bytes(piece) > context.packet_bytes_max:
                continue
            self._written_at = context.takes
            if not qos:
                context.out.append(head)
                continue
            packet_id = next(inflight.ids())
            inflight.sent[packet_id] = None
            if inflight.durable:
                inflight.keep(packet_id, Kept(encode(message), plan.identifiers))
            packet = head + packet_id.to_bytes(2, "big") + tail
            if qos == 1:
                context.out.append(packet)
            else:
                inflight.exact[packet_id] = None
                self._keeper.after_save(packet)
        feed.turn()

    def _send_again(self, now_ms: int) -> None:
        """Sends again the messages that an earlier connection has sent without an acknowledgement (MQTT-4.4.0-1)."""
        inflight, context = self._inflight, self._context
        while inflight.again and inflight.room_again > 0:
            one = next(iter(inflight.again.values()))
            del inflight.again[one.packet_id]
            packet = self._packet(one, now_ms)
            if packet is not None:
                assert one.record is not None
                inflight.sent[one.packet_id] = None
                inflight.keep(one.packet_id, Kept(one.record, one.identifiers, one.retain))
                if one.qos == 2:
                    inflight.exact[one.packet_id] = None
                context.out.append(packet)
            elif one.qos == 2:  # frees the identifier on the client's side, too
                inflight.released[one.packet_id] = None
                context.out.append(_PUBREL + one.packet_id.to_bytes(2, "big"))

    def _packet(self, one: SavedDelivery, now_ms: int) -> bytes | None:
        """Returns the PUBLISH with DUP; None: it has expired, or the client may not read it, or takes none as large.

        At QoS 2 a message that has been sent does not expire any more (MQTT-4.3.3-7).
        """
        assert one.record is not None
        message = decode(one.record)
        if (one.qos == 1 and message.expired(now_ms)) or not self._context.permissions.reads(message.address):
            return None
        dialect, ids = self._context.dialect, one.identifiers
        head, tail = publish_pieces(
            message, dialect, qos=one.qos, retain=one.retain, now_ms=now_ms, subscription_ids=ids
        )
        packet = bytes((head[0] | 8,)) + head[1:] + one.packet_id.to_bytes(2, "big") + tail
        return packet if len(packet) <= self._context.packet_bytes_max else None
