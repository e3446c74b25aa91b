"""Groups that lease messages one by one, below `/groups/{group}`.

    PUT    /groups/{group}          201 {"group","topic","terms"}, 200 where it exists, 409 where it has other terms
    POST   /groups/{group}/receive  200 messages, each with a handle: {"max","wait","lease_s"}
    POST   /groups/{group}/ack      200, once durable: {"done","refused"}; 207 where some were refused
    POST   /groups/{group}/nack     the same: messages are given back, to be leased again after "delay_s"
    POST   /groups/{group}/extend   the same and {"handles"}: their leases end "lease_s" from now

Messages are JSON with the handle, the number of deliveries, queue and offset of each, or, where Accept asks for it, a
batch of CloudEvents with these as the extensions `headgatehandle`, `headgatedeliveries`, `headgatequeue` and
`headgateoffset`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from adapters.cloudevents import BATCH_JSON, to_document
from adapters.http.handlers.actions import Action, Ask, HandlerContext
from adapters.http.handlers.parsing.query import read_json, read_query
from adapters.http.wire.request import HttpRequest, qualities
from adapters.http.wire.response import Response, encode_json, json_response, refused
from gateway.domain.errors import Refusal
from gateway.port.groups import (
    HANDLES_COUNT_MAX,
    LEASE_S,
    MESSAGES_COUNT_MAX,
    WAIT_MS_MAX,
    CreateLeaseGroup,
    ExtendReceived,
    LeaseGroup,
    LeaseTerms,
    Received,
    ReceiveMessages,
    ReturnReceived,
    SettleReceived,
)

MESSAGES: Final = 10  # in one answer, where `max` says nothing
_NO_STORE: Final = (b"cache-control", b"no-store")  # handles are secrets of the client that received them

T = TypeVar("T")
_Handles = Annotated[tuple[str, ...], Meta(max_length=HANDLES_COUNT_MAX)]


class _Create(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    start: str = "earliest"
    lease_s: int = LEASE_S
    attempts: int | None = None
    dead_letter: str | None = None
    retry_s: int = 0
    retry_max_s: int = 0
    ordered: bool = False


class _Receive(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=MESSAGES_COUNT_MAX)] = MESSAGES
    wait: Annotated[float, Meta(ge=0, le=WAIT_MS_MAX / 1_000)] = 0.0
    lease_s: int | None = None


class _Acknowledge(msgspec.Struct, forbid_unknown_fields=True):
    handles: _Handles


class _Return(msgspec.Struct, forbid_unknown_fields=True):
    handles: _Handles
    delay_s: int | None = None


class _Extend(msgspec.Struct, forbid_unknown_fields=True):
    handles: _Handles
    lease_s: int | None = None


def put_group(request: HttpRequest, context: HandlerContext) -> Action:
    """Creates a group."""
    given = _body(request, context, _Create)
    terms = LeaseTerms(
        lease_s=given.lease_s,
        attempts=given.attempts,
        dead_letter=given.dead_letter,
        retry_s=given.retry_s,
        retry_max_s=given.retry_max_s,
        ordered=given.ordered,
    )

    def reply(group: LeaseGroup) -> Response:
        document = {"group": group.group, "topic": group.topic, "terms": group.terms}
        return json_response(201 if group.created else 200, document)

    return Ask(CreateLeaseGroup(group=_group(context), topic=given.topic, start=given.start, terms=terms), reply)


def post_receive(request: HttpRequest, context: HandlerContext) -> Action:
    """Leases messages."""
    given = _body(request, context, _Receive) if request.body else _Receive()
    read_query(request)
    as_events = qualities(request.get(b"accept") or "").get(BATCH_JSON, 0.0) > 0

    def reply(received: Sequence[Received]) -> Response:
        headers = (_NO_STORE, (b"vary", b"accept"))
        if as_events:
            return Response(
                status=200, headers=((b"content-type", BATCH_JSON.encode()), *headers), body=_batch(received)
            )
        return json_response(200, {"messages": [_document(one) for one in received]}, *headers)

    asked = ReceiveMessages(
        group=_group(context), limit=given.max, wait_ms=round(given.wait * 1_000), lease_s=given.lease_s
    )
    return Ask(asked, reply, reads=True)


def _document(one: Received) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "offset": one.offset,
        "deliveries": one.deliveries,
        "handle": one.handle,
        "event": to_document(one.message),
    }


def _batch(received: Sequence[Received]) -> bytes:
    """Encodes CloudEvents; an extension's integer has 32 bits, so that offsets and queues are strings."""
    return encode_json(
        [
            {
                **to_document(one.message),
                "headgatehandle": one.handle,
                "headgatedeliveries": one.deliveries,
                "headgatequeue": str(one.queue),
                "headgateoffset": str(one.offset),
            }
            for one in received
        ]
    )


def post_ack(request: HttpRequest, context: HandlerContext) -> Action:
    """Settles messages for good."""
    given = _body(request, context, _Acknowledge)
    return Ask(SettleReceived(group=_group(context), handles=given.handles), _outcomes)


def post_nack(request: HttpRequest, context: HandlerContext) -> Action:
    """Gives messages back."""
    given = _body(request, context, _Return)
    asked = ReturnReceived(group=_group(context), handles=given.handles, delay_s=given.delay_s)
    return Ask(asked, _outcomes)


def post_extend(request: HttpRequest, context: HandlerContext) -> Action:
    """Lets leases last longer."""
    given = _body(request, context, _Extend)

    def reply(outcomes: Sequence[Refusal | str]) -> Response:
        handles = [one if isinstance(one, str) else None for one in outcomes]
        return _outcomes(outcomes, handles=handles)

    return Ask(ExtendReceived(group=_group(context), handles=given.handles, lease_s=given.lease_s), reply)


def _outcomes(outcomes: Sequence[Refusal | str | None], **more: Any) -> Response:
    """Answers for each handle; 207 where one of them was refused (RFC 4918, 11.1)."""
    faults = [
        {"index": index, "status": refused(one).status, "cause": one.cause.value, "detail": one.detail}
        for index, one in enumerate(outcomes)
        if isinstance(one, Refusal)
    ]
    document = {"done": len(outcomes) - len(faults), "refused": faults, **more}
    return json_response(207 if faults else 200, document, _NO_STORE)


def _group(context: HandlerContext) -> str:
    return context.below.split("/", 1)[0]


def _body(request: HttpRequest, context: HandlerContext, kind: type[T]) -> T:
    read_query(request)
    return read_json(request, context.options.max_body_bytes, kind, "the body is not what is asked for")
