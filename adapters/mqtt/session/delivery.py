"""Deliveries: from the gateway's batches to PUBLISH packets, within the limits that the client has set."""

from collections.abc import Sequence

from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.messages.messages import publish_pieces, publisher_of
from adapters.mqtt.session.aliases import Aliased, Aliases
from adapters.mqtt.session.encoded import Encoded, Passing, size_bytes
from adapters.mqtt.session.inflight import Inflight
from adapters.mqtt.session.keeper import SessionKeeper
from adapters.mqtt.session.session_state import PositionTuple, positions
from adapters.mqtt.session.subscriptions import DeliveryPlan, Subscriptions
from gateway.domain.batch import Batch
from gateway.port.adapter import Deliveries, Settled, SubscriptionId
from store.api.message import Message

SETTLE_INTERVAL_MS = 1_000  # how long a durable session's progress at QoS 0 may go unreported

_PUBREL = b"\x62\x02"
_ENDED = DeliveryPlan(0)  # of a message whose subscriptions have all ended


def is_own(message: Message, context: ConnectionContext) -> bool:
    """Returns whether this very client published a message (MQTT 5.0, 3.8.3.1)."""
    return publisher_of(message) == context.client_id


class SessionDelivery:
    """Turns deliveries into output and reports their progress."""

    __slots__ = (
        "_context",
        "_inflight",
        "_keeper",
        "_reported",
        "_settle_at_ms",
        "_starved",
        "_subscriptions",
        "aliases",
    )

    def __init__(
        self, context: ConnectionContext, keeper: SessionKeeper, subscriptions: Subscriptions, inflight: Inflight
    ) -> None:
        self._context = context
        self._keeper = keeper
        self._subscriptions = subscriptions
        self._inflight = inflight
        self.aliases: Aliases | None = None  # for a client that takes some
        self._reported: tuple[PositionTuple, ...] = ()  # the oldest unacknowledged deliveries that the gateway knows of
        self._starved = False  # took less than was offered
        self._settle_at_ms: int | None = None

    # ---- live messages and those of the log

    def deliver(self, deliveries: Deliveries, now_ms: int) -> int:
        """Takes as many deliveries as the client has room for; returns how many."""
        batch, picks, subs = deliveries.batch, deliveries.picks, deliveries.subs
        if not picks:
            return 0
        taken = 0
        plan = self._subscriptions.plan(subs[0])
        if plan is not None and subs.count(subs[0]) == len(subs):
            encoded = Encoded.of(batch, plan, self._context.dialect, now_ms)
            if encoded is not None:
                if len(picks) == len(batch.messages):
                    encoded.make_all()
                if not plan.qos and not plan.no_local and self._inflight.resume is None and self.aliases is None:
                    taken = self._share(encoded, picks)
        taken = taken or self._each(batch, picks, subs, now_ms)
        if taken < len(picks):
            self._starved = True
        if taken:
            self._inflight.took((batch.frame, batch.rows[picks[taken - 1]] + 1))
            if self._context.durable:
                self._settle_soon(now_ms)
        return taken

    def decline(self) -> int:
        """Takes none of some deliveries; they are offered again when there is more room than now."""
        self._starved = True
        return 0

    def _share(self, encoded: Encoded, picks: Sequence[int]) -> int:
        """Sends QoS 0 to a subscriber whose messages all have one plan; returns 0 when a packet is too large for it.

        Hot: for a batch that goes to it as a whole, a subscriber costs one append of shared bytes.
        """
        pieces = encoded.pieces
        if len(picks) == len(pieces):
            packets = [encoded.join()]
        else:
            packets = [(pieces[pick] or encoded.make(pick))[1] for pick in picks]
        if encoded.largest > self._context.packet_bytes_max:
            return 0
        self._context.out += packets
        return len(picks)

    def _each(self, batch: Batch, picks: Sequence[int], subs: Sequence[tuple[SubscriptionId, ...]], now_ms: int) -> int:
        """Takes message by message: any QoS, any mixture of subscriptions. Returns how many were taken.

        Hot for QoS 1, hence one loop: encoded packets are shared, only the packet identifiers are the client's own.
        """
        context, inflight, plan_of = self._context, self._inflight, self._subscriptions.plan
        sent, rows, frame, messages = inflight.sent, batch.rows, batch.frame, batch.messages
        limit, send, room = context.packet_bytes_max, context.out.append, inflight.room
        take_id = inflight.ids().__next__
        last_plan: DeliveryPlan | None = None
        ended = None if inflight.resume is None else _ENDED  # messages in flight are completed (MQTT-3.10.4-3)
        encoded: Encoded | Aliased | Passing | None = None
        for count, pick in enumerate(picks):
            plan = plan_of(subs[count]) or ended
            if plan is not None and plan.no_local and is_own(messages[pick], context):
                plan = self._subscriptions.plan_for_own(subs[count])
            if plan is None or (plan is _ENDED and inflight.resume is None):
                continue
            if encoded is None or plan is not last_plan:
                encoded, last_plan = self._encoded(batch, plan, now_ms), plan
            qos, head, tail = piece = encoded.pieces[pick] or encoded.make(pick)
            if (not head and inflight.resume is None) or (encoded.largest > limit and size_bytes(piece) > limit):
                continue  # expired, or larger than the client takes (MQTT-3.1.2-25): done with
            if inflight.resume is not None:
                known = self._known((frame, rows[pick]), messages[pick], plan, now_ms)
                if known is None:
                    return count
                room = inflight.room
                if known or plan is _ENDED:
                    continue
            if not qos:
                send(head)
                continue
            if room <= 0:
                return count
            room -= 1
            packet_id = take_id()
            sent[packet_id] = (frame, rows[pick])
            if qos == 1:
                send(head)
                send(packet_id.to_bytes(2, "big"))
                send(tail)
            else:
                inflight.exact[packet_id] = None
                self._keeper.after_save(head + packet_id.to_bytes(2, "big") + tail)
        return len(picks)

    def _encoded(self, batch: Batch, plan: DeliveryPlan, now_ms: int) -> Encoded | Aliased | Passing:
        encoded = Encoded.of(batch, plan, self._context.dialect, now_ms)
        if encoded is None:
            return Passing(batch.messages, plan, self._context.dialect, now_ms)
        return encoded if self.aliases is None or self._inflight.resume is not None else self.aliases.over(encoded)

    def _known(self, place: PositionTuple, message: Message, plan: DeliveryPlan, now_ms: int) -> bool | None:
        """Deals with a place that an earlier connection of the session knew; False: it is a new one. None: no room."""
        inflight = self._inflight
        assert inflight.resume is not None
        if inflight.room_again <= 0:
            return None
        for gone in inflight.resume.overtaken(place):
            if gone.qos == 2:  # frees the identifier on the client's side, too
                inflight.released[gone.packet_id] = None
                self._context.out.append(_PUBREL + gone.packet_id.to_bytes(2, "big"))
        found = inflight.resume.recall(place)
        if inflight.resume.over(place):
            inflight.resume = None
        if found is None:
            return False
        # At QoS 2 a message that has been sent does not expire any more (MQTT-4.3.3-7).
        if not found.done and (found.qos == 2 or not message.expired(now_ms)):
            # Sent again with its identifier, QoS and DUP (MQTT-4.4.0-1), whatever the subscription says by now.
            exact = plan._replace(qos=found.qos)
            head, tail = publish_pieces(
                message,
                self._context.dialect,
                qos=found.qos,
                retain=exact.retain_as_published and message.retain,
                now_ms=now_ms,
                subscription_ids=exact.identifiers,
            )
            inflight.sent[found.packet_id] = place
            if found.qos == 2:
                inflight.exact[found.packet_id] = None
            self._context.out.append(bytes((head[0] | 8,)) + head[1:] + found.packet_id.to_bytes(2, "big") + tail)
        return True

    # ---- progress

    def _settle_soon(self, now_ms: int) -> None:
        """Makes a report due: at once for unacknowledged messages, before the gateway moves the session's cursor."""
        if self._inflight.oldest() != self._reported:
            self._settle_at_ms = now_ms
        elif self._settle_at_ms is None:
            self._settle_at_ms = now_ms + SETTLE_INTERVAL_MS

    def deadline_ms(self) -> int | None:
        """Returns when `report` is due although the client has sent nothing."""
        return self._settle_at_ms

    def report(self, now_ms: int) -> None:
        """Emits `Settled` when there is room again, or when a durable session has got on."""
        inflight = self._inflight
        fed = self._starved and inflight.freed and inflight.ready
        due = self._settle_at_ms is not None and now_ms >= self._settle_at_ms
        if fed or (self._context.durable and inflight.moved and (inflight.freed or due)):
            self._settle()
            self._starved = self._starved and not fed
        elif due:
            self._settle_at_ms = None
        inflight.freed = False

    def last_report(self) -> None:
        """Reports for the last time, whatever is due."""
        if self._context.durable and self._inflight.moved:
            self._settle()

    def _settle(self) -> None:
        inflight = self._inflight
        inflight.settled()
        self._reported = inflight.oldest()
        self._context.effects.append(Settled(oldest=positions(self._reported)))
        self._settle_at_ms, inflight.moved = None, False
