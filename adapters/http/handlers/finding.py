"""`GET /messages`: a batch of CloudEvents, by key, address or id, newest first, or of a queue, oldest first.

Messages of a queue have the extensions `headgatetopic`, `headgatequeue`, `headgateoffset`, `headgatestored`,
`headgateprotocol`, `headgatedevice` (who spoke) and `headgateprincipal`, which is empty where nobody had logged in.
"""

import re
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from adapters.cloudevents import BATCH_JSON, AttributeRefusal, clean, format_ms, parse_ms, to_batch, to_document
from adapters.http.handlers.parsing.query import read_number, read_query
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response
from gateway.domain.errors import Refusal
from gateway.domain.sql92 import compile_where, quoted
from gateway.port.groups import WAIT_MS_MAX
from gateway.port.reads import (
    ADDRESSES_COUNT_MAX,
    FindMessages,
    FoundMessages,
    LastValues,
    LastValuesPage,
    QueuedMessages,
    ReadQueue,
)

LIMIT, LIMIT_MAX = 100, 1_000
MS_DIGITS_MAX: Final = 15  # of a time: ms since 1970 for the next 30,000 years
_SECONDS: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?")
_CURSOR: Final = re.compile(r"[0-9a-f]{1,16}\.[0-9a-f]{1,8}|[A-Za-z0-9_-]{54}")  # a position, or a sealed one
_ONE_OF: Final = ("key", "address", "id")
_KNOWN: Final = (*_ONE_OF, "from", "to", "where", "type", "limit", "after", "wait")
_KNOWN_OF_QUEUES: Final = ("queue", "offset", "from", "to", "where", "type", "limit", "after")
_QUEUE_MAX, _OFFSET_MAX = (1 << 32) - 1, (1 << 63) - 1


def finding(request: HttpRequest) -> FindMessages:
    """Returns the question that a request asks. Raises `HttpError` and `AttributeRefusal`."""
    query = read_query(request, *_KNOWN)
    given = [name for name in _ONE_OF if query.get(name)]
    if len(given) != 1:
        raise HttpError(400, f"messages are found by one of {', '.join(_ONE_OF)}")
    until = query.get("to")
    return FindMessages(
        **{given[0]: query[given[0]]},
        from_ms=_time("from", query.get("from", "0")),
        until_ms=1 << 63 if until is None else _time("to", until),
        where=condition(query.get("where"), query.get("type")),
        after=_cursor(query["after"]) if "after" in query else None,
        limit=read_number(query, "limit", LIMIT, LIMIT_MAX, least=1),
        wait_ms=wait_ms(query.get("wait", "0")),
    )


def names_queue(request: HttpRequest) -> bool:
    """Returns whether a request is for a queue."""
    return any(name == "queue" for name, _ in request.query())


def queue_reading(request: HttpRequest) -> ReadQueue:
    """Returns the part of a queue that a request asks for. Raises `HttpError` and `AttributeRefusal`."""
    query = read_query(request, *_KNOWN_OF_QUEUES, repeated="address")
    addresses = tuple(dict.fromkeys(text for name, text in request.query() if name == "address" and text))
    if not 0 < len(addresses) <= ADDRESSES_COUNT_MAX:
        raise AttributeRefusal("address", f"is given once to {ADDRESSES_COUNT_MAX} times")
    until = query.get("to")
    return ReadQueue(
        queue=read_number(query, "queue", 0, _QUEUE_MAX),
        addresses=addresses,
        offset=max(read_number(query, name, 0, _OFFSET_MAX) for name in ("offset", "after")),
        from_ms=_time("from", query.get("from", "0")),
        until_ms=1 << 63 if until is None else _time("to", until),
        where=condition(query.get("where"), query.get("type")),
        limit=read_number(query, "limit", LIMIT, LIMIT_MAX, least=1),
    )


def queue_response(request: HttpRequest, asked: ReadQueue, found: QueuedMessages) -> Response:
    """Returns the answer, as that to a search."""
    batch = []
    for offset, stored_at_ms, topic, message in found.messages:
        more = {
            "headgatetopic": topic,
            "headgateprotocol": message.protocol,
            "headgatedevice": message.device,
            "headgateprincipal": message.principal,
        }
        said = {name: clean(text) for name, text in more.items() if text}
        if message.principal == "":
            said["headgateprincipal"] = ""
        place = {"headgatequeue": str(asked.queue), "headgateoffset": str(offset)}
        event = {name: value for name, value in to_document(message).items() if name not in more}  # the gateway's names
        batch.append({**event, **place, "headgatestored": format_ms(stored_at_ms), **said})
    after = None if found.after is None else str(found.after)
    return _page(request, msgspec.json.encode(batch), after)


def messages_response(request: HttpRequest, found: FoundMessages) -> Response:
    """Returns the answer; with more to come, the next page is a link (RFC 8288)."""
    return _page(request, to_batch(found.messages), found.after)


def _page(request: HttpRequest, body: bytes, after: str | None) -> Response:
    headers = [(b"content-type", BATCH_JSON.encode()), (b"cache-control", b"no-cache")]
    if after is not None:
        query = [(name, text) for name, text in request.query() if name != "after"]
        following = urlencode([*query, ("after", after)], quote_via=quote)
        headers.append((b"link", f'</messages?{following}>; rel="next"'.encode()))
    return Response(status=200, headers=tuple(headers), body=body)


def last_values(request: HttpRequest, pattern: str) -> LastValues:
    """Returns a request's question about the addresses of a filter. Raises `HttpError` and `AttributeRefusal`."""
    query = read_query(request, "limit", "after")
    return LastValues(
        pattern=pattern, limit=read_number(query, "limit", LIMIT, LIMIT_MAX, least=1), after=query.get("after", "")
    )


def last_values_response(request: HttpRequest, asked: LastValues, found: LastValuesPage) -> Response:
    """Returns the answer, as that to a search."""
    headers = [(b"content-type", BATCH_JSON.encode()), (b"cache-control", b"no-cache")]
    if found.after is not None:
        following = urlencode([("limit", str(asked.limit)), ("after", found.after)], quote_via=quote)
        headers.append((b"link", f'</topics/{quote(asked.pattern)}?{following}>; rel="next"'.encode()))
    return Response(status=200, headers=tuple(headers), body=to_batch(found.messages))


def condition(where: str | None, kind: str | None) -> str | None:
    """Returns the condition that `where` and `type` of a query make together. Raises `AttributeRefusal`."""
    if where is not None:
        _check(where)
    if kind is None:
        return where
    both = f"type = {quoted(kind)}" if where is None else f"({where}) AND type = {quoted(kind)}"
    _check(both)
    return both


def _check(text: str) -> None:
    try:
        compile_where(text)
    except Refusal as refusal:
        raise AttributeRefusal("where", refusal.detail) from refusal


def wait_ms(text: str) -> int:
    """Returns `wait`, seconds with up to three places, in ms. Raises `AttributeRefusal`."""
    found = _SECONDS.fullmatch(text)
    if found is not None:
        ms = int(found[1]) * 1_000 + int((found[2] or "").ljust(3, "0"))
        if ms <= WAIT_MS_MAX:
            return ms
    raise AttributeRefusal("wait", f"is not a number of seconds up to {WAIT_MS_MAX // 1_000}, with up to three places")


def _time(name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= MS_DIGITS_MAX:
        return int(text)
    try:
        return max(parse_ms(text), 0)
    except ValueError as error:
        raise AttributeRefusal(name, "is neither milliseconds since 1970 nor an RFC 3339 timestamp") from error


def _cursor(text: str) -> str:
    if _CURSOR.fullmatch(text) is None:
        raise AttributeRefusal("after", "is not a value that an earlier page has given")
    return text
