"""The table of routes, and the gateway request that each HTTP request becomes.

A handler answers with an action: a response at once; messages to store; a question to the gateway; an event stream.
Handlers refuse a request by `Refusal` and `HttpError`.

    POST    /events             200, once durable: {"id","position"}, or a list of them for a batch
    POST    /topics/{address}   201, once durable, with Location: {"id","position"}; with `Prefer: wait` 200 the answer
    GET     /topics/{address}   200 the last value, 304, or 404
    GET     /topics/{filter}    200 a batch of the last values of all addresses that it matches, by address
    DELETE  /timers/{id}        204, the message will not be delivered, or 404
    GET     /topics?prefix=     200 a JSON list of addresses
    GET     /subscribe?filter=  200 server-sent events; `where=` and `type=` pick among them
    GET     /messages?key=      200 a batch of stored events, newest first, by one of key, address and id; `wait=`
    /kv and below               keys and values: `adapters.http.handlers.keys`
    /groups and below           consumers that read a topic together: `adapters.http.handlers.groups`
    /subscriptions and below    events that are delivered to sinks: `adapters.http.handlers.subscriptions`
    GET     /openapi.json       200 all of this in OpenAPI 3.1, and at /docs for readers: `adapters.http.openapi`
    OPTIONS anywhere            204 with Allow
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from adapters.cloudevents import STRUCTURED_AVRO, STRUCTURED_JSON, STRUCTURED_PROTOBUF, AttributeRefusal, BatchRefusal
from adapters.http.handlers import descriptions, group_leases, groups, keys, subscriptions
from adapters.http.handlers.actions import (
    Action,
    Ask,
    Command,
    Follow,
    Handler,
    HandlerContext,
    Respond,
    RowByRow,
    Store,
    Stored,
)
from adapters.http.handlers.commands import answerable, command, pending, wait_s
from adapters.http.handlers.finding import (
    condition,
    finding,
    last_values,
    last_values_response,
    messages_response,
    names_queue,
    queue_reading,
    queue_response,
)
from adapters.http.handlers.messages import (
    event_response,
    lenient,
    message_response,
    name_device,
    read_events,
    read_message,
)
from adapters.http.handlers.once import answerable_key, event_keys, once_key
from adapters.http.handlers.parsing.query import read_number, read_query
from adapters.http.handlers.sse import read_id
from adapters.http.wire.request import HttpError, HttpRequest, percent_decode, qualities
from adapters.http.wire.response import Response, json_response, refused
from gateway.domain.cursor import Cursor
from gateway.domain.errors import Refusal
from gateway.domain.filters import check_filter, is_filter
from gateway.domain.principal import Principal
from gateway.port.adapter import CancelTimer
from gateway.port.reads import LastValue, ListAddresses
from gateway.port.tickets import timer_ticket
from store.api.message import Message, encode

LIST_MAX: Final = 1_000  # addresses listed at most
_VARY: Final = (b"vary", b"accept, prefer")


# ---- /events


def post_events(request: HttpRequest, context: HandlerContext) -> Action:
    """Publishes events in binary, structured or batch mode; a batch is stored only if all its events are events.

    With `Prefer: handling=lenient` those that are events are stored, and each event has its own answer.
    """
    try:
        found, batch = read_events(
            request, context.principal, context.options, now_ms=context.now_ms, host=context.host
        )
    except BatchRefusal as refusal:
        errors = [_index_error(index, error) for index, error in refusal.refused.items()]
        return Respond(refused(refusal, errors=errors))
    messages = [one for one in found if isinstance(one, Message)]
    each = batch and lenient(request)

    def reply(stored: Stored) -> Response:
        if each:
            return _each_stored(found, stored, context.principal)
        return _events_stored(messages, stored, context.principal, batch=batch)

    if request.get(b"if-match") is not None:  # it never holds here (RFC 9110, 13.1.1)
        raise HttpError(412, "if-match: /events has no representation")
    if not messages:
        return Respond(reply(Stored({}, {})) if each else json_response(200, []))
    key = once_key(request, context)
    return Store(messages, reply, key, () if key is not None else event_keys(messages, context))


def _events_stored(messages: Sequence[Message], stored: Stored, principal: Principal, *, batch: bool) -> Response:
    receipts = _receipts(principal, messages, stored)
    if not stored.refused:
        return json_response(200, receipts if batch else receipts[0])
    first = next(iter(stored.refused.values()))
    if not batch:
        return refused(first)
    kept = [{"index": index, **receipt} for index, receipt in zip(stored.positions, receipts, strict=True)]
    return refused(first, errors=[_index_error(*item) for item in stored.refused.items()], stored=kept)


def _each_stored(found: Sequence[Message | Refusal], stored: Stored, principal: Principal) -> Response:
    """Answers each event of a batch by itself; 207 where one of them was refused (RFC 4918, 11.1)."""
    answers: list[dict[str, Any]] = []
    number = 0  # of the messages that were to be stored
    for index, one in enumerate(found):
        refusal: Refusal | None = one if isinstance(one, Refusal) else stored.refused.get(number)
        if refusal is not None:
            answers.append({"status": refused(refusal).status, **_index_error(index, refusal)})
        elif isinstance(one, Message):
            answers.append({"status": 200, "index": index, **_receipt(principal, one, stored, number)})
        number += isinstance(one, Message)
    status = 200 if all(answer["status"] == 200 for answer in answers) else 207
    return json_response(status, answers, (b"preference-applied", b"handling=lenient"), (b"vary", b"prefer"))


def _index_error(index: int, refusal: Refusal) -> dict[str, Any]:
    error = {"index": index, "cause": refusal.cause.value, "detail": refusal.detail}
    attribute = getattr(refusal, "attribute", None)
    return error if attribute is None else {**error, "attribute": attribute}


def _receipts(principal: Principal, messages: Sequence[Message], stored: Stored) -> list[dict[str, Any]]:
    """Returns the answer of each message that was stored, as `_receipt` does."""
    places = stored.positions
    delayed = stored.deliver_at_ms is not None or [one for one in messages if one.deliver_at_ms is not None]
    if isinstance(places, RowByRow) and not delayed and not stored.repeated:
        texts = places.texts()  # one loop for all events of a batch: 0.3 us each, where `_receipt` takes 0.8
        return [{"id": one.id or at, "position": at} for one, at in zip(messages, texts, strict=True)]
    return [_receipt(principal, messages[index], stored, index) for index in places]


def _receipt(principal: Principal, message: Message, stored: Stored, index: int) -> dict[str, Any]:
    """Returns the answer to a publisher: the id, which is the position where the publisher gave none.

    A message that is to be delivered later has no place among the others yet: it has the timer that it waits for.
    """
    positions = stored.positions[index]
    if message.deliver_at_ms is None and stored.deliver_at_ms is None and positions and not stored.repeated:
        first = str(positions[0])
        return {"id": message.id or first, "position": first}
    if stored.deliver_at_ms is not None:
        message = replace(message, deliver_at_ms=stored.deliver_at_ms)
    timer = timer_ticket(principal, message, positions)
    if timer is not None:
        return {"id": message.id or None, "position": None, "timer": timer}
    position = str(positions[0]) if positions else None
    receipt: dict[str, Any] = {"id": message.id or position, "position": position}
    return {**receipt, "repeated": True} if index in stored.repeated else receipt


# ---- /topics


def post_topic(request: HttpRequest, context: HandlerContext) -> Action:
    """Publishes one message to an address; with `Prefer: wait` it is a command, whose answer is the response."""
    message = read_message(request, context.below, context.principal, context.options, now_ms=context.now_ms)
    message = name_device(message, context.principal, context.options, context.host)
    location = (b"location", f"/topics/{quote(context.below, safe='/')}".encode())
    key = once_key(request, context)
    keys = () if key is not None else event_keys((message,), context)
    seconds = wait_s(request) if message.deliver_at_ms is None else None
    if seconds is not None:
        given, message = message, answerable(message, context, next(iter(keys), key))
        if message is not given:  # the one that was stored without a wait is another message
            key, keys = key and answerable_key(key), [answerable_key(one) for one in keys]

    def reply(stored: Stored) -> Response:
        if stored.refused:
            return refused(stored.refused[0])
        receipt = _receipt(context.principal, message, stored, 0)
        if seconds is None:
            return json_response(201, receipt, location)
        return json_response(202, pending(message, receipt), location, _VARY)

    store = Store((message,), reply, key, keys)
    if seconds is None:
        return _if_conditions_hold(request, context.below, store)
    kind = _wanted_kind(request)

    def answered(answer: Message) -> Response:
        if kind is not None:
            return event_response(answer, kind, _VARY)
        return message_response(answer, context.options, _VARY)

    return _if_conditions_hold(request, context.below, command(message, context, store, seconds, answered))


def _if_conditions_hold(request: HttpRequest, address: str, store: Store | Command) -> Action:
    """Returns the action of a request that stores only if its conditions on the last value hold (RFC 9110, 13.2.2).

    A tag of any form of the last value is its tag. Between the answer and the message another one may be stored.
    """
    required, wanted = request.get(b"if-match"), request.get(b"if-none-match")
    if required is None and wanted is None:
        return store

    def reply(message: Message | None) -> Response | Store | Command:
        tags = [] if message is None else [_etag(message, kind).decode() for kind in _TAGS]
        if required is not None and not any(_tag_is(required, tag) for tag in tags):
            return refused(HttpError(412, "if-match: the last value has another ETag, or there is none"))
        if wanted is not None and any(_tag_matches(wanted, tag) for tag in tags):
            return refused(HttpError(412, "if-none-match: the last value has this ETag"))
        return store

    return Ask(LastValue(address=address), reply)


def get_topic(request: HttpRequest, context: HandlerContext) -> Action:
    """Reads the last value of an address, or of all that a filter matches."""
    if is_filter(context.below):
        asked = last_values(request, context.below)
        return Ask(asked, lambda page: last_values_response(request, asked, page))
    read_query(request)
    kind = _wanted_kind(request)
    required, wanted = request.get(b"if-match"), request.get(b"if-none-match")

    def reply(message: Message | None) -> Response:
        if message is None:
            return refused(HttpError(404, f"nothing has been published to {context.below!r}"))
        tag = _etag(message, kind)
        if required is not None and not _tag_is(required, tag.decode()):
            return refused(HttpError(412, "if-match: the last value has another ETag"))
        headers = ((b"etag", tag), (b"vary", b"accept"), (b"cache-control", b"no-cache"))
        if wanted is not None and _tag_matches(wanted, tag.decode()):
            return Response(status=304, headers=headers)
        if kind is not None:
            return event_response(message, kind, *headers)
        return message_response(message, context.options, *headers)

    return Ask(LastValue(address=context.below), reply)


def _wanted_kind(request: HttpRequest) -> str | None:
    """Returns the structured mode that Accept names and likes no less than anything else; None for the message."""
    accept = qualities(request.get(b"accept") or "")
    most = max(accept.values(), default=0.0)
    return next((kind for kind in _TAGS if kind is not None and 0 < accept.get(kind, 0.0) >= most), None)


_TAGS: Final = {STRUCTURED_JSON: ".ce", STRUCTURED_PROTOBUF: ".pb", STRUCTURED_AVRO: ".avro", None: ""}


def _etag(message: Message, kind: str | None) -> bytes:
    """Returns a strong validator (RFC 9110, 8.8.3): of the message, and of the form it is given in."""
    digest = blake2b(encode(message), digest_size=16).hexdigest()
    return f'"{digest}{_TAGS[kind]}"'.encode()


def _tag_matches(wanted: str, tag: str) -> bool:
    """Compares with If-None-Match, weakly (RFC 9110, 13.1.2)."""
    return wanted == "*" or tag in (item.strip().removeprefix("W/") for item in wanted.split(","))


def _tag_is(required: str, tag: str) -> bool:
    """Compares with If-Match, strongly: a weak tag is never the same (RFC 9110, 13.1.1)."""
    return required == "*" or tag in (item.strip() for item in required.split(","))


def list_topics(request: HttpRequest, context: HandlerContext) -> Action:
    """Lists addresses that begin with a prefix."""
    query = read_query(request, "prefix", "limit", "after")
    asked = ListAddresses(
        prefix=query.get("prefix", ""),
        limit=read_number(query, "limit", LIST_MAX, LIST_MAX, least=1),
        after=query.get("after", ""),
    )

    def reply(addresses: Sequence[str]) -> Response:
        headers = []
        if len(addresses) == asked.limit:
            following = urlencode({**query, "after": addresses[-1]}, quote_via=quote)
            headers.append((b"link", f'</topics?{following}>; rel="next"'.encode()))
        return json_response(200, addresses, *headers)

    return Ask(asked, reply)


# ---- /timers


def delete_timer(request: HttpRequest, context: HandlerContext) -> Action:
    """Cancels a scheduled message."""
    read_query(request)

    def reply(pending: bool) -> Response:
        if not pending:
            return refused(HttpError(404, "no message waits by this id: it was delivered, or cancelled before"))
        return Response(status=204)

    return Ask(CancelTimer(timer=context.below), reply)


# ---- /subscribe


def subscribe(request: HttpRequest, context: HandlerContext) -> Action:
    """Streams published messages; a client that comes back goes on behind the last event it has seen."""
    patterns: dict[str, None] = {}
    asked: dict[str, str] = {}
    for name, text in request.query():
        if name in asked:
            raise AttributeRefusal(name, "is given more than once")
        if name in {"where", "type"}:
            asked[name] = text
            continue
        if name != "filter":
            raise _unknown_parameter(name, "filter, where, type")
        try:
            patterns[check_filter(text)] = None
        except Refusal as refusal:
            raise AttributeRefusal("filter", refusal.detail) from refusal
    if not 0 < len(patterns) <= context.options.max_filters:
        raise AttributeRefusal("filter", f"is given once to {context.options.max_filters} times")
    for pattern in patterns:
        context.principal.permissions.check_filter(pattern)
    return Follow(tuple(patterns), _start(request), condition(asked.get("where"), asked.get("type")))


def _start(request: HttpRequest) -> Cursor | None:
    """Returns the positions behind the last event that a client says it has seen."""
    seen = request.get(b"last-event-id")
    if not seen:
        return None
    try:
        return read_id(seen)
    except ValueError as error:
        raise AttributeRefusal("last-event-id", "is not the id of an event from here") from error


# ---- /messages


def get_messages(request: HttpRequest, context: HandlerContext) -> Action:
    """Finds stored messages by key, address or id, or reads a part of a queue."""
    if names_queue(request):
        asked = queue_reading(request)
        return Ask(asked, lambda found: queue_response(request, asked, found))
    return Ask(finding(request), lambda found: messages_response(request, found))


def _unknown_parameter(name: str, known: str) -> HttpError:
    return HttpError(400, f"{name[:64]}: is no parameter here; {known} are", attribute=name[:64])


# ---- the table


class RouteMatch(NamedTuple):
    """A handler for a request, and the name in its path: an address, a timer, a key.

    `reads`: the answer may be as large as that to a GET.
    """

    handler: Handler
    below: str
    reads: bool = False


EXACT: Final[dict[str, dict[str, Handler]]] = {
    "/events": {"POST": post_events},
    "/topics": {"GET": list_topics},
    "/subscribe": {"GET": subscribe},
    "/messages": {"GET": get_messages},
    "/kv": {"GET": keys.list_keys, "POST": keys.transact},
    "/kv-holds": {"DELETE": keys.delete_hold, "POST": keys.post_hold},
    "/docs": {"GET": descriptions.get_page},
    "/openapi.json": {"GET": descriptions.get_document},
    "/groups": {"GET": groups.list_groups},
    "/subscriptions": {"GET": subscriptions.list_subscriptions, "POST": subscriptions.post_subscription},
}
BELOW: Final[dict[str, dict[str, Handler]]] = {
    "/topics/": {"GET": get_topic, "POST": post_topic},
    "/timers/": {"DELETE": delete_timer},
    "/kv/": {"DELETE": keys.delete_key, "GET": keys.get_key, "PUT": keys.put_key},
}


# Below these each path has methods of its own.
NESTED: Final[dict[str, Callable[[str], Mapping[str, Handler] | None]]] = {
    "/groups/": groups.methods_below,
    "/subscriptions/": subscriptions.methods_below,
}


def _allowed(methods: Mapping[str, Handler]) -> str:
    names = [*methods, "OPTIONS"] if "GET" not in methods else [*methods, "HEAD", "OPTIONS"]
    return ", ".join(sorted(names))


def resolve(request: HttpRequest) -> RouteMatch | Response:
    """Returns a request's handler, or the answer where there is none. HEAD is served as GET, its body left out."""
    request.check()
    path, _ = request.split_target()
    root = ""
    methods: Mapping[str, Handler] | None = EXACT.get(path)
    if methods is None:
        root = next((root for root in BELOW if path.startswith(root) and path != root), "")
        methods = BELOW.get(root)
    if methods is None and (nested := next((nested for nested in NESTED if path.startswith(nested)), None)):
        root, methods = nested, NESTED[nested](path.removeprefix(nested))
    if request.method == "OPTIONS":
        allow = "DELETE, GET, HEAD, OPTIONS, POST, PUT" if methods is None else _allowed(methods)
        if methods is not None or path == "*":
            return Response(status=204, headers=((b"allow", allow.encode()),))
    if methods is None:
        raise HttpError(
            404,
            "there is nothing here; "
            "/events, /topics, /messages, /timers, /subscribe, /subscriptions, /groups, /kv and /docs are",
        )
    handler = methods.get("GET" if request.method == "HEAD" else request.method)
    if handler is None:
        allow = _allowed(methods)
        raise HttpError(405, f"{request.method} is not for this; {allow} are", headers=((b"allow", allow.encode()),))
    below = percent_decode(path[len(root) :]) if root else ""
    return RouteMatch(handler, below, reads=handler is group_leases.post_receive)
