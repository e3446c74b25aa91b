"""`/groups`: consumers that read a topic together, each queue by one of them.

    POST   /groups/{group}/members                    201 {"member","topic","strategy","ttl_s"}, with Location
    GET    /groups/{group}/members/{id}/messages      200 messages of its queues: `max=`, `wait=` seconds, `after=`
    POST   /groups/{group}/members/{id}/commit        200, once durable: {"offsets"}; 409 for queues it does not have
    PUT    /groups/{group}/members/{id}               200 {"ttl_s","queues","revoked"}: it is still there
    DELETE /groups/{group}/members/{id}               204 it is not any more, or 404
    GET    /groups                                    200 a page of {"group","topic","strategy"}; the next one is a link
    GET    /groups/{group}                            200 members, and of each queue offset, end, lag and member
    POST   /groups/{group}/reset                      200 {"offsets"}: it goes on there
    DELETE /groups/{group}                            204, 404, or 409 while it has members
    and below /groups/{group}                         leased messages: `adapters.http.handlers.group_leases`

Messages are JSON with the queue and offset of each, or, where Accept asks for it, a batch of CloudEvents with both as
the extensions `headgatequeue` and `headgateoffset`. `after` says how far a client has read
(`gateway.port.groups.GroupCursor`): with it a member reads on, or commits; a link with it leads to the next messages.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from adapters.cloudevents import BATCH_JSON, AttributeRefusal, parse_ms, to_document
from adapters.http.handlers import group_leases
from adapters.http.handlers.actions import Action, Ask, Handler, HandlerContext
from adapters.http.handlers.finding import wait_ms
from adapters.http.handlers.parsing.query import read_json, read_number, read_query
from adapters.http.wire.request import HttpError, HttpRequest, qualities
from adapters.http.wire.response import Response, encode_json, json_response, refused
from gateway.port.groups import (
    MESSAGES_COUNT_MAX,
    TTL_S,
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    GroupCursor,
    GroupDescription,
    GroupsPage,
    Joined,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    Polled,
    PollGroup,
    QueueDescription,
    Renewed,
    RenewMember,
    ResetGroup,
)

LIMIT, LIMIT_MAX = 100, 1_000  # groups of a page
MESSAGES = 100  # in one answer, where `max` says nothing
_NO_CACHE: Final = (b"cache-control", b"no-cache")
_NUMBER_MAX: Final = (1 << 63) - 1  # that there can be: an offset, a generation
_QUEUE_MAX: Final = (1 << 32) - 1  # likewise

T = TypeVar("T")


class _Join(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    strategy: str = "averaged"
    start: str = "earliest"
    ttl_s: int = TTL_S


class _Commit(msgspec.Struct, forbid_unknown_fields=True):
    """`after` as a poll has given it, or its generation with offsets."""

    after: str | None = None
    generation: int | None = None
    offsets: dict[str, int] | None = None


class _Reset(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    timestamp: str | int | None = None
    offsets: dict[str, int] | None = None
    queues: tuple[int, ...] = ()


# ---- members


def post_member(request: HttpRequest, context: HandlerContext) -> Action:
    """Joins a group."""
    (group,) = _names(context)
    given = _body(request, context, _Join)

    def reply(joined: Joined) -> Response:
        location = (b"location", f"/groups/{group}/members/{joined.member}".encode())
        return json_response(201, joined, location)

    asked = JoinGroup(group=group, topic=given.topic, strategy=given.strategy, start=given.start, ttl_s=given.ttl_s)
    return Ask(asked, reply)


def put_member(request: HttpRequest, context: HandlerContext) -> Action:
    """Renews a member."""
    group, member = _names(context)
    read_query(request)

    def reply(renewed: Renewed) -> Response:
        return json_response(200, renewed)

    return Ask(RenewMember(group=group, member=member), reply)


def delete_member(request: HttpRequest, context: HandlerContext) -> Action:
    """Leaves a group."""
    group, member = _names(context)
    read_query(request)

    def reply(there: bool) -> Response:
        if not there:
            return refused(HttpError(404, f"the group {group!r} has no such member, or not any more"))
        return Response(status=204)

    return Ask(LeaveGroup(group=group, member=member), reply)


# ---- messages


def get_messages(request: HttpRequest, context: HandlerContext) -> Action:
    """Reads messages of a member's queues."""
    group, member = _names(context)
    query = read_query(request, "max", "wait", "after")
    asked = PollGroup(
        group=group,
        member=member,
        after=_cursor(query["after"]) if "after" in query else None,
        limit=read_number(query, "max", MESSAGES, MESSAGES_COUNT_MAX, least=1),
        wait_ms=wait_ms(query.get("wait", "0")),
    )
    as_events = qualities(request.get(b"accept") or "").get(BATCH_JSON, 0.0) > 0

    def reply(polled: Polled) -> Response:
        again = [(name, text) for name, text in query.items() if name != "after"]
        following = urlencode([*again, ("after", str(polled.after))], quote_via=quote)
        target = f"/groups/{group}/members/{member}/messages?{following}"
        headers = (_NO_CACHE, (b"vary", b"accept"), (b"link", f'<{target}>; rel="next"'.encode()))
        if as_events:
            return Response(status=200, headers=((b"content-type", BATCH_JSON.encode()), *headers), body=_batch(polled))
        return json_response(200, _document(polled), *headers)

    return Ask(asked, reply)


def _document(polled: Polled) -> dict[str, Any]:
    return {
        "messages": [
            {"queue": queue, "offset": offset, "event": to_document(message)}
            for queue, offset, message in polled.messages
        ],
        "after": str(polled.after),
        "generation": polled.after.generation,
        "next": {str(queue): at for queue, at in sorted(polled.after.offsets.items())},
        "queues": polled.queues,
        "revoked": polled.revoked,
    }


def _batch(polled: Polled) -> bytes:
    """Returns a batch of CloudEvents; an extension's integer has 32 bits, so that these are strings."""
    return encode_json(
        [
            {**to_document(message), "headgatequeue": str(queue), "headgateoffset": str(offset)}
            for queue, offset, message in polled.messages
        ]
    )


def post_commit(request: HttpRequest, context: HandlerContext) -> Action:
    """Commits a member's offsets."""
    group, member = _names(context)
    read_query(request)
    given = _body(request, context, _Commit)
    if given.after is not None:
        if given.generation is not None or given.offsets is not None:
            raise AttributeRefusal("after", "is given in place of generation and offsets")
        cursor = _cursor(given.after)
    elif given.generation is None or given.offsets is None:
        raise HttpError(400, "a commit has after, as messages came with it, or generation and offsets")
    elif not 0 <= given.generation <= _NUMBER_MAX:
        raise AttributeRefusal("generation", "is not one that a poll has given")
    else:
        cursor = GroupCursor(given.generation, _offsets(given.offsets))
    return Ask(CommitOffsets(group=group, member=member, cursor=cursor), _offsets_response)


def _offsets_response(offsets: Mapping[int, int]) -> Response:
    return json_response(200, {"offsets": {str(queue): at for queue, at in offsets.items()}})


# ---- groups


def list_groups(request: HttpRequest, context: HandlerContext) -> Action:
    """Lists groups, by name."""
    query = read_query(request, "limit", "after")
    limit = read_number(query, "limit", LIMIT, LIMIT_MAX, least=1)

    def reply(page: GroupsPage) -> Response:
        headers = [_NO_CACHE]
        if page.after is not None:
            following = urlencode([("limit", str(limit)), ("after", page.after)], quote_via=quote)
            headers.append((b"link", f'</groups?{following}>; rel="next"'.encode()))
        return json_response(200, page.groups, *headers)

    return Ask(ListGroups(limit=limit, after=query.get("after", "")), reply)


def get_group(request: HttpRequest, context: HandlerContext) -> Action:
    """Reads a group's offsets, and its members with their queues."""
    (group,) = _names(context)
    read_query(request)

    def reply(found: GroupDescription) -> Response:
        queues = [{**_given(one), "lag": one.lag} for one in found.queues]
        document = {**_given(found), "queues": queues, "lag": sum(one.lag for one in found.queues)}
        return json_response(200, document, _NO_CACHE)

    return Ask(DescribeGroup(group=group), reply)


def _given(described: GroupDescription | QueueDescription) -> dict[str, Any]:
    """Returns the fields that a group of this kind has."""
    return {name: value for name, value in msgspec.structs.asdict(described).items() if value is not None}


def delete_group(request: HttpRequest, context: HandlerContext) -> Action:
    """Forgets a group."""
    (group,) = _names(context)
    read_query(request)

    def reply(there: bool) -> Response:
        return Response(status=204) if there else refused(HttpError(404, f"there is no group {group!r}"))

    return Ask(DeleteGroup(group=group), reply)


def post_reset(request: HttpRequest, context: HandlerContext) -> Action:
    """Moves a group's offsets."""
    (group,) = _names(context)
    read_query(request)
    given = _body(request, context, _Reset)
    if (given.to == "timestamp") != (given.timestamp is not None):
        raise AttributeRefusal("timestamp", 'is given with "to": "timestamp"')
    if (given.to == "offset") != (given.offsets is not None):
        raise AttributeRefusal("offsets", 'is given with "to": "offset"')
    asked = ResetGroup(
        group=group,
        to=given.to if given.to not in {"timestamp", "offset"} else "",
        time_ms=_time_ms(given.timestamp) if given.timestamp is not None else None,
        offsets=_offsets(given.offsets) if given.offsets is not None else None,
        queues=given.queues,
    )
    return Ask(asked, _offsets_response)


# ---- reading a request


def _names(context: HandlerContext) -> list[str]:
    """Returns the group, and the member where there is one, of a path that has them."""
    return context.below.split("/")[:3:2]


def _body(request: HttpRequest, context: HandlerContext, kind: type[T]) -> T:
    return read_json(request, context.options.max_body_bytes, kind, "the body is not what is asked for")


def _cursor(text: str) -> GroupCursor:
    try:
        return GroupCursor.parse(text)
    except ValueError as error:
        raise AttributeRefusal("after", "is not a value that earlier messages have come with") from error


def _offsets(given: Mapping[str, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for text, at in given.items():
        if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > _QUEUE_MAX:
            raise AttributeRefusal("offsets", f"{text[:64]!r} is not the number of a queue")
        if not 0 <= at <= _NUMBER_MAX:
            raise AttributeRefusal("offsets", f"queue {text}: {at} is not an offset")
        found[int(text)] = at
    return found


def _time_ms(given: str | int) -> int:
    """Returns milliseconds since 1970 from such a number, or an RFC 3339 timestamp."""
    try:
        found = given if isinstance(given, int) else parse_ms(given)
    except ValueError as error:
        raise AttributeRefusal("timestamp", "is neither milliseconds since 1970 nor an RFC 3339 timestamp") from error
    return min(max(found, 0), _NUMBER_MAX)


# ---- the table


_MEMBERS: Final[dict[str, dict[str, Handler]]] = {
    "": {"DELETE": delete_member, "PUT": put_member},
    "messages": {"GET": get_messages},
    "commit": {"POST": post_commit},
}
_GROUP: Final[dict[str, dict[str, Handler]]] = {
    "": {"DELETE": delete_group, "GET": get_group, "PUT": group_leases.put_group},
    "ack": {"POST": group_leases.post_ack},
    "extend": {"POST": group_leases.post_extend},
    "members": {"POST": post_member},
    "nack": {"POST": group_leases.post_nack},
    "receive": {"POST": group_leases.post_receive},
    "reset": {"POST": post_reset},
}


def methods_below(path: str) -> Mapping[str, Handler] | None:
    """Returns the methods of a path below /groups/, still percent-encoded; None where there is nothing."""
    group, _, rest = path.partition("/")
    if not group or "%2F" in path.upper():  # no name has a slash
        return None
    if not rest.startswith("members/"):
        return _GROUP.get(rest) if "/" not in rest and not path.endswith("/") else None
    member, slash, what = rest.removeprefix("members/").partition("/")
    return _MEMBERS.get(what) if member and bool(slash) == bool(what) else None
