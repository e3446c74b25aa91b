"""Commands: messages whose answer is the response, by `Prefer: wait=SECONDS` (RFC 7240, 4.3).

The gateway is told first which answer is expected, so that none is missed; then the message is stored; then the
answer is waited for. The message says where the answer is to go, and by which correlation it is known.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from adapters.cloudevents import AttributeRefusal
from adapters.http.handlers.actions import Ask, Command, HandlerContext, Store, Stored
from adapters.http.handlers.parsing.preferences import preference
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response
from adapters.http.wire.transport import Exchange
from gateway.domain.address import escape_level
from gateway.domain.errors import Refusal
from gateway.domain.idempotency import IdempotencyKey
from gateway.port.adapter import Outcome, Request, Token
from gateway.port.queues import answers_at
from gateway.port.reads import ANSWER_WAIT_MS_MAX, AwaitAnswer, ExpectAnswer, ForgetAnswer
from store.api.message import Message

_NAMELESS: Final = "-"
_CORRELATION_BYTES: Final = 16
_SECONDS: Final = re.compile("0*([1-9][0-9]*)")  # delta-seconds (RFC 9110, 10.2.3), more than none


def wait_s(request: HttpRequest) -> int | None:
    """Returns for how long a client wants to wait for an answer; None where it does not."""
    found = _SECONDS.fullmatch(preference(request, "wait") or "")
    return None if found is None else min(int(found[1][:9]), ANSWER_WAIT_MS_MAX // 1_000)


def answerable(message: Message, context: HandlerContext, key: IdempotencyKey | None) -> Message:
    """Returns a command that says where its answer is to go, and by which correlation it is known.

    The default address is the user's own. A request that is stored once expects the same answer when it is sent again.
    Raises `AttributeRefusal`.
    """
    address = answers_at(message)
    if address is None:
        address = f"{context.options.answers_prefix}/{_own_place(context.principal.name)}"
        message = msgspec.structs.replace(message, reply_to=address)
    if address == message.address:
        raise AttributeRefusal("x-reply-to", "is the address of the command itself")
    if not message.correlation:
        assert context.random is not None
        correlation = f"{context.random.getrandbits(128):032x}" if key is None else _correlation(context, key)
        message = msgspec.structs.replace(message, correlation=correlation.encode())
    return message


def _own_place(name: str) -> str:
    """Returns the last levels of a user's own address; no two users share them, nor does one with nameless clients."""
    return _NAMELESS if not name else escape_level(name) if name != _NAMELESS else f"{_NAMELESS}/{_NAMELESS}"


def _correlation(context: HandlerContext, key: IdempotencyKey) -> str:
    """Returns the same correlation for the same key at all gateways; nobody else can tell it from the key."""
    return hmac.digest(context.principal.secret, b"answer to " + key.name, "sha256")[:_CORRELATION_BYTES].hex()


def command(
    message: Message, context: HandlerContext, store: Store, seconds: int, answered: Callable[[Message], Response]
) -> Command:
    """Returns the action that stores a message and responds with the answer to it."""
    address, correlation = answers_at(message), message.correlation
    assert address is not None
    assert correlation is not None
    expected = ExpectAnswer(
        number=0,
        address=address,
        correlation=correlation,
        wait_ms=1_000 * seconds,
        host=context.host,
    )
    applied = (b"preference-applied", b"wait=%d" % seconds)

    def reply(answer: Message | None, accepted: Response) -> Response:
        response = accepted if answer is None else answered(answer)
        return msgspec.structs.replace(response, headers=[*response.headers, applied])

    return Command(expected, store, reply)


def pending(message: Message, receipt: dict[str, Any]) -> dict[str, Any]:
    """Returns the receipt of a command without an answer yet: where it is to come, and its correlation."""
    found = {**receipt, "replyto": answers_at(message)}
    correlation = message.correlation or b""
    try:
        return {**found, "correlationid": correlation.decode()}
    except UnicodeDecodeError:
        return {**found, "correlationdata": b64encode(correlation).decode()}


class Commands:
    """The commands of one connection. `call` asks the gateway, `respond` answers a request."""

    def __init__(
        self,
        *,
        call: Callable[[Request[Any]], Token],
        respond: Callable[[Exchange, HttpRequest, Response], None],
    ) -> None:
        self._call = call
        self._respond = respond
        self._commands: dict[Exchange, tuple[HttpRequest, Command]] = {}
        self._awaited: dict[Token, tuple[Exchange, Response]] = {}  # those that are given up included

    def begin(self, exchange: Exchange, request: HttpRequest, action: Command) -> Ask:
        """Takes a command, and returns the question whose answer has it stored."""
        self._commands[exchange] = request, action
        expected = msgspec.structs.replace(action.expected, number=int(exchange))
        store = action.store._replace(reply=partial(self._stored, exchange))
        return Ask(expected, lambda _: store if exchange in self._commands else None, partial(self._refused, exchange))

    def _refused(self, exchange: Exchange, error: Refusal) -> Response | None:
        found = self._commands.pop(exchange, None)
        return None if found is None else found[1].store.reply(Stored({}, {0: error}))

    def _stored(self, exchange: Exchange, stored: Stored) -> Response | None:
        """Waits for the answer to a command that is stored; returns the refusal of one that is not."""
        found = self._commands.get(exchange)
        if found is None:
            return None
        response = found[1].store.reply(stored)
        if stored.refused or response is None:
            return response
        places = stored.positions[0] if stored.recalled or stored.repeated else ()
        asked = AwaitAnswer(number=int(exchange), behind=next(iter(places), None))
        self._awaited[self._call(asked)] = exchange, response
        return None

    def completed(self, token: Token, outcome: Outcome) -> bool:
        """Responds with the answer that has come, or without one; False when the token is no command's."""
        awaited = self._awaited.pop(token, None)
        if awaited is None:
            return False
        exchange, accepted = awaited
        found = self._commands.pop(exchange, None)
        if found is not None:
            request, action = found
            self._respond(exchange, request, action.reply(outcome.value, accepted))
        return True

    def gone(self, exchange: Exchange) -> None:
        """Gives up a command whose response is not wanted any more, or known already."""
        if self._commands.pop(exchange, None) is not None:
            self._call(ForgetAnswer(number=int(exchange)))
