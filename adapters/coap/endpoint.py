"""All CoAP exchanges of one UDP socket, without the socket: datagrams and the clock in, effects and datagrams out.

A POST or PUT is answered when its message is durable, a GET when the gateway has looked. An answer that takes longer
than `ack_delay_ms` is preceded by an empty acknowledgement and travels in a Confirmable message of its own
(RFC 7252, 5.2.2). Observe is passed over: it is elective, and its absence from a response tells the client
(RFC 7641, 3.1). Multicast is not joined.

Published messages, and blocks of them, are remembered for EXCHANGE_LIFETIME. Not so a GET that has been answered, and
requests that were refused before anything was done: to look at them again does no harm (RFC 7252, 4.5).
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from adapters.coap.answers import Answer, busy, refused, wrong
from adapters.coap.blocks import Uploads
from adapters.coap.exchanges import DROPPED_PER_TICK_MAX, Conversation, Exchange, Exchanges
from adapters.coap.mapping import PROTOCOL, Plan, make_plan
from adapters.coap.reads import Read, Reads
from adapters.coap.registry import (
    ACK,
    BAD_OPTION,
    BLOCK1,
    CHANGED,
    CON,
    CONTINUE,
    CREATED,
    EMPTY,
    GET,
    METHOD_NOT_ALLOWED,
    NON,
    POST,
    PUT,
    REQUEST_ENTITY_TOO_LARGE,
    RST,
)
from adapters.coap.request import Block, read_request
from adapters.coap.retransmit import Retransmitter
from adapters.coap.settings import CoapOptions
from adapters.coap.wire import (
    HEADER_BYTES,
    TOKEN_BYTES_MAX,
    MessageFormatError,
    decode,
    encode_options,
    read_options,
)
from gateway.errors import ProtocolError, Refusal
from gateway.message import Message
from gateway.port import (
    Call,
    Deliveries,
    Effect,
    Leased,
    Outcome,
    Peer,
    Publish,
    Random,
    Token,
)

__all__ = ["CoapEndpoint"]

PLANS_MAX = 65_536  # option lists remembered with what they mean


def _heads() -> dict[bytes, bytes]:
    """The first two bytes of a POST or PUT, by those of the response that says it is stored: 2.01 or 2.04.

    A Confirmable request is answered in its acknowledgement, another in a Non-confirmable message.
    """
    heads = {}
    for request, response in ((CON, ACK), (NON, NON)):
        for method, code in ((POST, CREATED), (PUT, CHANGED)):
            for length in range(TOKEN_BYTES_MAX + 1):
                asked, told = 0x40 | request << 4 | length, 0x40 | response << 4 | length
                heads[bytes((asked, method))] = bytes((told, code))
    return heads


HEADS = _heads()


class _Reading(msgspec.Struct, frozen=True):
    """A GET under way."""

    exchange: Exchange
    read: Read


class CoapEndpoint:
    """The `DatagramAdapter` of CoAP."""

    def __init__(self, settings: CoapOptions, *, random: Random) -> None:
        self._settings = settings
        self._exchanges = Exchanges(
            lifetime_ms=settings.exchange_lifetime_ms,
            total_max=settings.dedup_total_max,
            peer_max=settings.dedup_peer_max,
            peers_max=settings.peers_max,
        )
        self._retransmitter = Retransmitter(
            ack_timeout_ms=settings.ack_timeout_ms,
            ack_random_factor=settings.ack_random_factor,
            max_retransmit=settings.max_retransmit,
            pending_max=settings.requests_outstanding_max,
            random=random,
        )
        self._uploads = Uploads(settings)
        self._reads = Reads(settings)
        self._plans: dict[bytes, Plan] = {}
        # A message of ours has the Message ID of the request it answers, masked: as unique as the peer's own are.
        self._mask = random.getrandbits(16).to_bytes(2, "big")
        self._next_token = 0
        self._publishing: dict[Token, list[Exchange]] = {}
        self._reading: dict[Token, _Reading] = {}
        self._outstanding = 0  # requests in _publishing and _reading, <= requests_outstanding_max
        self._slow: deque[tuple[int, Token]] = deque()  # when to acknowledge what is not answered by then
        self._continued: list[Exchange] = []  # blocks of this wake that are not the last
        self._output: list[tuple[bytes, Peer]] = []

    # ---- the port

    def receive(  # noqa: PLR0912, PLR0915 - one loop over a wake, with nothing called that can be had in place
        self, datagrams: Sequence[tuple[bytes, Peer]], *, now_ms: int
    ) -> Sequence[Effect]:
        """Datagrams that arrived together: one `Publish` for all they publish, one `Call` for each they read.

        This loop is the hot path: from datagram to response a POST whose options have been seen before costs 1.6 us
        here; read by way of its `Request` it would cost 11. The options of a device's telemetry do not change, so they
        are looked up as bytes: bytes that were once read as options up to a 0xFF always have the payload marker there.
        """
        settings, exchanges, plans = self._settings, self._exchanges, self._plans
        exchanges.expire(now_ms, at_least=2 * len(datagrams))
        room = min(exchanges.room(now_ms), settings.requests_outstanding_max - self._outstanding)
        by_peer, peer_max, peers_max = exchanges.by_peer, exchanges.peer_max, exchanges.peers_max
        lifetime_ms, body_max = exchanges.lifetime_ms, settings.max_body_bytes
        heads, output = HEADS, self._output
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
                if known is not None and known.tag == tag and now_ms - known.arrival_ms < lifetime_ms:
                    if known.response:
                        output.append((known.response, peer))
                    continue
                full = len(by_mid) >= peer_max and known is None
            else:
                full = len(by_peer) >= peers_max
            confirmable = data[0] < 0x50
            exchange = Exchange(peer, tag, head, now_ms, confirmable)
            if full or len(taken) >= room:
                self._answer(exchange, busy("too many requests"), now_ms)
                continue
            marker = data.find(b"\xff", end)
            plan = plans.get(data[end:] if marker < 0 else data[end:marker])
            body = data[marker + 1 :] if marker >= 0 else b""
            try:
                if plan is None or len(body) > body_max or (marker >= 0 and not body):
                    found = self._read_publish(data, end, exchange, now_ms)
                    if found is None:
                        continue
                    plan, body = found
                if plan.plain:
                    message = Message(
                        plan.address,
                        body,
                        now_ms,
                        PROTOCOL,
                        plan.device or peer[0],
                        1 if confirmable else 0,
                        False,
                        "",
                        None,
                        None,
                        plan.content_type,
                    )
                else:
                    message = plan.message(body, confirmable=confirmable, host=peer[0], now_ms=now_ms)
            except (ProtocolError, Refusal) as error:
                self._fail(exchange, error, now_ms)
                continue
            if conversation is None:
                conversation = by_peer[peer] = Conversation(peer)
            exchange.peer = conversation.peer
            conversation.by_mid[mid] = exchange
            messages.append(message)
            taken.append(exchange)
        if taken:
            token = self._token(now_ms)
            self._publishing[token] = taken
            self._outstanding += len(taken)
            exchanges.remember(taken, now_ms)
            effects.insert(0, Publish(messages, token))
        if self._continued:
            exchanges.remember(self._continued, now_ms)
            self._continued = []
        return effects

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Answer what was stored, or refused, or read."""
        exchanges = self._publishing.pop(token, None)
        if exchanges is None:
            self._complete_read(token, outcome, now_ms)
            return ()
        self._outstanding -= len(exchanges)
        body_max = self._settings.max_body_bytes
        if outcome.error is not None:
            answer = refused(outcome.error, max_body_bytes=body_max)
            for exchange in exchanges:
                self._answer(exchange, answer, now_ms)
            return ()
        output, refusals = self._output, outcome.refused
        mask_high, mask_low = self._mask
        for index, exchange in enumerate(exchanges):
            tag = exchange.tag
            if exchange.acked or (refusals and index in refusals):
                refusal = refusals.get(index)
                self._answer(
                    exchange,
                    Answer(exchange.head[1]) if refusal is None else refused(refusal, max_body_bytes=body_max),
                    now_ms,
                )
            elif exchange.confirmable:
                exchange.response = response = exchange.head + tag + exchange.tail
                output.append((response, exchange.peer))
            else:
                own_mid = bytes((tag[0] ^ mask_high, tag[1] ^ mask_low))
                output.append((exchange.head + own_mid + tag[2:] + exchange.tail, exchange.peer))
        return ()

    def deliver(self, deliveries: Deliveries | Leased, *, now_ms: int) -> int:
        """Nothing: there are no subscriptions without Observe."""
        return 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Acknowledge what is not answered yet, send again what was not acknowledged, forget what is old."""
        while self._slow and self._slow[0][0] <= now_ms:
            _, token = self._slow.popleft()
            reading = self._reading.get(token)
            waiting = self._publishing.get(token, ()) if reading is None else (reading.exchange,)
            for exchange in waiting:
                if exchange.confirmable:
                    exchange.acked = True
                    exchange.response = bytes((0x40 | ACK << 4, EMPTY)) + exchange.tag[:2]
                    self._output.append((exchange.response, exchange.peer))
        self._output += self._retransmitter.again(now_ms)
        self._exchanges.expire(now_ms, at_least=DROPPED_PER_TICK_MAX)
        self._uploads.expire(now_ms)
        self._reads.snapshots.expire(now_ms)
        return ()

    def deadline_ms(self) -> int | None:
        """The earliest of all that waits."""
        slow = self._slow
        while slow and slow[0][1] not in self._publishing and slow[0][1] not in self._reading:
            slow.popleft()
        deadlines = (
            slow[0][0] if slow else None,
            self._retransmitter.deadline_ms(),
            self._exchanges.deadline_ms(),
            self._uploads.deadline_ms(),
            self._reads.snapshots.deadline_ms(),
        )
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def take_output(self) -> Sequence[tuple[bytes, Peer]]:
        """The datagrams to send now."""
        out, self._output = self._output, []
        return out

    # ---- requests off the hot path

    def _receive_other(self, data: bytes, peer: Peer, now_ms: int, effects: list[Effect], *, full: bool) -> int:
        """Anything but a POST or PUT; how many requests were taken in, none or one.

        What is not a message is reset when it claims to be Confirmable, else passed over (RFC 7252, 4.2 and 4.3); so
        are Empty messages, which is how a peer pings, responses to nothing, and reserved classes of codes.
        """
        if len(data) < HEADER_BYTES or data[0] >> 6 != 1:
            return 0
        kind, code = data[0] >> 4 & 3, data[1]
        confirmable = kind == CON
        if kind in {ACK, RST}:
            if code == EMPTY and len(data) == HEADER_BYTES:
                self._retransmitter.settle(peer, data[2] << 8 | data[3])
            return 0
        exchange = Exchange(peer, data[2 : HEADER_BYTES + (data[0] & 15)], b"", now_ms, confirmable)
        try:
            packet = decode(data)
            if code == EMPTY or code >> 5:
                raise MessageFormatError("not a request")
            known = self._exchanges.find(peer, exchange.tag, now_ms)
            if known is not None:
                if known.response:
                    self._output.append((known.response, peer))
                return 0
            if full or not self._exchanges.has_room_for(peer):
                self._answer(exchange, busy("too many requests"), now_ms)
                return 0
            request = read_request(packet.options)
            if code != GET:
                raise ProtocolError(METHOD_NOT_ALLOWED, "GET, POST and PUT are all there is")
            begun = self._reads.begin(peer, request, now_ms)
        except ProtocolError as error:
            self._fail(exchange, error, now_ms)
            return 0
        if isinstance(begun, Answer):
            self._answer(exchange, begun, now_ms)
            return 0
        read, question = begun
        token = self._token(now_ms)
        self._reading[token] = _Reading(exchange, read)
        self._outstanding += 1
        self._exchanges.open(exchange)
        effects.append(Call(request=question, token=token))
        return 1

    def _complete_read(self, token: Token, outcome: Outcome, now_ms: int) -> None:
        reading = self._reading.pop(token, None)
        if reading is None:
            return
        self._outstanding -= 1
        self._exchanges.forget(reading.exchange)
        try:
            if outcome.error is not None:
                raise outcome.error
            answer = self._reads.finish(reading.read, outcome.value, now_ms)
        except (ProtocolError, Refusal) as error:
            self._fail(reading.exchange, error, now_ms)
        else:
            self._answer(reading.exchange, answer, now_ms)

    def _read_publish(self, data: bytes, end: int, exchange: Exchange, now_ms: int) -> tuple[Plan, bytes] | None:
        """What a POST or PUT publishes, read by way of its options; None for a block that is not the last.

        Raises `ProtocolError` and, for blocks, `Refusal` (OVERLOAD).
        """
        if len(data) < end:
            raise MessageFormatError("the token is cut short")
        options, stop = read_options(data, end)
        request = read_request(options)
        plan = make_plan(request, self._settings)
        body = data[stop + 1 :]
        block = request.block1
        if block is None:
            if len(body) > self._settings.max_body_bytes:
                raise ProtocolError(
                    REQUEST_ENTITY_TOO_LARGE, f"a body is at most {self._settings.max_body_bytes} bytes"
                )
            if plan.lasting:
                if len(self._plans) >= PLANS_MAX:
                    self._plans.clear()
                self._plans[data[end:stop]] = plan
            return plan, body
        whole = self._uploads.add(exchange.peer, request, body, now_ms)
        if block.number == 0:  # where smaller blocks may be asked for (RFC 7959, 2.5)
            block = block._replace(exponent=min(block.exponent, Block.of_size(self._settings.block_size).exponent))
        exchange.tail = encode_options([(BLOCK1, block.encode())])
        if whole is not None:
            return plan, whole
        self._exchanges.open(exchange)
        self._continued.append(exchange)
        self._answer(exchange, Answer(CONTINUE), now_ms)
        return None

    # ---- responses

    def _token(self, now_ms: int) -> Token:
        """A new token; what waits for it is acknowledged if it takes too long."""
        self._next_token += 1
        token = Token(self._next_token)
        self._slow.append((now_ms + self._settings.ack_delay_ms, token))
        return token

    def _fail(self, exchange: Exchange, error: ProtocolError | Refusal, now_ms: int) -> None:
        """Answer what went wrong as far as the message layer lets it be answered."""
        body_max = self._settings.max_body_bytes
        if isinstance(error, Refusal):
            self._answer(exchange, refused(error, max_body_bytes=body_max), now_ms)
        elif isinstance(error, MessageFormatError):
            if exchange.confirmable:
                self._output.append((bytes((0x40 | RST << 4, EMPTY)) + exchange.tag[:2], exchange.peer))
        elif exchange.confirmable or error.code != BAD_OPTION:  # else rejected in silence (RFC 7252, 5.4.1)
            self._answer(exchange, wrong(error, max_body_bytes=body_max), now_ms)

    def _answer(self, exchange: Exchange, answer: Answer, now_ms: int) -> None:
        """Send a response: in the acknowledgement if that is still to be sent, else in a message of its own."""
        body = encode_options(answer.options) if answer.options else exchange.tail
        if answer.payload:
            body += b"\xff" + answer.payload
        peer, tag = exchange.peer, exchange.tag
        length = len(tag) - 2
        if exchange.confirmable and not exchange.acked:
            exchange.response = bytes((0x40 | ACK << 4 | length, answer.code)) + tag + body
            self._output.append((exchange.response, peer))
            return
        own_mid = bytes((tag[0] ^ self._mask[0], tag[1] ^ self._mask[1]))
        reliable = exchange.confirmable and not self._retransmitter.full
        kind = CON if reliable else NON
        datagram = bytes((0x40 | kind << 4 | length, answer.code)) + own_mid + tag[2:] + body
        if reliable:
            self._retransmitter.add(peer, int.from_bytes(own_mid, "big"), datagram, now_ms)
        self._output.append((datagram, peer))
