"""`/kv`: keys and values. Revisions are entity tags, so If-Match and If-None-Match are compare-and-set.

    GET    /kv/{key}           200 the value, 304, or 404
    PUT    /kv/{key}?ttl=      201 or 200, once durable: {"revision","created"}; 412 where a condition does not hold
    DELETE /kv/{key}           204, once durable, 404, or 412
    GET    /kv?prefix=         200 a page: {"revision","entries","more"}; the next one is a link (RFC 8288)
    GET    /kv?prefix=&watch=  200 server-sent events: each change from revision `from` on
    POST   /kv                 200 a transaction: {"revision","existed"}, or 412
    POST   /kv-holds           201 {"revision"}: pages with `revision=` are the state as it is now, until
    DELETE /kv-holds           204 `revision=` is not needed any more, or its connection ends, or it is not read

`ns` names the namespace everywhere. In JSON a value is Base64 (RFC 4648, 4), or, when it is given to be stored, text.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from adapters.cloudevents import AttributeRefusal
from adapters.http.handlers.actions import Action, Ask, HandlerContext, Watch
from adapters.http.handlers.parsing.conditions import REVISION_MAX, match_of, required, tag_of, unwanted
from adapters.http.handlers.parsing.query import read_json, read_number, read_query
from adapters.http.wire.coding import decoded
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response, encode_json, json_response, refused
from gateway.domain.keys import DEFAULT_NAMESPACE
from gateway.port.kv import (
    CountKeys,
    GetKey,
    HoldKeys,
    KeyConflict,
    ListKeys,
    ReleaseKeys,
    RemoveKey,
    StoreKey,
    TransactKeys,
    WatchKeys,
)
from store.api.keys import EXISTS, Change, Delete, Entry, Page, Put, Transacted
from store.api.kv_rules import end_of_prefix

LIMIT, LIMIT_MAX = 100, 1_000  # entries of a page
TTL_S_MAX: Final = 10**9  # of a key: some thirty years
_INERT: Final = ((b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff"))
_NO_CACHE: Final = (b"cache-control", b"no-cache")
_FLAGS: Final = {"": True, "true": True, "1": True, "false": False, "0": False}


# ---- one key


def get_key(request: HttpRequest, context: HandlerContext) -> Action:
    """Reads the value of a key."""
    query = read_query(request, "ns")
    wanted, changed = required(request), unwanted(request)

    def reply(entry: Entry | None) -> Response:
        if entry is None:
            return refused(HttpError(404, f"there is no key {context.below!r}"))
        if not wanted.holds(entry.revision):
            return refused(KeyConflict(context.below, entry.revision))
        headers = [(b"etag", tag_of(entry.revision)), _NO_CACHE]
        if not changed.holds(entry.revision):
            return Response(status=304, headers=tuple(headers))
        headers += [
            (b"content-type", b"application/octet-stream"),
            (b"x-create-revision", b"%d" % entry.create_revision),
            (b"x-version", b"%d" % entry.version),
            *_INERT,
        ]
        if entry.expires_at_ms is not None:
            headers.append((b"x-expires-at-ms", b"%d" % entry.expires_at_ms))
        return Response(status=200, headers=tuple(headers), body=entry.value)

    return Ask(GetKey(key=context.below, namespace=_namespace(query)), reply)


def put_key(request: HttpRequest, context: HandlerContext) -> Action:
    """Stores a value."""
    query = read_query(request, "ns", "ttl")
    if request.get(b"content-range") is not None:  # a part would replace the whole (RFC 9110, 9.3.4)
        raise HttpError(400, "content-range: a value is stored as a whole", attribute="content-range")

    def reply(done: Transacted) -> Response:
        created = not done.existed[0]
        answer = {"revision": done.revision, "created": created}
        return json_response(201 if created else 200, answer, (b"etag", tag_of(done.revision)))

    stored = StoreKey(
        key=context.below,
        value=decoded(request, context.options.max_body_bytes),
        ttl_ms=_ttl_ms(query),
        match=match_of(request),
        namespace=_namespace(query),
    )
    return Ask(stored, reply)


def delete_key(request: HttpRequest, context: HandlerContext) -> Action:
    """Removes a key."""
    query = read_query(request, "ns")

    def reply(existed: bool) -> Response:
        if not existed:
            return refused(HttpError(404, f"there is no key {context.below!r}"))
        return Response(status=204)

    return Ask(RemoveKey(key=context.below, match=match_of(request), namespace=_namespace(query)), reply)


# ---- ranges


def list_keys(request: HttpRequest, context: HandlerContext) -> Action:
    """Reads a page of keys, counts them, or streams their changes."""
    known = ("ns", "prefix", "start", "end", "after", "limit", "revision", "keys", "count", "watch", "from")
    query = read_query(request, *known)
    start, end = _range(query)
    namespace = _namespace(query)
    if _flag(query, "watch"):
        since = _since(request, query)
        return Watch(WatchKeys(watch=0, start=start, end=end, from_revision=since, namespace=namespace))
    if "from" in query:
        raise AttributeRefusal("from", "is given with watch")
    if _flag(query, "count"):
        return Ask(
            CountKeys(start=start, end=end, namespace=namespace), lambda count: json_response(200, {"count": count})
        )
    asked = ListKeys(
        start=start,
        end=end,
        after=query.get("after"),
        limit=read_number(query, "limit", LIMIT, LIMIT_MAX, least=1),
        at_revision=read_number(query, "revision", 0, REVISION_MAX) if "revision" in query else None,
        namespace=namespace,
    )
    bare = _flag(query, "keys")
    return Ask(asked, lambda page: _page(request, page, bare=bare))


def _page(request: HttpRequest, page: Page, *, bare: bool) -> Response:
    entries = [_entry(one, bare=bare) for one in page.entries]
    headers = [_NO_CACHE]
    if page.more:
        query = [(name, text) for name, text in request.query() if name != "after"]
        following = urlencode([*query, ("after", page.entries[-1].key)], quote_via=quote)
        headers.append((b"link", f'</kv?{following}>; rel="next"'.encode()))
    return json_response(200, {"revision": page.revision, "entries": entries, "more": page.more}, *headers)


def _entry(entry: Entry, *, bare: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "key": entry.key,
        "revision": entry.revision,
        "create_revision": entry.create_revision,
        "version": entry.version,
    }
    if entry.expires_at_ms is not None:
        found["expires_at_ms"] = entry.expires_at_ms
    if not bare:
        found["value_base64"] = b64encode(entry.value).decode()
    return found


def change_event(change: Change, *, last: bool) -> bytes:
    """Returns a change as a server-sent event; the `last` one of a revision has the id behind which a watch goes on."""
    data: dict[str, Any] = {"key": change.key, "revision": change.revision}
    if change.kind == "put":
        data["value_base64"] = b64encode(change.value).decode()
        if change.expires_at_ms is not None:
            data["expires_at_ms"] = change.expires_at_ms
    id_ = b"id: %d\n" % change.revision if last else b""
    return b"%bevent: %b\ndata: %b\n\n" % (id_, change.kind.encode(), encode_json(data))


# ---- holds


def post_hold(request: HttpRequest, context: HandlerContext) -> Action:
    """Keeps the state as it is."""
    read_query(request)
    return Ask(HoldKeys(), lambda revision: json_response(201, {"revision": revision}))


def delete_hold(request: HttpRequest, context: HandlerContext) -> Action:
    """Ends a hold on a revision."""
    query = read_query(request, "revision")
    if "revision" not in query:
        raise AttributeRefusal("revision", "is missing")
    asked = ReleaseKeys(revision=read_number(query, "revision", 0, REVISION_MAX))
    return Ask(asked, lambda _: Response(status=204))


# ---- transactions


class _Compare(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    revision: int


class _Operation(msgspec.Struct, forbid_unknown_fields=True):
    """One of `put` and `delete`, each a key; and the value that is put."""

    put: str | None = None
    delete: str | None = None
    value: str | None = None
    value_base64: str | None = None
    ttl_ms: int | None = None
    expires_at_ms: int | None = None


class _Transaction(msgspec.Struct, forbid_unknown_fields=True):
    operations: list[_Operation]
    compare: list[_Compare] = []


def transact(request: HttpRequest, context: HandlerContext) -> Action:
    """Does several changes as one, if several keys are as expected."""
    query = read_query(request, "ns")
    asked = read_json(request, context.options.max_body_bytes, _Transaction, "the body is no transaction")
    compares = {one.key: one.revision for one in asked.compare}
    if len(compares) < len(asked.compare) or any(not EXISTS <= at <= REVISION_MAX for at in compares.values()):
        raise AttributeRefusal("compare", "names a key twice, or a revision that cannot be")
    if "" in compares:
        raise AttributeRefusal("compare", "names an empty key")
    operations = [_operation(i, one) for i, one in enumerate(asked.operations)]
    if len({one.key for one in operations}) < len(operations):
        raise AttributeRefusal("operations", "name a key twice")
    done = TransactKeys(compares=compares, operations=operations, namespace=_namespace(query))
    return Ask(done, lambda made: json_response(200, {"revision": made.revision, "existed": made.existed}))


def _operation(index: int, given: _Operation) -> Put | Delete:
    where = f"operations[{index}]"
    if "" in {given.put, given.delete}:
        raise AttributeRefusal(where, "names an empty key")
    values = [value for value in (given.value, given.value_base64) if value is not None]
    times = [time for time in (given.ttl_ms, given.expires_at_ms) if time is not None]
    if given.delete is not None:
        if given.put is not None or values or times:
            raise AttributeRefusal(where, "deletes a key and nothing else")
        return Delete(given.delete)
    if given.put is None or len(values) != 1 or len(times) > 1:
        raise AttributeRefusal(where, "puts a key with one of value and value_base64, or deletes one")
    if any(not 0 < time <= REVISION_MAX >> 1 for time in times):
        raise AttributeRefusal(where, "has a time that cannot be")
    try:
        value = given.value.encode() if given.value is not None else b64decode(values[0], validate=True)
    except ValueError as error:
        raise AttributeRefusal(where, "value_base64 is not Base64 (RFC 4648, 4)") from error
    return Put(given.put, value, given.expires_at_ms, given.ttl_ms)


# ---- reading a request


def _namespace(query: Mapping[str, str]) -> str:
    return query.get("ns", DEFAULT_NAMESPACE)


def _range(query: Mapping[str, str]) -> tuple[str, str | None]:
    if "prefix" not in query:
        return query.get("start", ""), query.get("end")
    if "start" in query or "end" in query:
        raise AttributeRefusal("prefix", "is given in place of start and end")
    return query["prefix"], end_of_prefix(query["prefix"])


def _since(request: HttpRequest, query: Mapping[str, str]) -> int | None:
    """Returns the revision from which a watch begins: behind the last event seen, or as `from` says."""
    seen = request.get(b"last-event-id")
    if seen:
        return read_number({"last-event-id": seen}, "last-event-id", 0, REVISION_MAX) + 1
    return read_number(query, "from", 0, REVISION_MAX) if "from" in query else None


def _flag(query: Mapping[str, str], name: str) -> bool:
    try:
        return _FLAGS[query.get(name, "false").lower()]
    except KeyError:
        raise AttributeRefusal(name, "is neither true nor false") from None


def _ttl_ms(query: Mapping[str, str]) -> int | None:
    """Returns `ttl`, seconds with up to three places, in ms."""
    text = query.get("ttl")
    if text is None:
        return None
    whole, _, part = text.partition(".")
    digits = whole + part
    if not (digits.isascii() and digits.isdigit() and whole) or len(whole) > 10 or len(part) > 3:
        raise AttributeRefusal("ttl", "is not a number of seconds, with at most three places")
    ttl_ms = int(whole) * 1000 + int(part.ljust(3, "0"))
    if not 0 < ttl_ms <= TTL_S_MAX * 1000:
        raise AttributeRefusal("ttl", f"is not over 0 and up to {TTL_S_MAX} seconds")
    return ttl_ms
