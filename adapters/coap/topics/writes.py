"""Requests that create, change and delete topic resources, step by step: each step asks the gateway, or publishes.

POST /ps                    store the key, if it is not there; publish what the topic-data begins with
POST, PUT, iPATCH a topic   read the key; store it, if it is as it was read
DELETE a topic              read the key; publish a deletion of the topic-data; remove the key
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from adapters.coap.codec.registry import (
    BAD_OPTION,
    CHANGED,
    CONFLICT,
    CONTENT_FORMAT,
    CONTINUE,
    CREATED,
    DELETE,
    DELETED,
    IPATCH,
    LOCATION_PATH,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    POST,
    PUT,
    UNSUPPORTED_CONTENT_FORMAT,
)
from adapters.coap.codec.wire import encode_uint
from adapters.coap.exchanges.answers import Answer
from adapters.coap.exchanges.exchanges import Exchange, Exchanges
from adapters.coap.exchanges.sender import Sender
from adapters.coap.messages.mapping import MessagePlan
from adapters.coap.messages.request import CoapRequest
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.messages.times import SocketTime
from adapters.coap.topics.topic import CONTENT_FORMAT as FORMAT
from adapters.coap.topics.topic import (
    Topic,
    created,
    decoded,
    id_of,
    kept,
    malformed,
    patched,
    path_of,
    read_properties,
    replaced,
)
from gateway.domain.address import unescape_level
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port.adapter import Call, Effect, Outcome, Publish, Request, Token
from gateway.port.kv import GetKey, KeyConflict, Match, RemoveKey, StoreKey
from store.api.keys import EXISTS, Entry, Transacted
from store.api.message import Message

Next: TypeAlias = Callable[[Outcome, int], Effect | Answer]  # takes an outcome and the time


class TopicPlans(Protocol):
    """The reading of requests' options and bodies."""

    def make(self, request: CoapRequest) -> MessagePlan:
        """Returns the plan of a request that publishes."""

    def body(self, request: CoapRequest, part: bytes, exchange: Exchange, now_ms: int) -> bytes | None:
        """Returns a request's body, which may come in blocks; None for a block that is not the last."""


class _Write(NamedTuple):
    """A request in flight, and what follows from the outcome that it waits for."""

    exchange: Exchange
    following: Next


class TopicWrites:
    """The requests of one socket that write topic resources. `new_token` makes the token of a step."""

    def __init__(
        self,
        settings: CoapOptions,
        time: SocketTime,
        *,
        sender: Sender,
        exchanges: Exchanges,
        new_token: Callable[[int], Token],
        plans: TopicPlans,
    ) -> None:
        self._settings = settings
        self._sender = sender
        self._exchanges = exchanges
        self._new_token = new_token
        self._plans = plans
        self._time = time
        self._writes: dict[Token, _Write] = {}

    def __len__(self) -> int:
        return len(self._writes)

    def waiting(self, token: Token) -> Exchange | None:
        """Returns the exchange of a request in flight."""
        write = self._writes.get(token)
        return None if write is None else write.exchange

    def begin(self, exchange: Exchange, code: int, request: CoapRequest, body: bytes, now_ms: int) -> Sequence[Effect]:
        """Returns the first step of a request; nothing where it is answered with its error."""
        if request.block1 is None:  # else a transfer that fails has to be told so
            exchange.silence = request.silence
        try:
            whole = self._plans.body(request, body, exchange, now_ms)
            step = None if whole is None else self._first(exchange, code, request, whole, now_ms)
        except (ProtocolError, Refusal) as error:
            self._sender.fail(exchange, error, now_ms)
            return ()
        self._exchanges.open(exchange)
        self._exchanges.remember([exchange], now_ms)
        if step is None:
            self._sender.answer(exchange, Answer(CONTINUE), now_ms)
            return ()
        exchange.silence = request.silence
        return (step,)

    def completed(self, token: Token, outcome: Outcome, now_ms: int) -> Sequence[Effect] | None:
        """Returns the next step of a request, or answers it; None where the token is of no request."""
        write = self._writes.pop(token, None)
        if write is None:
            return None
        try:
            found = write.following(outcome, now_ms)
        except (ProtocolError, Refusal) as error:
            self._sender.fail(write.exchange, error, now_ms)
            return ()
        if not isinstance(found, Answer):
            return (found,)
        self._sender.answer(write.exchange, found, now_ms)
        return ()

    # ---- steps

    def _first(self, exchange: Exchange, code: int, request: CoapRequest, body: bytes, now_ms: int) -> Effect:
        if request.condition is not None:
            raise ProtocolError(BAD_OPTION, "conditions are not for topics")
        number = self._settings.topic_format
        if code != DELETE:
            if request.content_format not in {None, number}:
                raise ProtocolError(UNSUPPORTED_CONTENT_FORMAT, f"a topic is of Content-Format {number}")
            if request.accept not in {None, number}:
                raise ProtocolError(NOT_ACCEPTABLE, f"Accept: a topic is of Content-Format {number}")
        id_ = id_of(request.path)
        if id_ is None:
            if code != POST:
                raise ProtocolError(METHOD_NOT_ALLOWED, "topics are created by POST; links can only be read")
            return self._create(exchange, body, now_ms)
        if code == DELETE:
            return self._ask(exchange, self._get(id_), self._delete_of(exchange), now_ms)
        properties = kept(read_properties(body, self._settings))
        change = patched if code == IPATCH else replaced
        assert code in {POST, PUT, IPATCH}

        def change_it(outcome: Outcome, at_ms: int) -> Effect | Answer:
            topic, entry = self._found(outcome)
            changed = change(topic, properties)
            match = Match(any_of=(entry.revision,))
            stored = StoreKey(key=id_, value=changed.encoded(), match=match, namespace=self._namespace)
            return self._ask(exchange, stored, lambda done, _: self._shown(done, CHANGED, changed), at_ms)

        return self._ask(exchange, self._get(id_), change_it, now_ms)

    @property
    def _namespace(self) -> str:
        return self._settings.topics_namespace

    def _get(self, id_: str) -> Request[Any]:
        return GetKey(key=id_, namespace=self._namespace)

    def _ask(self, exchange: Exchange, request: Request[Any], following: Next, now_ms: int) -> Effect:
        token = self._new_token(now_ms)
        self._writes[token] = _Write(exchange, following)
        return Call(request=request, token=token)

    def _publish(self, exchange: Exchange, message: Message, following: Next, now_ms: int) -> Effect:
        token = self._new_token(now_ms)
        self._writes[token] = _Write(exchange, following)
        return Publish((message,), token)

    def _create(self, exchange: Exchange, body: bytes, now_ms: int) -> Effect:
        topic, initial = created(kept(read_properties(body, self._settings)))
        message: Message | None = None
        if initial is not None:
            plan, host = self._plan(topic, topic.properties[FORMAT]), str(exchange.peer[0])
            message = plan.message(
                initial, confirmable=exchange.confirmable, host=host, now_ms=self._time.wall_ms(now_ms)
            )
        match = Match(none_of=(EXISTS,))
        key = StoreKey(key=topic.id, value=topic.encoded(), match=match, namespace=self._namespace)

        def stored(outcome: Outcome, at_ms: int) -> Effect | Answer:
            if isinstance(outcome.error, KeyConflict):
                raise ProtocolError(CONFLICT, "topic-name: there is such a topic")
            answer = self._shown(outcome, CREATED, topic)
            if message is None:
                return answer
            assert isinstance(outcome.value, Transacted)
            match = Match(any_of=(outcome.value.revision,))  # a topic that another client has changed since stays
            removal = RemoveKey(key=topic.id, match=match, namespace=self._namespace)
            return self._publish(exchange, message, lambda done, then_ms: begun(answer, removal, done, then_ms), at_ms)

        def begun(answer: Answer, removal: RemoveKey, outcome: Outcome, at_ms: int) -> Effect | Answer:
            refusal = outcome.error or outcome.refused.get(0)
            if refusal is None:
                return answer
            # A topic as it was asked for, or none.
            return self._ask(exchange, removal, lambda _done, _: _raised(refusal), at_ms)

        return self._ask(exchange, key, stored, now_ms)

    def _plan(self, topic: Topic, content_format: int | None = None) -> MessagePlan:
        """Returns the plan of a PUT or DELETE of the topic-data."""
        path = ("ps", *[unescape_level(level) for level in topic.address.split("/")])
        return self._plans.make(CoapRequest(path=path, content_format=content_format))

    def _delete_of(self, exchange: Exchange) -> Next:
        def delete(outcome: Outcome, now_ms: int) -> Effect | Answer:
            topic, entry = self._found(outcome)
            match = Match(any_of=(entry.revision,))
            removal = RemoveKey(key=topic.id, match=match, namespace=self._namespace)
            plan, host = self._plan(topic), str(exchange.peer[0])
            wall_ms = self._time.wall_ms(now_ms)
            message = plan.deletion(confirmable=exchange.confirmable, host=host, now_ms=wall_ms)
            return self._publish(exchange, message, lambda done, at_ms: remove(removal, done, at_ms), now_ms)

        def remove(removal: RemoveKey, outcome: Outcome, now_ms: int) -> Effect | Answer:
            refusal = outcome.error or outcome.refused.get(0)
            if refusal is not None:
                raise refusal
            return self._ask(exchange, removal, lambda done, _: _deleted(done), now_ms)

        return delete

    def _found(self, outcome: Outcome) -> tuple[Topic, Entry]:
        """Returns the topic that was read, and its entry. Raises `Refusal`, and `ProtocolError` (4.04, 5.00)."""
        if outcome.error is not None:
            raise outcome.error
        entry = outcome.value
        if entry is None:
            raise ProtocolError(NOT_FOUND, "there is no such topic")
        assert isinstance(entry, Entry)
        topic = decoded(entry.value, self._settings)
        if topic is None:
            raise malformed()
        return topic, entry

    def _shown(self, outcome: Outcome, code: int, topic: Topic) -> Answer:
        """Returns the answer with the whole topic, once it is stored."""
        if isinstance(outcome.error, KeyConflict):
            raise _changed_meanwhile()
        if outcome.error is not None:
            raise outcome.error
        location = [(LOCATION_PATH, part.encode()) for part in path_of(topic.id)] if code == CREATED else []
        options = (*location, (CONTENT_FORMAT, encode_uint(self._settings.topic_format)))
        return Answer(code, options, topic.encoded())


def _changed_meanwhile() -> ProtocolError:
    return ProtocolError(CONFLICT, "the topic was changed meanwhile")


def _deleted(outcome: Outcome) -> Answer:
    if isinstance(outcome.error, KeyConflict):
        raise _changed_meanwhile()
    if outcome.error is not None:
        raise outcome.error
    return Answer(DELETED)


def _raised(refusal: Refusal) -> Answer:
    raise refusal
