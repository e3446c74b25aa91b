"""`/subscriptions`: events that the gateway delivers to sinks itself (CloudEvents Subscriptions API, 3.2 and 3.3).

POST   /subscriptions               201 the subscription, with Location and ETag
GET    /subscriptions               200 a page of subscriptions; the next one is a link
GET    /subscriptions/{id}          200 the subscription and its status
PUT    /subscriptions/{id}          200 it is replaced and goes on where it is
DELETE /subscriptions/{id}          200 the subscription, which is no more
POST   /subscriptions/{id}/pause    200 nothing is delivered
POST   /subscriptions/{id}/resume   200 it goes on where it stopped

The ETag of a subscription is its revision, which its status does not change. `If-Match` and `If-None-Match` count for
all requests about one.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from adapters.http.handlers.actions import Action, Ask, Handler, HandlerContext
from adapters.http.handlers.parsing.conditions import match_of, required, tag_of, unwanted
from adapters.http.handlers.parsing.query import read_json, read_number, read_query
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response, json_response, refused
from gateway.port.push import (
    CreateSubscription,
    DeleteSubscription,
    GetSubscription,
    ListSubscriptions,
    PauseSubscription,
    PushSubscription,
    SubscriptionsPage,
    SubscriptionSpec,
    UpdateSubscription,
)

LIMIT, LIMIT_MAX = 100, 500  # subscriptions of a page
_NO_CACHE: Final = (b"cache-control", b"no-cache")

T = TypeVar("T", bound=SubscriptionSpec)


def post_subscription(request: HttpRequest, context: HandlerContext) -> Action:
    """Creates a subscription."""
    read_query(request)
    spec = _spec(request, context, SubscriptionSpec)

    def reply(made: PushSubscription) -> Response:
        return _shown(201, made, (b"location", f"/subscriptions/{made.id}".encode()))

    return Ask(CreateSubscription(spec=spec), reply)


def list_subscriptions(request: HttpRequest, context: HandlerContext) -> Action:
    """Shows subscriptions, by id."""
    query = read_query(request, "limit", "after")
    limit = read_number(query, "limit", LIMIT, LIMIT_MAX, least=1)

    def reply(page: SubscriptionsPage) -> Response:
        headers = [_NO_CACHE]
        if page.after is not None:
            following = urlencode([("limit", str(limit)), ("after", page.after)], quote_via=quote)
            headers.append((b"link", f'</subscriptions?{following}>; rel="next"'.encode()))
        return json_response(200, [_document(one) for one in page.subscriptions], *headers)

    return Ask(ListSubscriptions(limit=limit, after=query.get("after", "")), reply)


def get_subscription(request: HttpRequest, context: HandlerContext) -> Action:
    """Shows a subscription and its status."""
    read_query(request)
    wanted, changed = required(request), unwanted(request)

    def reply(one: PushSubscription) -> Response:
        if not wanted.holds(one.revision):
            return refused(HttpError(412, f"the subscription is at revision {one.revision}"))
        if not changed.holds(one.revision):
            return Response(status=304, headers=((b"etag", tag_of(one.revision)), _NO_CACHE))
        return _found(one)

    return Ask(GetSubscription(id=context.below), reply)


def put_subscription(request: HttpRequest, context: HandlerContext) -> Action:
    """Replaces a subscription."""
    read_query(request)
    spec = _spec(request, context, _Replacement).spec
    return Ask(UpdateSubscription(id=context.below, spec=spec, match=match_of(request)), _found)


def delete_subscription(request: HttpRequest, context: HandlerContext) -> Action:
    """Ends a subscription."""
    read_query(request)
    return Ask(DeleteSubscription(id=context.below, match=match_of(request)), _found)


def pause(request: HttpRequest, context: HandlerContext) -> Action:
    """Stops the deliveries of a subscription."""
    return _pause(request, context, paused=True)


def resume(request: HttpRequest, context: HandlerContext) -> Action:
    """Resumes the deliveries of a subscription."""
    return _pause(request, context, paused=False)


def _pause(request: HttpRequest, context: HandlerContext, *, paused: bool) -> Action:
    read_query(request)
    id_, _, _ = context.below.partition("/")
    return Ask(PauseSubscription(id=id_, paused=paused, match=match_of(request)), _found)


# ---- bodies


class _Replacement(SubscriptionSpec, frozen=True, kw_only=True):
    """A subscription as a client sends back what it was shown; `status` is for the gateway to say, and passed over."""

    status: Any = None

    @property
    def spec(self) -> SubscriptionSpec:
        """The subscription alone."""
        return SubscriptionSpec(**{name: getattr(self, name) for name in SubscriptionSpec.__struct_fields__})


def _spec(request: HttpRequest, context: HandlerContext, kind: type[T]) -> T:
    return read_json(request, context.options.max_body_bytes, kind, "the body is no subscription")


def _document(one: PushSubscription) -> dict[str, Any]:
    return {**msgspec.to_builtins(one.spec), "status": msgspec.to_builtins(one.status)}


def _shown(status: int, one: PushSubscription, *headers: tuple[bytes, bytes]) -> Response:
    return json_response(status, _document(one), (b"etag", tag_of(one.revision)), _NO_CACHE, *headers)


def _found(one: PushSubscription) -> Response:
    return _shown(200, one)


# ---- the table


_ONE: Final[dict[str, dict[str, Handler]]] = {
    "": {"DELETE": delete_subscription, "GET": get_subscription, "PUT": put_subscription},
    "pause": {"POST": pause},
    "resume": {"POST": resume},
}


def methods_below(path: str) -> Mapping[str, Handler] | None:
    """Returns the methods of a path below /subscriptions/, still percent-encoded; None where there is nothing."""
    id_, slash, what = path.partition("/")
    return _ONE.get(what) if id_ and bool(slash) == bool(what) else None
