"""GET and FETCH requests in flight: from the request to its response, once the gateway has answered."""

from collections.abc import Callable, Sequence

import msgspec

from adapters.coap.codec.registry import CONTINUE, FETCH, IPATCH, MAX_AGE
from adapters.coap.codec.wire import Packet, encode_options
from adapters.coap.exchanges.answers import Answer
from adapters.coap.exchanges.echo import EchoVerifier
from adapters.coap.exchanges.exchanges import Exchange, Exchanges
from adapters.coap.exchanges.sender import Sender
from adapters.coap.messages.request import read_request
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.observe import Observers
from adapters.coap.reading.listings import Listings
from adapters.coap.reading.reads import Read, Reads
from adapters.coap.topics.topic import TopicRequested, is_for_topics
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port.adapter import Call, Effect, Outcome, Token
from gateway.port.reads import LastValuesPage
from store.api.keys import Page

HEADER_BYTES = 4


class _Reading(msgspec.Struct, frozen=True):
    """A request in flight. Its response may have `room` bytes; None: as many as it takes."""

    exchange: Exchange
    read: Read
    room: int | None
    remembered: bool  # repeats are recognised


class Readings:
    """The requests of one socket that read."""

    def __init__(
        self,
        settings: CoapOptions,
        *,
        reads: Reads,
        sender: Sender,
        observers: Observers,
        exchanges: Exchanges,
        echo: EchoVerifier,
    ) -> None:
        self._settings = settings
        self._reads = reads
        self._sender = sender
        self._observers = observers
        self._exchanges = exchanges
        self._echo = echo
        self._listings = Listings()
        self._reading: dict[Token, _Reading] = {}

    def __len__(self) -> int:
        return len(self._reading)

    def waiting(self, token: Token) -> Exchange | None:
        """Returns the exchange of a request in flight."""
        reading = self._reading.get(token)
        return None if reading is None else reading.exchange

    def begin(
        self,
        exchange: Exchange,
        packet: Packet,
        size_bytes: int,
        *,
        new_token: Callable[[int], Token],
        reliable: bool,
        now_ms: int,
    ) -> Sequence[Effect] | None:
        """Answers a request at once, or returns a request to the gateway; None where it is answered.

        A request that is repeated, and read again, neither begins nor ends an observation.
        Raises `ProtocolError`, `Refusal` and `TopicRequested`.
        """
        request = read_request(packet.options, packet.code, reliable=reliable)
        if packet.code == IPATCH and is_for_topics(request.path, self._settings):
            self._echo.check_fresh(exchange.peer, request.echo, now_ms)
            raise TopicRequested(request, packet.payload)
        in_blocks = packet.code == FETCH and request.block1 is not None
        if not in_blocks:  # else a transfer that fails has to be told so
            exchange.silence = request.silence
        else:  # it takes the room of those that have to be fresh
            self._echo.check_fresh(exchange.peer, request.echo, now_ms)
        room = self._echo.room(exchange.peer, request.echo, size_bytes, now_ms)
        if room is not None and (request.observe == 0 or in_blocks):
            raise self._echo.challenge(exchange.peer, now_ms)
        begun = self._reads.begin(exchange.peer, packet.code, request, packet.payload, now_ms)
        exchange.silence = request.silence
        if in_blocks:
            exchange.tail = encode_options([self._reads.uploads.acknowledged(request)])
        if isinstance(begun, Answer):
            if begun.code == CONTINUE:
                self._exchanges.open(exchange)
                self._exchanges.remember([exchange], now_ms)
            self._answer(exchange, begun, room, now_ms)
            return None
        read, question = begun
        self._listings.check_room(question, request)
        token = new_token(now_ms)
        remembered = exchange.read_again
        if remembered:
            exchange.read_again = False
        else:
            self._exchanges.open(exchange)
            remembered = self._observers.asked(exchange, read, now_ms) and not reliable
            if remembered:
                self._exchanges.remember([exchange], now_ms)
        self._reading[token] = _Reading(exchange, read, room, remembered)
        return (*self._observers.take_effects(), *self._listings.ask(question, request, token))

    def next_list(self) -> Sequence[Effect]:
        """Returns the call for the list of addresses that is asked for next."""
        return self._listings.next()

    def complete(
        self, token: Token, outcome: Outcome, *, new_token: Callable[[], Token], now_ms: int
    ) -> Sequence[Effect]:
        """Answers a GET or FETCH, or all that wait for the same links; asks for the next page of a FETCH."""
        value = outcome.value
        for reading in [self._reading.pop(one) for one in self._listings.answered(token) if one in self._reading]:
            exchange = reading.exchange
            try:
                if outcome.error is not None:
                    raise outcome.error
                if isinstance(value, LastValuesPage | Page):
                    question = self._reads.more(reading.read, value)
                    if question is not None:
                        following = new_token()
                        self._reading[following] = reading
                        return (Call(request=question, token=following),)
                    value = reading.read.found if isinstance(value, LastValuesPage) else value
                if reading.read.topics is not None:
                    value = self._reads.topics(reading.read, value)
                elif isinstance(value, list) and reading.read.observable is None:
                    value = self._reads.links(reading.read, value)
                max_age_s = self._observers.max_age_s(exchange)
                answer = self._reads.finish(reading.read, value, now_ms, max_age_s=max_age_s)
            except (ProtocolError, Refusal) as error:
                self._observers.failed(exchange)
                self._sender.fail(exchange, error, now_ms)
                self._remember(reading, now_ms, read_again=False)
            else:
                answer = self._observers.answered(exchange, answer, now_ms)
                self._answer(exchange, answer, reading.room, now_ms)
                self._observers.begun(exchange, now_ms)
                # Another Max-Age has to be that of the moment when it is sent (RFC 7252, 5.10.5).
                self._remember(reading, now_ms, read_again=True, lasting=(MAX_AGE, b"") in answer.options)
        return ()

    def _remember(self, reading: _Reading, now_ms: int, *, read_again: bool, lasting: bool = True) -> None:
        """Forgets a request that may be handled anew where it is repeated, unless it observes.

        With `lasting` its response is kept while there is room. Remembers one whose response is a message of its own:
        another one would have the same Message ID.
        """
        exchange = reading.exchange
        apart = exchange.acked or not exchange.confirmable
        if reading.remembered and read_again and not apart:
            exchange.read_again, exchange.response = True, b""
        elif apart and not reading.remembered:
            self._exchanges.remember([exchange], now_ms)
        elif not reading.remembered and not (lasting and self._exchanges.keep_read(exchange)):
            self._exchanges.forget(exchange)

    def _answer(self, exchange: Exchange, answer: Answer, room: int | None, now_ms: int) -> None:
        """Sends a response; asks an endpoint for an Echo first where the response is too large for one not verified.

        A request for an Echo is never retransmitted, so it also replaces a response that would be (RFC 9175, 2.4).
        """
        if room is not None:
            size_bytes = HEADER_BYTES + len(encode_options(answer.options)) + 1 + len(answer.payload)
            if exchange.acked or size_bytes > room:
                exchange.confirmable &= not exchange.acked
                self._sender.fail(exchange, self._echo.challenge(exchange.peer, now_ms), now_ms)
                return
        self._sender.answer(exchange, answer, now_ms)
