"""All CoAP exchanges of one UDP socket, without the socket: datagrams and the clock in, effects and datagrams out.

A POST, PUT or DELETE is answered when its message is durable, a GET when the gateway has looked. An answer that takes
longer than `ack_delay_ms` is preceded by an empty acknowledgement and travels in a Confirmable message of its own
(RFC 7252, 5.2.2). Multicast is not joined. Over plain UDP peers are anonymous; `adapters.coap.secured` and
`adapters.coap.oscore` make an endpoint for each principal.

Published messages, and blocks of them, are remembered for EXCHANGE_LIFETIME, and a GET while there is room. Not so
requests that were refused before anything was done: to look at them again does no harm (RFC 7252, 4.5).
"""

from collections.abc import Sequence

from adapters.coap.codec.registry import (
    ACK,
    CON,
    CONTINUE,
    DELETE,
    EMPTY,
    POST,
    PRECONDITION_FAILED,
    RST,
)
from adapters.coap.codec.wire import (
    HEADER_BYTES,
    MessageFormatError,
    decode,
)
from adapters.coap.endpoint.admission import AnonymousAdmission
from adapters.coap.endpoint.heads import HEADS
from adapters.coap.endpoint.lookups import Lookups, Settlement
from adapters.coap.endpoint.plans import Plans
from adapters.coap.endpoint.readings import Readings
from adapters.coap.endpoint.tokens import Tokens
from adapters.coap.exchanges.answers import Answer, busy, refused
from adapters.coap.exchanges.echo import EchoVerifier
from adapters.coap.exchanges.exchanges import DROPPED_PER_TICK_MAX, Exchange, Exchanges, PeerExchanges
from adapters.coap.exchanges.message_ids import MessageIds, SocketMessageIds
from adapters.coap.exchanges.sender import Sender
from adapters.coap.messages.blocks import BlockTransfers
from adapters.coap.messages.mapping import PROTOCOL
from adapters.coap.messages.request import Condition
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.messages.times import SocketTime
from adapters.coap.observe import Observers
from adapters.coap.reading.reads import Reads
from adapters.coap.topics.topic import TopicRequested
from adapters.coap.topics.writes import TopicWrites
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Call, Deliverable, Deliveries, Effect, Outcome, Peer, Publish, Random, Token
from gateway.port.reads import LastValue
from store.api.message import Message


class CoapEndpoint:
    """The `DatagramAdapter` of CoAP."""

    def __init__(
        self,
        settings: CoapOptions,
        *,
        random: Random,
        transfers: BlockTransfers | None = None,
        mids: MessageIds | None = None,
        reliable: bool = False,
        time: SocketTime | None = None,
    ) -> None:
        """Makes an endpoint. `reliable`: the transport loses and repeats nothing, and endpoints share `transfers`."""
        self._settings = settings
        self._reliable = reliable
        self.exchanges = Exchanges(
            lifetime_ms=settings.exchange_lifetime_ms,
            total_max=settings.dedup_total_max,
            peer_max=settings.dedup_peer_max,
            peers_max=settings.peers_max,
        )
        if mids is None:
            mids = SocketMessageIds(random.getrandbits(16))
            mids.answered_apart.append(self.exchanges.answered_apart)
        self.mids = mids
        self._sender = Sender(settings, mids, random=random)
        self._tokens = Tokens(settings.ack_delay_ms)
        self.transfers = transfers or BlockTransfers(settings)
        self._time = time = time or SocketTime()
        self.reads = Reads(settings, self.transfers, time, reliable=reliable)
        parts = settings, self.reads, self._sender
        self.observers = Observers(*parts, new_token=self._tokens.quick, random=random, reliable=reliable)
        self._echo = EchoVerifier(settings, random=random, reliable=reliable)
        self._readings = Readings(
            settings,
            reads=self.reads,
            sender=self._sender,
            observers=self.observers,
            exchanges=self.exchanges,
            echo=self._echo,
        )
        self._lookups = Lookups()
        self.plans = Plans(settings, self.transfers.uploads, self._echo, reliable=reliable)
        self._topics = TopicWrites(
            settings, time, sender=self._sender, exchanges=self.exchanges, new_token=self._tokens.new, plans=self.plans
        )
        self.admission = AnonymousAdmission()
        self._publishing: dict[Token, list[Exchange]] = {}
        self._conditional: dict[Token, str] = {}  # those of `_publishing` behind which requests for an address wait
        self._publishing_count = 0  # requests in _publishing
        self._later: list[Exchange] = []  # of this wake: blocks that are not the last, and PUTs that wait

    @property
    def outstanding(self) -> int:
        """Requests taken in and not answered, <= requests_outstanding_max."""
        return self._publishing_count + len(self._readings) + len(self._topics)

    @property
    def idle(self) -> bool:
        """Returns whether nothing is in flight or remembered here, but for transfers in blocks."""
        in_flight = self.outstanding or not (self._sender.separate.idle and self.observers.idle)
        return not (in_flight or len(self.exchanges) or self.admission.token)

    def admit(self, principal: Principal) -> None:
        """Lets peers in as a principal; its device, if it is one, is that of their messages."""
        self.admission.granted = True
        self.plans.belong(principal)

    def answer(self, exchange: Exchange, answer: Answer, now_ms: int) -> None:
        """Sends a response of a layer below."""
        self._sender.answer(exchange, answer, now_ms)

    def forget(self, peer: Peer) -> None:
        """Ends the observations and transfers of a peer, which is gone."""
        self.observers.forget(peer)
        self.transfers.drop_all(peer)

    # ---- the port

    def receive(  # noqa: C901, PLR0912, PLR0915 - one loop over a wake, with nothing called that can be had in place
        self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int
    ) -> Sequence[Effect]:
        """Takes datagrams that arrived together: one `Publish` for all they publish, one `Call` for each they read.

        This loop is the hot path: from datagram to response a POST whose options have been seen before costs 1.6 us
        here; read by way of its `Request` it would cost 11. The options of a device's telemetry do not change, so they
        are looked up as bytes: bytes that were once read as options up to a 0xFF always have the payload marker there.
        """
        if not self.admission.granted:
            return self._admit(datagrams, now_ms)
        settings, exchanges, plans = self._settings, self.exchanges, self.plans.known
        exchanges.expire(now_ms, at_least=2 * len(datagrams))
        room = min(exchanges.room(now_ms), settings.requests_outstanding_max - self.outstanding)
        by_peer, peer_max, peers_max = exchanges.by_peer, exchanges.peer_max, exchanges.peers_max
        lifetime_ms, non_lifetime_ms = exchanges.lifetime_ms, exchanges.non_lifetime_ms
        body_max, wall_ms = settings.max_body_bytes, self._time.wall_ms(now_ms)
        heads, output, lookups = HEADS, self._sender.output, self._lookups
        effects: list[Effect] = []
        messages: list[Message] = []
        taken: list[Exchange] = []
        for data, peer in datagrams:
            head = heads.get(data[:2])
            if head is None or len(data) < HEADER_BYTES:
                room -= self._receive_other(data, peer, now_ms, effects, full=len(taken) >= room)
                continue
            end = HEADER_BYTES + (data[0] & 15)
            tag = data[2:end]
            mid = data[2] << 8 | data[3]
            conversation = by_peer.get(peer)
            if conversation is not None:
                by_mid = conversation.by_mid
                known = by_mid.get(mid)
                if (
                    known is not None
                    and known.tag == tag
                    and now_ms - known.arrival_ms < (lifetime_ms if known.confirmable else non_lifetime_ms)
                ):
                    if known.response:
                        output.append((known.response, peer))
                    continue
                full = len(by_mid) >= peer_max and known is None
            else:
                full = len(by_peer) >= peers_max
            confirmable = data[0] < 0x50
            exchange = Exchange(peer, tag, head, now_ms, confirmable)
            if full or len(taken) >= room:
                self._sender.answer(exchange, busy("too many requests"), now_ms)
                continue
            marker = data.find(b"\xff", end)
            plan = plans.get(data[end:] if marker < 0 else data[end:marker])
            body = data[marker + 1 :] if marker >= 0 else b""
            try:
                if plan is None or len(body) > body_max or (marker >= 0 and not body):
                    found = self.plans.read(data, end, exchange, now_ms)
                    if found is None:
                        self._ask_for_more(exchange, now_ms)
                        continue
                    plan, body = found
                if data[1] == DELETE:
                    exchange.silence = plan.silence
                    message = plan.deletion(confirmable=confirmable, host=peer[0], now_ms=wall_ms)
                elif plan.plain:
                    message = Message(
                        plan.address,
                        body,
                        wall_ms,
                        PROTOCOL,
                        plan.device or peer[0],
                        1 if confirmable else 0,
                        False,
                        "",
                        None,
                        None,
                        plan.content_type,
                        principal=plan.principal,
                    )
                else:
                    exchange.silence = plan.silence
                    message = plan.message(body, confirmable=confirmable, host=peer[0], now_ms=wall_ms)
            except TopicRequested as asked:
                begun = self._topics.begin(exchange, data[1], asked.request, asked.body, now_ms)
                effects += begun
                room -= len(begun)
                continue
            except (ProtocolError, Refusal) as error:
                self._sender.fail(exchange, error, now_ms)
                continue
            if conversation is None:
                conversation = by_peer[peer] = PeerExchanges(peer)
            exchange.peer = conversation.peer
            conversation.by_mid[mid] = exchange
            if (data[1] != POST or lookups.waiting or plan.condition) and lookups.must_wait(
                exchange, message.address, plan.condition, now_ms
            ):
                effects += self._look_up(exchange, message, plan.condition, now_ms)
                room -= 1
                continue
            messages.append(message)
            taken.append(exchange)
        if taken:
            token = self._tokens.new(now_ms)
            self._publishing[token] = taken
            self._publishing_count += len(taken)
            exchanges.remember(taken, now_ms)
            effects.insert(0, Publish(messages, token))
        if self._later:
            exchanges.remember(self._later, now_ms)
            self._later = []
        effects += self._readings.next_list()
        effects += self.observers.take_effects()
        return effects

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Answers requests that were stored or refused, and reads; lets peers in."""
        if token == self.admission.token:
            return self._complete_admission(outcome, now_ms)
        if (following := self._topics.completed(token, outcome, now_ms)) is not None:
            return following
        exchanges = self._publishing.pop(token, None)
        if exchanges is None:
            more: Sequence[Effect] = ()
            if not self.observers.checked(token, outcome, now_ms):
                more = self._readings.complete(token, outcome, new_token=self._tokens.quick, now_ms=now_ms)
            return (*more, *self._readings.next_list(), *self.observers.take_effects())
        settlement = self._lookups.answered(
            token,
            value=outcome.value,
            error=outcome.error,
            etags=lambda: self.reads.etags(outcome.value, now_ms),
            now_ms=now_ms,
        )
        if settlement is not None:
            return self._settle(settlement, outcome.error, now_ms)
        self._publishing_count -= len(exchanges)
        self._answer_published(exchanges, outcome, now_ms)
        address = self._conditional.pop(token, None)
        return () if address is None else self._ask_for_those_behind(address, now_ms)

    def _answer_published(self, exchanges: Sequence[Exchange], outcome: Outcome, now_ms: int) -> None:
        """Answers the requests of one `Publish`."""
        body_max = self._settings.max_body_bytes
        if outcome.error is not None:
            answer = refused(outcome.error, max_body_bytes=body_max)
            for exchange in exchanges:
                self._sender.answer(exchange, answer, now_ms)
            return
        output, refusals = self._sender.output, outcome.refused
        mids = self.mids
        for index, exchange in enumerate(exchanges):
            tag = exchange.tag
            if exchange.acked or exchange.silence or (refusals and index in refusals):
                refusal = refusals.get(index)
                self._sender.answer(
                    exchange,
                    Answer(exchange.head[1]) if refusal is None else refused(refusal, max_body_bytes=body_max),
                    now_ms,
                )
            elif exchange.confirmable:
                exchange.response = response = exchange.head + tag + exchange.tail
                output.append((response, exchange.peer))
            else:
                own_mid = mids.of_response(exchange.peer, exchange.mid, now_ms).to_bytes(2, "big")
                output.append((exchange.head + own_mid + tag[2:] + exchange.tail, exchange.peer))

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Notifies observers."""
        return self.observers.deliver(deliveries, now_ms) if isinstance(deliveries, Deliveries) else 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Acknowledges requests without an answer yet, retransmits unacknowledged messages, forgets old exchanges."""
        for token, alone in self._tokens.due(now_ms):
            for exchange in self._waiting(token, alone):
                if exchange.confirmable and not exchange.acked:
                    self._sender.acknowledge(exchange)
        again, gone = self._sender.separate.again(now_ms)
        self._sender.output += again
        self.observers.let_next(gone)
        self.exchanges.expire(now_ms, at_least=DROPPED_PER_TICK_MAX)
        self.transfers.expire(now_ms)
        self.observers.tick(now_ms)
        return self.observers.take_effects()

    def deadline_ms(self) -> int | None:
        """Returns the earliest of all that waits."""
        deadlines = (
            self._tokens.deadline_ms(lambda token, alone: bool(self._waiting(token, alone))),
            self._sender.separate.deadline_ms(),
            self.exchanges.deadline_ms(),
            self.transfers.deadline_ms(),
            self.observers.deadline_ms(),
        )
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """Returns the datagrams to send now."""
        return self._sender.take()

    def _waiting(self, token: Token, alone: Exchange | None) -> Sequence[Exchange]:
        """Returns the requests that wait for an outcome; of one that waits alone, whether it is answered counts."""
        if alone is not None:
            return (alone,) if alone.confirmable and not (alone.acked or alone.response) else ()
        found = self._readings.waiting(token) or self._topics.waiting(token)
        return self._publishing.get(token, ()) if found is None else (found,)

    # ---- admission

    def _admit(self, datagrams: Sequence[tuple[bytes, Peer]], now_ms: int) -> Sequence[Effect]:
        """Parks datagrams until it is known whether peers are let in; answers them where they are not."""
        if self.admission.refusal is None:
            return self.admission.ask(datagrams, self._tokens.quick())
        effects: list[Effect] = []
        for data, peer in datagrams:
            self._receive_other(data, peer, now_ms, effects, full=False)
        return effects

    def _complete_admission(self, outcome: Outcome, now_ms: int) -> Sequence[Effect]:
        """Keeps a permanent refusal; answers parked requests by a passing one, and the next datagrams ask again."""
        if isinstance(outcome.value, Principal):
            self.admit(outcome.value)
        effects = self.receive(self.admission.answered(outcome), now_ms=now_ms)
        if outcome.error is not None and outcome.error.retriable:
            self.admission.refusal = None
        return effects

    # ---- requests off the hot path

    def _receive_other(self, data: bytes, peer: Peer, now_ms: int, effects: list[Effect], *, full: bool) -> int:
        """Takes anything but a POST, PUT or DELETE; returns how many requests were taken in, none or one.

        A datagram that is no message is reset when it claims to be Confirmable, else skipped (RFC 7252, 4.2 and
        4.3); so are Empty messages, which is how a peer pings, responses to nothing, and reserved classes of codes.
        """
        if len(data) < HEADER_BYTES or data[0] >> 6 != 1:
            return 0
        kind, code = data[0] >> 4 & 3, data[1]
        confirmable = kind == CON
        if kind in {ACK, RST}:
            if code == EMPTY and len(data) == HEADER_BYTES:
                mid = data[2] << 8 | data[3]
                self._sender.separate.settle(peer, mid)
                self.observers.settled(peer, mid, now_ms, reset=kind == RST)
            return 0
        exchange = Exchange(peer, data[2 : HEADER_BYTES + (data[0] & 15)], b"", now_ms, confirmable)
        try:
            packet = decode(data)
            if code == EMPTY or code >> 5:
                raise MessageFormatError("not a request")
            if self.admission.refusal is not None:
                raise self.admission.refusal
            known = self.exchanges.find(peer, exchange.tag, now_ms)
            if known is not None:
                response = self.observers.first_response(known) if known.read_again else known.response
                if response:
                    self._sender.output.append((response, peer))
                if response or not known.read_again:
                    return 0
                exchange = known
            elif full or not self.exchanges.has_room_for(peer, exchange.mid):
                self._sender.answer(exchange, busy("too many requests"), now_ms)
                return 0
            begun = self._readings.begin(
                exchange, packet, len(data), new_token=self._tokens.new, reliable=self._reliable, now_ms=now_ms
            )
        except TopicRequested as asked:
            begun = self._topics.begin(exchange, code, asked.request, asked.body, now_ms) or None
        except (ProtocolError, Refusal) as error:
            self._sender.fail(exchange, error, now_ms)
            return 0
        if begun is None:
            return 0
        effects += begun
        return 1

    def _look_up(
        self, exchange: Exchange, message: Message, condition: Condition | None, now_ms: int
    ) -> Sequence[Effect]:
        """Lets a request wait until the last value of its address is known."""
        self._publishing_count += 1
        self._later.append(exchange)
        token = self._tokens.new(now_ms, exchange)
        if self._lookups.add(exchange, message, condition, token):
            self._publishing[token] = [exchange]
            return (Call(request=LastValue(address=message.address), token=token),)
        return ()

    def _settle(self, settlement: Settlement, error: Refusal | None, now_ms: int) -> Sequence[Effect]:
        """Publishes requests that waited for the last value of an address, and answers those whose condition fails."""
        self._publishing_count -= len(settlement.failed)
        answer = Answer(PRECONDITION_FAILED) if error is None else refused(error, max_body_bytes=0)
        for exchange in settlement.failed:
            self._sender.answer(exchange, answer, now_ms)
        if not settlement.messages:
            return ()
        token = self._tokens.new(now_ms)
        self._publishing[token] = settlement.exchanges
        if settlement.address in self._lookups.waiting:
            self._conditional[token] = settlement.address
        return (Publish(settlement.messages, token),)

    def _ask_for_those_behind(self, address: str, now_ms: int) -> Sequence[Effect]:
        """Asks for the last value again, for the requests that came while the one before them was being stored."""
        token = self._tokens.new(now_ms)
        behind = self._lookups.stored(address, token)
        if not behind:
            return ()
        self._publishing[token] = behind
        return (Call(request=LastValue(address=address), token=token),)

    def _ask_for_more(self, exchange: Exchange, now_ms: int) -> None:
        """Answers a block that is not the last."""
        self.exchanges.open(exchange)
        self._later.append(exchange)
        self._sender.answer(exchange, Answer(CONTINUE), now_ms)
