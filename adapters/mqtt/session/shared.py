"""Shared subscriptions: messages that the gateway leases to this client, and not to the others (MQTT 5.0, 4.8.2).

A message leased at QoS 1 is settled by its PUBACK; when the connection ends before, another member gets it. A QoS 2
message is this session's own from its first PUBLISH on (MQTT-4.8.2-4, MQTT-4.8.2-5): it is saved in the session, then
settled and sent, and a later connection of the session completes it. Should the gateway die between the two, it is
leased once more: if to this session, `claimed` says that it has it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.session.encoded import Encoded, size_bytes
from adapters.mqtt.session.inflight import Inflight, Kept, LeasedOffset
from adapters.mqtt.session.keeper import SessionKeeper
from adapters.mqtt.session.session_state import PacketExchanges
from adapters.mqtt.session.subscriptions import DeliveryPlan, Subscription, Subscriptions
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.port.adapter import (
    Cancel,
    Consume,
    ConsumerCancelled,
    ConsumerId,
    Disposition,
    Leased,
    Outcome,
    Ready,
    SettleLeased,
    SubscriptionId,
)
from gateway.port.shared import JoinShared, LeaveShared, SharedName
from store.api.message import encode
from store.format.frame import QueueOffset

REJOIN_INTERVAL_MS = 1_000  # between two attempts to join again
DENIED_INTERVAL_MS = 10_000  # the same, of a session that has lost the right to read its shared filter
CHANGES_COUNT_MAX = 1_024  # SUBSCRIBE and UNSUBSCRIBE packets whose answers wait
OFFERS_COUNT_MAX = 16  # of a message too large for a client before it is given up (MQTT-3.1.2-25)
CLAIMED_COUNT_MAX = 1_024  # remembered after a crash of the gateway
KEPT_BYTES_MAX = 64 << 10  # of QoS 2 messages in a durable session: sent and not acknowledged, besides one more message

Refused = Mapping[str, Refusal]  # by topic filter


class _Member:
    """A shared subscription of this connection."""

    __slots__ = ("consumer", "credit", "pattern", "queue", "refused", "settles", "shared", "starved", "sub")

    def __init__(self, subscription: Subscription) -> None:
        assert subscription.shared is not None
        self.sub: SubscriptionId = subscription.sub
        self.pattern = subscription.pattern
        self.shared: SharedName = subscription.shared
        self.queue = ""  # "" until it has joined
        self.consumer: ConsumerId | None = None  # None: nothing is leased to it
        self.settles = False  # by being delivered: all is QoS 0
        self.credit = 0  # messages that the gateway may still lease, as far as it was told
        self.starved = False  # took less than was offered
        self.refused: Refusal | None = None  # why it is no member after all


class SharedFeed:
    """Joins and leaves, one change after the other; takes leased messages and settles them."""

    __slots__ = (
        "_by_consumer",
        "_changes",
        "_changing",
        "_claimed",
        "_context",
        "_due",
        "_held_back",
        "_inflight",
        "_keeper",
        "_members",
        "_next_consumer",
        "_rejoin_at_ms",
        "_subscriptions",
        "_unsaved",
        "_wanted",
        "revoked",
    )

    def __init__(
        self, context: ConnectionContext, keeper: SessionKeeper, subscriptions: Subscriptions, inflight: Inflight
    ) -> None:
        self._context = context
        self._keeper = keeper
        self._subscriptions = subscriptions
        self._inflight = inflight
        self._members: dict[SubscriptionId, _Member] = {}
        self._by_consumer: dict[ConsumerId, _Member] = {}
        self._next_consumer = 0
        self._wanted: list[_Member] = []  # by the SUBSCRIBE that is being read
        # To be made, each when the one before has been. No deque, as an empty one takes 760 bytes.
        self._changes: list[Callable[[], None]] = []
        self._changing = False
        self._rejoin_at_ms: int | None = None
        self._due = False  # there are effects of a delivery, or credit was spent on messages that take no room
        self._held_back = False  # until the messages sent by an earlier connection are sent again
        self._claimed: dict[tuple[int, int], None] = {}  # by queue and offset, saved as ours and perhaps not settled
        self._unsaved: dict[int, tuple[int, int]] = {}  # packet identifiers of those that are not saved
        self.revoked = False  # a member lost its right: the client is to be told

    # ---- joining and leaving

    def want(self, subscription: Subscription) -> None:
        """Notes that a SUBSCRIBE names a shared subscription; `join` follows."""
        member = self._members.get(subscription.sub)
        if member is None:
            member = self._members[subscription.sub] = _Member(subscription)
        self._wanted.append(member)

    @property
    def wanted(self) -> bool:
        """Returns whether `join` has anything to do."""
        return bool(self._wanted)

    def join(self, answer: Callable[[Refused], None]) -> None:
        """Joins the wanted subscriptions, once they are durable in the session; then `answer` says which were refused.

        In this order, so that no membership is forgotten: a session that knows of a subscription joins it again.
        """
        wanted, self._wanted = self._wanted, []

        def saved() -> None:
            self._ask_to_join(wanted, answer)

        self._change(lambda: self._keeper.then(saved, state=True))

    def leave(self, gone: Sequence[Subscription], answer: Callable[[bool], None]) -> None:
        """Leaves; then `answer` says whether that was done."""
        names = []
        for subscription in gone:
            member = self._members.pop(subscription.sub, None)
            if member is not None:
                self._stop(member)
                names.append(member.shared)

        def left(outcome: Outcome, _now_ms: int) -> None:
            answer(outcome.error is None)
            self._changed()

        self._change(lambda: self._context.call(LeaveShared(names=tuple(names)), left))

    def restore(self, state: PacketExchanges) -> None:
        """Joins again the subscriptions of an earlier connection of the session."""
        self._claimed = dict.fromkeys(state.claimed)
        for one in self._subscriptions:
            if one.shared is not None:
                self._members[one.sub] = _Member(one)
        if self._members:
            self._rejoin()

    def claimed(self) -> tuple[tuple[int, int], ...]:
        """Returns the claims for `PacketExchanges`."""
        return tuple(self._claimed)[-CLAIMED_COUNT_MAX:]

    def _rejoin(self) -> None:
        self._rejoin_at_ms = None
        self._change(lambda: self._ask_to_join([m for m in self._members.values() if m.consumer is None], None))

    def _change(self, change: Callable[[], None]) -> None:
        if len(self._changes) >= CHANGES_COUNT_MAX:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{CHANGES_COUNT_MAX} changes of subscriptions are waiting")
        self._changes.append(change)
        if not self._changing:
            self._changed()

    def _changed(self) -> None:
        """Makes the next change, as one has been made."""
        self._changing = bool(self._changes)
        if self._changes:
            self._changes.pop(0)()

    def _ask_to_join(self, members: Sequence[_Member], answer: Callable[[Refused], None] | None) -> None:
        there = [m for m in dict.fromkeys(members) if self._members.get(m.sub) is m]
        new = [m for m in there if not m.queue]

        def joined(outcome: Outcome, now_ms: int) -> None:
            answers = outcome.value if outcome.error is None else [outcome.error] * len(new)
            for member, said in zip(new, answers, strict=True):
                if isinstance(said, str):
                    member.queue = said
                elif answer is None:
                    denied = said.cause is Cause.FORBIDDEN
                    self._lost(member, now_ms, DENIED_INTERVAL_MS if denied else REJOIN_INTERVAL_MS)
                else:
                    member.refused = said
                    if self._members.get(member.sub) is member:  # else it has been left, and perhaps wanted again
                        del self._members[member.sub]
                        self._subscriptions.remove(member.pattern)
            self._joined(there)
            if answer is not None:
                answer({m.pattern: m.refused for m in members if m.refused is not None})
            self._changed()

        if new:
            self._context.call(JoinShared(names=tuple([m.shared for m in new])), joined)
        else:
            joined(Outcome(value=()), 0)

    def _joined(self, members: Sequence[_Member]) -> None:
        for member in members:
            if member.queue and self._members.get(member.sub) is member:
                self._consume(member)

    # ---- leased messages

    def _consume(self, member: _Member) -> None:
        """Asks for messages, anew if a member of QoS 0 has changed to QoS 1 or 2, or the other way round."""
        plan = self._subscriptions.plan((member.sub,))
        assert plan is not None, "a member has a subscription"
        settles = not plan.qos
        if member.consumer is not None:
            if member.settles is settles:
                return
            self._stop(member)
        self._next_consumer += 1
        consumer = member.consumer = ConsumerId(self._next_consumer)
        self._by_consumer[consumer] = member
        member.settles, member.starved = settles, False
        member.credit = max(0, self._inflight.room)
        self._context.effects.append(
            Consume(
                consumer=consumer,
                queue=member.queue,
                token=self._context.expect(partial(self._begun, consumer)),
                settle_on_delivery=settles,
                credit=None if settles else member.credit,
            )
        )

    def _begun(self, consumer: ConsumerId, outcome: Outcome, now_ms: int) -> None:
        member = self._by_consumer.get(consumer)
        if member is None:  # stopped before it had begun
            self._context.effects.append(Cancel(consumer=consumer))
        elif outcome.error is not None:
            self._lost(member, now_ms)

    def _stop(self, member: _Member) -> None:
        if member.consumer is not None:
            self._context.effects.append(Cancel(consumer=member.consumer))
            del self._by_consumer[member.consumer]
            member.consumer = None

    def _lost(self, member: _Member, now_ms: int, after_ms: int = REJOIN_INTERVAL_MS) -> None:
        """Ends a member's consumer, and has it join again later."""
        if member.consumer is not None:
            self._by_consumer.pop(member.consumer, None)
            self._context.effects.append(Cancel(consumer=member.consumer))
        member.consumer, member.queue = None, ""
        at_ms = now_ms + after_ms
        self._rejoin_at_ms = at_ms if self._rejoin_at_ms is None else min(self._rejoin_at_ms, at_ms)

    def deliver(self, leased: Leased | ConsumerCancelled, now_ms: int) -> int:
        """Takes as many messages as the client has room for; returns how many."""
        member = self._by_consumer.get(leased.consumer)
        plan = None if member is None else self._subscriptions.plan((member.sub,))
        if isinstance(leased, ConsumerCancelled):
            if member is not None:
                self._lost(member, now_ms)
                self.revoked = self.revoked or leased.denied
            return 0
        if member is None or plan is None:
            return 0
        if self._inflight.again:
            self._held_back = member.starved = True
            return 0
        if member.settles and plan.qos:  # wanted at a higher QoS from now on, and still leased
            plan = plan._replace(qos=0)
        encoded = Encoded(leased.messages, plan, self._context.dialect, now_ms)
        encoded.make_all()
        if member.settles and not self._claimed and encoded.largest <= self._context.packet_bytes_max:
            self._context.out.append(encoded.join())
            return len(leased.messages)
        taken = self._each(member, leased, encoded, plan)
        member.starved = taken < len(leased.messages)
        member.credit -= taken
        return taken

    def _each(self, member: _Member, leased: Leased, encoded: Encoded, plan: DeliveryPlan) -> int:
        """Takes message by message; returns how many were taken. Hot for QoS 1, hence one loop."""
        context, inflight, number, queue, claimed = (
            self._context,
            self._inflight,
            leased.number,
            member.queue,
            self._claimed,
        )
        sent, under_way, send, limit = inflight.sent, inflight.leased, context.out.append, context.packet_bytes_max
        take_id, room, largest = inflight.ids().__next__, inflight.room, encoded.largest
        done: list[QueueOffset] = []
        too_large: list[QueueOffset] = []
        exact: list[tuple[int, QueueOffset, bytes]] = []
        taken = len(encoded.pieces)
        for index, piece in enumerate(encoded.pieces):
            assert piece is not None, "all are made"
            qos, head, tail = piece
            offset = leased.offsets[index]
            if not head or (claimed and (number, offset) in claimed):
                done.append(offset)
                continue
            if largest > limit and size_bytes(piece) > limit:
                (too_large if leased.deliveries[index] < OFFERS_COUNT_MAX else done).append(offset)
                continue
            if not qos:
                send(head)
                done.append(offset)
                continue
            if room <= 0 or inflight.kept_bytes >= KEPT_BYTES_MAX:
                taken = index
                break
            room -= 1
            packet_id = take_id()
            sent[packet_id] = None
            if qos == 1:
                under_way[packet_id] = LeasedOffset(queue, number, offset)
                send(head)
                send(packet_id.to_bytes(2, "big"))
                send(tail)
                continue
            inflight.exact[packet_id] = None
            if context.durable:
                message = leased.messages[index]
                retain = plan.retain_as_published and message.retain
                inflight.keep(packet_id, Kept(encode(message), plan.identifiers, retain))
            exact.append((packet_id, offset, head + packet_id.to_bytes(2, "big") + tail))
        if exact:
            self._own(queue, number, exact)
        if not member.settles:
            inflight.acknowledged += [LeasedOffset(queue, number, offset) for offset in done]
            if too_large:
                self._settle(queue, number, too_large, "requeue")
        self._due = self._due or bool(done or too_large or exact)
        return taken

    def _own(self, queue: str, number: int, exact: Sequence[tuple[int, QueueOffset, bytes]]) -> None:
        """Saves QoS 2 messages as this session's; then settles and sends them."""
        self._unsaved.update({packet_id: (number, offset) for packet_id, offset, _ in exact})
        if self._context.durable:
            self._claimed.update(dict.fromkeys([(number, offset) for _, offset, _ in exact]))

        def saved() -> None:
            offsets = [offset for _, offset, _ in exact]
            self._settle(queue, number, offsets, "ack", settled)
            for packet_id, _, packet in exact:
                del self._unsaved[packet_id]
                self._context.out.append(packet)

        def settled(outcome: Outcome, _now_ms: int) -> None:
            if outcome.error is None:  # otherwise they may be leased again
                for _, offset, _ in exact:
                    self._claimed.pop((number, offset), None)

        self._keeper.then(saved)

    # ---- progress

    def _settle(
        self,
        queue: str,
        number: int,
        offsets: Sequence[QueueOffset],
        how: str,
        answer: Callable[[Outcome, int], None] | None = None,
    ) -> None:
        token = None if answer is None else self._context.expect(answer)
        done = (Disposition(offsets=offsets, outcome=how),)
        self._context.effects.append(SettleLeased(queue=queue, dispositions=done, token=token, number=number))

    def deadline_ms(self) -> int | None:
        """Returns when `report` is due without further input; 0: at once."""
        return 0 if self._due or self.revoked else self._rejoin_at_ms

    def settle(self) -> None:
        """Settles acknowledged messages."""
        inflight = self._inflight
        by_queue: dict[tuple[str, int], list[QueueOffset]] = {}
        for queue, number, offset in inflight.acknowledged:
            by_queue.setdefault((queue, number), []).append(offset)
        inflight.acknowledged = []
        for (queue, number), offsets in by_queue.items():
            self._settle(queue, number, offsets, "ack")

    def report(self, now_ms: int) -> None:
        """Settles acknowledged messages, and reports the room for more."""
        inflight = self._inflight
        if inflight.acknowledged:
            self.settle()
        if self._by_consumer and (inflight.freed or self._due or (self._held_back and not inflight.again)):
            self._held_back = bool(inflight.again)
            self._make_ready()
        self._due = False
        # A time that lies further ahead than any pause was noted before the clock was set back.
        if self._rejoin_at_ms is not None and not 0 < self._rejoin_at_ms - now_ms <= DENIED_INTERVAL_MS:
            self._rejoin()

    def _make_ready(self) -> None:
        room = self._inflight.room
        if room <= 0 or self._inflight.kept_bytes >= KEPT_BYTES_MAX:
            return
        for consumer, member in self._by_consumer.items():
            if member.starved or (not member.settles and member.credit * 2 <= room):
                member.credit, member.starved = room, False
                self._context.effects.append(Ready(consumer=consumer, credit=None if member.settles else room))

    def lost(self) -> None:
        """Gives messages that are not saved as this session's back for others, as the connection is gone."""
        for packet_id, claim in self._unsaved.items():
            self._inflight.take_back(packet_id)
            self._claimed.pop(claim, None)
        self._unsaved.clear()
