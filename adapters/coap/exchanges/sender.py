"""The sending of responses: in the acknowledgement, or in a message of their own (RFC 7252, 5.2)."""

from collections.abc import Sequence

from adapters.coap.codec.registry import ACK, BAD_OPTION, CON, CONTINUE, EMPTY, NON, RST
from adapters.coap.codec.wire import MessageFormatError, encode_options, read_options
from adapters.coap.exchanges.answers import Answer, EchoRequired, refused, unwanted, wrong
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.exchanges.message_ids import MessageIds
from adapters.coap.exchanges.separate import SeparateResponses
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port.adapter import Peer, Random

SUCCESS = 2  # the class of codes


class Sender:
    """Makes datagrams of answers, and sends those again that have to be."""

    def __init__(self, settings: CoapOptions, mids: MessageIds, *, random: Random) -> None:
        self.max_body_bytes = settings.max_body_bytes
        self.mids = mids
        self.output: list[tuple[bytes, Peer]] = []
        self.separate = SeparateResponses(settings, random=random)

    def take(self) -> Sequence[tuple[bytes, Peer]]:
        """Returns the datagrams to send now."""
        out, self.output = self.output, []
        return out

    def acknowledge(self, exchange: Exchange) -> None:
        """Sends an empty acknowledgement: the response will take longer (RFC 7252, 5.2.2)."""
        exchange.acked = True
        exchange.response = bytes((0x40 | ACK << 4, EMPTY)) + exchange.tag[:2]
        self.output.append((exchange.response, exchange.peer))

    def fail(self, exchange: Exchange, error: ProtocolError | Refusal, now_ms: int) -> None:
        """Answers with an error, as far as the message layer allows an answer."""
        if isinstance(error, EchoRequired):
            exchange.silence = 0  # like 2.31: without it the client cannot go on
        if isinstance(error, Refusal):
            self.answer(exchange, refused(error, max_body_bytes=self.max_body_bytes), now_ms)
        elif isinstance(error, MessageFormatError):
            if exchange.confirmable:
                self.output.append((bytes((0x40 | RST << 4, EMPTY)) + exchange.tag[:2], exchange.peer))
        elif exchange.confirmable or error.code != BAD_OPTION:  # else rejected in silence (RFC 7252, 5.4.1)
            self.answer(exchange, wrong(error, max_body_bytes=self.max_body_bytes), now_ms)

    def answer(self, exchange: Exchange, answer: Answer, now_ms: int) -> None:
        """Sends a response: in the acknowledgement if that is still to be sent, else in a message of its own.

        A response of a class that the client does not want is left out (RFC 7967), but for 2.31, which asks for more.
        """
        if exchange.silence and unwanted(exchange.silence, answer.code) and answer.code != CONTINUE:
            if exchange.confirmable and not exchange.acked:
                self.acknowledge(exchange)
            return
        options = answer.options
        if options and exchange.tail and answer.code >> 5 == SUCCESS:
            options = (*options, *read_options(exchange.tail, 0)[0])
        body = encode_options(options) if options else exchange.tail
        if answer.payload:
            body += b"\xff" + answer.payload
        peer, tag = exchange.peer, exchange.tag
        length = len(tag) - 2
        if exchange.confirmable and not exchange.acked:
            exchange.response = bytes((0x40 | ACK << 4 | length, answer.code)) + tag + body
            self.output.append((exchange.response, peer))
            return
        mid = self.mids.of_response(peer, exchange.mid, now_ms)
        reliable = exchange.confirmable and not self.separate.full
        kind = CON if reliable else NON
        datagram = bytes((0x40 | kind << 4 | length, answer.code, mid >> 8, mid & 0xFF)) + tag[2:] + body
        if reliable:
            self.output += self.separate.send(peer, mid, datagram, now_ms)
        else:
            self.output.append((datagram, peer))
