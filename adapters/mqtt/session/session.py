"""A client's session while a connection holds it: everything that CONNECT has let it ask for (MQTT 5.0, 4.1)."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from adapters.mqtt.codec.encoder import encode
from adapters.mqtt.codec.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from adapters.mqtt.codec.reason import SUBACK_CODES, SUBACK_FAILURE, ReasonCode
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.connecting.handshake import ConnectTerms
from adapters.mqtt.session.aliases import Aliases
from adapters.mqtt.session.delivery import SessionDelivery
from adapters.mqtt.session.exact import Exact
from adapters.mqtt.session.inflight import Inflight
from adapters.mqtt.session.intake import Control, Intake
from adapters.mqtt.session.keeper import SessionKeeper
from adapters.mqtt.session.retained import RetainedFeed
from adapters.mqtt.session.session_state import PacketExchanges, SessionState, dump, positions
from adapters.mqtt.session.shared import Refused, SharedFeed
from adapters.mqtt.session.subscriptions import Subscription, Subscriptions
from adapters.mqtt.session.sys_feed import SysFeed
from gateway.domain.batch import LostRange
from gateway.domain.cursor import Cursor, end_of, later
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.filters import is_sys
from gateway.port import adapter as port
from gateway.port.sessions import OpenedSession
from gateway.port.shared import shared_name
from store.format.frame import group_of

FILTERS_COUNT_MAX = 4_096  # of one packet, unless a session may have more subscriptions: one request is long


class MqttSession:
    """Subscriptions, deliveries, QoS 2 exchanges, and how they are saved."""

    __slots__ = (
        "_leaving",
        "context",
        "delivery",
        "exact",
        "inflight",
        "intake",
        "keeper",
        "retained",
        "shared",
        "subscriptions",
        "sys",
    )

    def __init__(self, context: ConnectionContext, control: Control, not_saved: Callable[[Refusal], None]) -> None:
        self.context = context
        self.subscriptions = Subscriptions(context.options)
        self.inflight = Inflight()
        self.keeper = SessionKeeper(
            context, state=self._state, exchanges=self._exchanges, saved=self._saved, refused=not_saved
        )
        self.exact = Exact(context, self.keeper)
        self.intake = Intake(context, self.exact, self.inflight, control)
        self.delivery = SessionDelivery(context, self.keeper, self.subscriptions, self.inflight)
        self.retained = RetainedFeed(context, self.keeper, self.subscriptions, self.inflight)
        self.shared: SharedFeed | None = None  # these two from the first subscription on that wants them
        self.sys: SysFeed | None = None
        self._leaving: tuple[port.SubscriptionId, ...] = ()  # subscriptions that have ended for the client

    def begin(self, opened: OpenedSession, terms: ConnectTerms) -> None:
        """Begins the session, which is open now."""
        self.context.durable = self.inflight.durable = terms.expiry_s != 0
        self.inflight.limit = terms.inflight_max
        if terms.aliases_max:
            self.delivery.aliases = Aliases(self.context, self.inflight, terms.aliases_max)
        self.keeper.begin(terms.expiry_s)
        self.exact.begin(opened.marks)
        self.intake.begin()

    def advance(self, now_ms: int) -> None:
        """Ends every input: sends as far as there is room, reports progress, and saves changes of the session."""
        if self._leaving:
            self._leave()
        self.retained.pump(now_ms)
        if self.shared is not None:
            self.shared.report(now_ms)
        if self.sys is not None:
            self.sys.pump(now_ms)
        self.delivery.report(now_ms)
        self.keeper.flush()

    def deliver(self, deliveries: port.Deliverable, now_ms: int) -> int:
        """Takes messages for this client; returns how many were taken."""
        if isinstance(deliveries, port.Deliveries):
            if self.sys is not None and isinstance(deliveries.batch, LostRange):
                self.sys.lose(deliveries.batch, now_ms)
            if not self.retained.active:
                return self.delivery.deliver(deliveries, now_ms)
            if self.retained.holds:
                return self.delivery.decline()
            taken = self.delivery.deliver(deliveries, now_ms)
            self.retained.sent_live(deliveries, taken)
            return taken
        return 0 if self.shared is None else self.shared.deliver(deliveries, now_ms)

    @property
    def revoked(self) -> bool:
        """Returns whether the client has lost the right to read one of its shared subscriptions."""
        return self.shared is not None and self.shared.revoked

    def deadline_ms(self) -> int | None:
        """Returns when `advance` is due without further input; 0: at once."""
        if self.keeper.owes or self.intake.has_more:
            return 0
        due_ms = _earlier(self.delivery.deadline_ms(), self.retained.deadline_ms())
        if self.shared is not None:
            due_ms = _earlier(due_ms, self.shared.deadline_ms())
        return due_ms if self.sys is None else _earlier(due_ms, self.sys.deadline_ms())

    def last_report(self) -> None:
        """Reports for the last time which deliveries are acknowledged."""
        if self.shared is not None:
            self.shared.settle()  # else those leased are given back and delivered again
        self.delivery.last_report()

    def last_words(self) -> None:
        """Saves the state that a later connection needs, unless it has been saved, and nothing more."""
        if self.context.durable:
            self.context.durable = False
            if self.shared is not None:
                self.shared.lost()
            if self.inflight.sent or self.inflight.unsaved or self.keeper.behind or self.retained.unsaved:
                self.keeper.last_words()

    def end(self) -> None:
        """Ends the session here, as the connection is gone."""
        self.last_words()
        # These parts refer to others that refer to them: forgetting frees a connection without the garbage collector.
        self.keeper.forget()
        self.intake.forget()
        self.context.forget()

    def handle(self, packet: Packet) -> None:
        """Takes a packet other than PUBLISH. Raises `ProtocolError` (0x82) for one that no client may send now."""
        handler = _HANDLERS.get(type(packet))
        if handler is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} is not sent by clients")
        handler(self, packet)

    def resume(self, state: SessionState, exchanges: PacketExchanges, opened: OpenedSession) -> None:
        """Subscribes again, from where the session had got to, and goes on with its QoS 2 exchanges (4.4)."""
        self.subscriptions.restore(state.subscriptions)
        self.exact.restore(exchanges, opened.marks.found)
        self.inflight.restore(exchanges)
        self.retained.restore(exchanges)
        settled = positions(exchanges.settled_places())
        start = later(opened.cursor or (), settled) if settled else opened.cursor
        for one in self.subscriptions:
            if is_sys(one.pattern):
                self._add_sys(one)
            elif one.shared is None:
                # A subscription gets no message from before it began, however far behind another one is.
                begin = start if start is None else later(start, positions(one.since))
                self.context.effects.append(port.Subscribe(sub=one.sub, pattern=one.pattern, start=begin))
        if exchanges.claimed or any(one.shared is not None for one in self.subscriptions):
            self._sharing().restore(exchanges)
        for packet_id in self.inflight.released:
            self.context.send(Pubrel(packet_id=packet_id))

    # ---- packets

    def on_puback(self, packet: Puback) -> None:
        """Takes a PUBACK (3.4). Raises `ProtocolError` (0x82) for a QoS 2 delivery."""
        self.inflight.acknowledge((packet.packet_id,))

    def on_pubrec(self, packet: Pubrec) -> None:
        """Takes a PUBREC (3.5) and answers PUBREL. Raises `ProtocolError` (0x82) for a QoS 1 delivery."""
        packet_id, refused = packet.packet_id, packet.code >= ReasonCode.UNSPECIFIED_ERROR
        if self.inflight.received(packet_id, refused=refused):
            self.keeper.after_save(encode(Pubrel(packet_id=packet_id), self.context.version))
        elif not refused:
            self.context.send(Pubrel(packet_id=packet_id, code=ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))

    def on_pubcomp(self, packet: Pubcomp) -> None:
        """Takes a PUBCOMP (3.7), the end of a QoS 2 delivery."""
        self.inflight.completed(packet.packet_id)

    def on_pubrel(self, packet: Pubrel) -> None:
        """Takes a PUBREL (3.6), the end of a QoS 2 publish; the PUBCOMP follows."""
        identifier = packet.packet_id.to_bytes(2, "big")
        if self.exact.release(identifier):  # which another use of it may not come before
            self.keeper.after_save(encode(Pubcomp(packet_id=packet.packet_id), self.context.version))
        else:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if self.context.version == 5 else ReasonCode.SUCCESS
            self.context.send(Pubcomp(packet_id=packet.packet_id, code=code))

    def on_pingreq(self, _packet: Pingreq) -> None:
        """Answers a PINGREQ (3.12)."""
        self.context.send(Pingresp())

    # ---- subscriptions

    def on_subscribe(self, packet: Subscribe) -> None:
        """Takes a SUBSCRIBE (3.8); the SUBACK follows when the session knows of it durably."""
        self._check_count(packet.requests)
        identifiers = packet.properties.subscription_ids
        identifier = identifiers[0] if identifiers else None
        new: list[Subscription] = []
        codes = [self._subscribe(request, identifier, new) for request in packet.requests]
        if self.shared is not None and self.shared.wanted:
            self.shared.join(lambda refused: self._joined(packet, codes, refused))
            if new:
                self._listen(new, self.keeper.save_state_soon)
        else:
            answer, changed = Suback(packet_id=packet.packet_id, codes=tuple(codes)), min(codes) < SUBACK_FAILURE
            self._listen(new, lambda: self._answer(answer, changed=changed))

    def _check_count(self, filters: Sequence[object]) -> None:
        """Raises `ProtocolError` (0x97) for too many filters in one packet."""
        count_max = max(FILTERS_COUNT_MAX, self.context.options.subscriptions_max)
        if len(filters) > count_max:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"more than {count_max} topic filters in one packet")

    def _listen(self, new: Sequence[Subscription], then: Callable[[], None]) -> None:
        """Subscribes in the log, then continues. A session that lasts knows by then where its subscriptions begin."""
        effects = [port.Subscribe(sub=one.sub, pattern=one.pattern) for one in new]

        def begun(outcome: port.Outcome, _now_ms: int) -> None:
            # All at one moment. A log whose end is not known yet is left out.
            known: Cursor = outcome.value or ()
            since = tuple([(at.frame, at.row) for at in known if at != end_of(group_of(at.frame))])
            self.subscriptions.begun([one.sub for one in new], since)
            then()

        if effects and self.context.durable:
            effects[-1] = replace(effects[-1], token=self.context.expect(begun))
            self.context.effects += effects
            self.keeper.save_state_later()
        else:
            self.context.effects += effects
            then()

    def _joined(self, packet: Subscribe, codes: list[int], refused: Refused) -> None:
        """Continues a SUBSCRIBE whose shared subscriptions are joined, or refused: the SUBACK follows."""
        for index, request in enumerate(packet.requests):
            if (why := refused.get(request.pattern)) is not None:
                codes[index] = SUBACK_CODES[why.cause] if self.context.version == 5 else SUBACK_FAILURE
        self._answer(Suback(packet_id=packet.packet_id, codes=tuple(codes)), changed=bool(refused))

    def _subscribe(self, request: SubscriptionRequest, identifier: int | None, begun: list[Subscription]) -> int:
        """Subscribes to one filter; returns the code for its SUBACK.

        Subscriptions that begin in the log are added to `begun`.
        """
        refused = self.subscriptions.refusal(request) or self._denied(request.pattern)
        if refused is not None:
            return refused if self.context.version == 5 else SUBACK_FAILURE
        subscription, new = self.subscriptions.put(request, identifier)
        if subscription.shared is not None:  # retained messages are not sent for it (3.8.3.1)
            self._sharing().want(subscription)
            return subscription.qos
        if new and is_sys(subscription.pattern):
            self._add_sys(subscription)
        elif new:
            begun.append(subscription)
        if request.retain_handling == 0 or (request.retain_handling == 1 and new):
            self.retained.want(subscription.sub)
        return subscription.qos

    def _sharing(self) -> SharedFeed:
        if self.shared is None:
            self.shared = SharedFeed(self.context, self.keeper, self.subscriptions, self.inflight)
        return self.shared

    def _add_sys(self, subscription: Subscription) -> None:
        if self.sys is None:
            self.sys = SysFeed(self.context, self.subscriptions)
        self.sys.add(subscription)

    def _denied(self, pattern: str) -> ReasonCode | None:
        """Returns the code for a filter that the client may not read at all, or, shared with others, not in full."""
        permissions = self.context.permissions
        if permissions.access is not None:
            shared = shared_name(pattern)
            try:
                if shared is None:
                    permissions.check_filter(pattern)
                else:
                    permissions.check_all("subscribe", shared.pattern)
            except Refusal:
                return ReasonCode.NOT_AUTHORIZED
        return None

    def on_unsubscribe(self, packet: Unsubscribe) -> None:
        """Takes an UNSUBSCRIBE (3.10); the UNSUBACK follows when the session knows of it durably."""
        self._check_count(packet.patterns)
        codes: list[int] = []
        shared: list[Subscription] = []
        for pattern in packet.patterns:
            subscription = self.subscriptions.remove(pattern)
            if subscription is None:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
            else:
                codes.append(ReasonCode.SUCCESS)
                if subscription.shared is not None:
                    shared.append(subscription)
                    continue
                self.retained.forget(subscription.sub)
                if is_sys(pattern):
                    assert self.sys is not None, "it was subscribed to"
                    self.sys.remove(subscription)
                else:
                    self._leaving += (subscription.sub,)
        self._leave()
        if shared:
            gone = {subscription.pattern for subscription in shared}
            self._sharing().leave(shared, lambda done: self._left(packet, codes, set() if done else gone))
        else:
            self._answer(Unsuback(packet_id=packet.packet_id, codes=tuple(codes)), changed=ReasonCode.SUCCESS in codes)

    def _leave(self) -> None:
        """Ends subscriptions in the log, once it has brought again the messages that an earlier connection was sent."""
        resume, options = self.inflight.resume, self.context.options
        if resume is None or not resume.reserved or len(self._leaving) > options.subscriptions_max:
            self.context.effects += [port.Unsubscribe(sub=sub) for sub in self._leaving]
            self._leaving = ()

    def _left(self, packet: Unsubscribe, codes: list[int], failed: set[str]) -> None:
        """Continues an UNSUBSCRIBE whose shared subscriptions are left: the UNSUBACK follows."""
        said = [
            ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if pattern in failed and not code else code
            for pattern, code in zip(packet.patterns, codes, strict=True)
        ]
        self._answer(Unsuback(packet_id=packet.packet_id, codes=tuple(said)), changed=True)

    def _answer(self, packet: Suback | Unsuback, *, changed: bool) -> None:
        """Answers once the changes are durable."""
        encoded = encode(packet, self.context.version)
        if len(encoded) > self.context.packet_bytes_max:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, "the client takes no packet as large as this answer")
        if changed:
            self.keeper.after_saving_state(encoded)
        else:
            self.context.out.append(encoded)

    def _state(self) -> bytes:
        return dump(SessionState(subscriptions=self.subscriptions.saved()))

    def _exchanges(self) -> bytes:
        inflight = self.inflight
        received, storing, uses = self.exact.save()
        fed, feed = self.retained.save()
        settled, *elsewhere = sorted(inflight.settled()) or (None,)
        return dump(
            PacketExchanges(
                received=received,
                settled=settled,
                sent=inflight.saved(),
                done=tuple(inflight.done),
                next_packet_id=inflight.next_id,
                fed=fed,
                feed=feed,
                settled_elsewhere=tuple(elsewhere),
                claimed=() if self.shared is None else self.shared.claimed(),
                storing=storing,
                uses=uses,
            )
        )

    def _saved(self) -> None:
        self.exact.saved()


_HANDLERS: dict[type[Packet], Callable[[MqttSession, Any], None]] = {
    Puback: MqttSession.on_puback,
    Pubrec: MqttSession.on_pubrec,
    Pubrel: MqttSession.on_pubrel,
    Pubcomp: MqttSession.on_pubcomp,
    Subscribe: MqttSession.on_subscribe,
    Unsubscribe: MqttSession.on_unsubscribe,
    Pingreq: MqttSession.on_pingreq,
}


def _earlier(due_ms: int | None, other_ms: int | None) -> int | None:
    return due_ms if other_ms is None or (due_ms is not None and due_ms <= other_ms) else other_ms
