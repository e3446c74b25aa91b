"""The table of the requests that adapters make by `Call`: the method that answers each, and the right it needs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gateway.config.config import is_loopback
from gateway.delivery.answers import AnswerWaits
from gateway.delivery.find import find_messages
from gateway.delivery.last_value import last_value, last_values
from gateway.delivery.queue_search import read_queue
from gateway.delivery.search_cursors import CursorSeal
from gateway.delivery.time_grid import on_grid
from gateway.domain.access import Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import is_sys
from gateway.domain.idempotency import StoredRequest, recall
from gateway.domain.principal import Principal
from gateway.groups.consumer_groups import ConsumerGroups, GroupClient
from gateway.groups.lease_groups import LeaseGroups
from gateway.kv.kv import KeyClient, KeyValues
from gateway.port.adapter import DONE, Authenticate, Call, CancelTimer, Challenge, Outcome, Request, Token
from gateway.port.bodies import BeginBody, PublishBody, ReadPart, StoredBody, StorePart
from gateway.port.groups import (
    CommitOffsets,
    CreateLeaseGroup,
    DeleteGroup,
    DescribeGroup,
    ExtendReceived,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    PollGroup,
    ReceiveMessages,
    RenewMember,
    ResetGroup,
    ReturnReceived,
    SettleReceived,
)
from gateway.port.kv import (
    CountKeys,
    GetKey,
    HoldKeys,
    ListKeys,
    NextChanges,
    ReleaseKeys,
    RemoveKey,
    StoreKey,
    TransactKeys,
    UnwatchKeys,
    WatchKeys,
)
from gateway.port.oscore import FindKeys, NextLostContexts, OpenContext, OpenedContext
from gateway.port.push import (
    CreateSubscription,
    DeleteSubscription,
    GetSubscription,
    ListSubscriptions,
    PauseSubscription,
    UpdateSubscription,
)
from gateway.port.queues import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    OpenVhost,
    PurgeQueue,
    UnbindExchange,
    UnbindQueue,
)
from gateway.port.reads import (
    AwaitAnswer,
    ExpectAnswer,
    FindMessages,
    ForgetAnswer,
    FoundMessages,
    LastValue,
    LastValues,
    LastValuesPage,
    ListAddresses,
    QueuedMessages,
    ReadQueue,
    RecallKey,
    Retained,
    RetainedPage,
)
from gateway.port.sessions import DropWill, EndSession, OpenedSession, OpenSession, SaveSession
from gateway.port.shared import JoinShared, LeaveShared
from gateway.port.tickets import timer_of
from gateway.publishing.delayed import cancel_timer
from gateway.publishing.publishing import refusal_of
from gateway.publishing.retained import retained_page
from gateway.push.registry import PushRegistry
from gateway.queues.queues import NamedQueues
from gateway.runtime import access_requests as rights
from gateway.runtime.dtls import vouched_principal
from gateway.runtime.endpoint import Endpoint, Hub
from gateway.security.auth import same_principal
from gateway.sessions.opening import open_after
from store.api.message import Message
from store.base import logs
from store.base.clock import now_ms
from store.base.errors import StoreError

log = logs.get(__name__)

R = TypeVar("R")
T = TypeVar("T")

_CURSORS: Final = "\0cursors of "  # with a user's name, the name of its cursors' key; no user has such a name


class RequestContext(NamedTuple):
    """The connection that asks, the principal that it asks for, and the hub; `token` is the request's own."""

    hub: Hub
    endpoint: Endpoint
    who: Principal
    token: Token | None = None

    @property
    def permissions(self) -> Permissions:
        """Returns the principal's rights."""
        return self.who.permissions


class Served(NamedTuple):
    """The handler of requests of one type, and the right that they need.

    `needs` raises `Refusal` unless an asker restricted by rules has the right. `on_grid` answers such an asker on a
    grid of time (`gateway.delivery.time_grid`), as the request searches among data that it may not know of.
    """

    answer: Callable[[RequestContext, Any], Awaitable[Any]]
    needs: Callable[[Hub, Permissions, Any], None]
    on_grid: bool = False


async def answer(hub: Hub, endpoint: Endpoint, call: Call) -> Any:
    """Returns the answer to a request, of the type that its class names. Raises `Refusal` or `StoreError`."""
    request, asked = call.request, RequestContext(hub, endpoint, call.who or endpoint.principal, call.token)
    served = served_by(request)
    if asked.permissions.access is None:
        return await served.answer(asked, request)
    served.needs(hub, asked.permissions, request)
    work = served.answer(asked, request)
    return await (on_grid(work) if served.on_grid else work)


def served_by(request: Request[Any]) -> Served:
    """Returns how a request is served. Raises `Refusal` (FORBIDDEN) for one that is not in the table."""
    served = REQUESTS.get(type(request))
    if served is None:
        raise Refusal(Cause.FORBIDDEN, "not allowed: a request of this kind")
    return served


# ---- sessions and messages


async def _authenticate(asked: RequestContext, request: Authenticate) -> Principal | Challenge:
    hub, endpoint = asked.hub, asked.endpoint
    if endpoint.turned_away is not None:
        raise endpoint.turned_away
    address, loopback = endpoint.host, endpoint.loopback
    if request.address:
        address, loopback = request.address, is_loopback(request.address)
        if not request.sole:
            endpoint.several = True
        elif not endpoint.gone:  # else the member that is counted there would never be reported as gone
            endpoint.comes_from(address)
    principal = await hub.authenticator.authenticate(
        request, loopback=loopback, address=address, certificate=endpoint.certificate
    )
    if isinstance(principal, Challenge):
        return principal
    if endpoint.has_session and not same_principal(principal, endpoint.principal):
        raise Refusal(Cause.FORBIDDEN, "a connection with a session cannot change its user")
    client_id = request.client_id or endpoint.principal.permissions.identity.client_id
    principal = msgspec.structs.replace(
        principal,
        secret=hub.timer_secrets.of(principal.name),
        permissions=hub.access.permissions(principal, client_id=client_id, protocol=endpoint.protocol),
    )
    before, endpoint.principal = endpoint.principal, principal
    if before.name != principal.name and before is not hub.access.unauthenticated(endpoint.protocol):
        endpoint.several = True
    return principal


async def _open_context(asked: RequestContext, request: OpenContext) -> OpenedContext:
    principal_of = partial(vouched_principal, asked.hub, protocol=asked.endpoint.protocol)
    return await asked.hub.contexts.open(asked.endpoint, request, principal_of)


async def _next_lost_contexts(asked: RequestContext, request: NextLostContexts) -> Sequence[str]:
    return await asked.hub.contexts.next_lost(asked.endpoint, request)


async def _open_session(asked: RequestContext, request: OpenSession) -> OpenedSession:
    hub, endpoint = asked.hub, asked.endpoint
    if endpoint.has_session:
        raise Refusal(Cause.CONFLICT, "this connection has a session already")
    if request.will is not None:
        permissions = endpoint.principal.permissions
        permissions.check_message(request.will.message)
        request = msgspec.structs.replace(request, will=msgspec.structs.replace(request.will, who=permissions.identity))
    endpoint.has_session = True
    delay_ms = hub.reconnect_penalty.delay_ms(endpoint.reconnecting_client(request.session_id), now_ms=now_ms())
    user = hub.authenticator.session_user(endpoint.principal)
    return await open_after(delay_ms, hub.sessions, endpoint, request, user)


async def _save_session(asked: RequestContext, request: SaveSession) -> None:
    await asked.hub.sessions.save(asked.endpoint, request)


async def _drop_will(asked: RequestContext, request: DropWill) -> None:
    asked.hub.sessions.drop_will(asked.endpoint)


async def _recall_key(asked: RequestContext, request: RecallKey) -> StoredRequest:
    return await recall(asked.hub.store, request.store_group, request.name)


async def _last_value(asked: RequestContext, request: LastValue) -> Message | None:
    look = partial(last_value, asked.hub.store, request.address, queues_at=asked.hub.router.queues_at)
    return await asked.hub.reads.single.read(lambda: look(now_ms=now_ms()))


async def _last_values(asked: RequestContext, request: LastValues) -> LastValuesPage:
    hub, readable = asked.hub, asked.permissions.reads
    if not request.after:  # a later page goes on with the list that the first one has waited for
        await hub.directory.settle()
    look = partial(last_values, hub.store, request, readable=readable, queues_at=hub.router.queues_at)
    return await hub.reads.pages.read(lambda: look(now_ms=now_ms()))


async def _retained(asked: RequestContext, request: Retained) -> RetainedPage:
    if is_sys(request.pattern):
        return asked.hub.system_page(request, readable=asked.permissions.reads)
    return await retained_page(asked.hub.store, request, now_ms=now_ms(), readable=asked.permissions.reads)


async def _find_messages(asked: RequestContext, request: FindMessages) -> FoundMessages:
    hub, permissions = asked.hub, asked.permissions

    async def find() -> FoundMessages:
        options: dict[str, Any] = {"queues_at": hub.router.queues_at}
        if permissions.access is not None:  # by now: the search may have waited
            seal = CursorSeal(hub.timer_secrets.of(f"{_CURSORS}{permissions.identity.name}"))
            options |= {"readable": permissions.reads, "cursors": seal}
        return await find_messages(hub.store, request, now_ms=now_ms(), indexed=hub.router.indexed, **options)

    user = f"user {asked.who.name}" if asked.who.name else f"host {asked.endpoint.host}"
    return await hub.finds.find(request, find, connection=asked.endpoint, number=asked.token, user=user)


async def _read_queue(asked: RequestContext, request: ReadQueue) -> QueuedMessages:
    hub, ruled = asked.hub, asked.permissions.access is not None
    topics = hub.router.topic_of, hub.controller.topic_of_queue if ruled else None
    return await hub.reads.pages.read(lambda: read_queue(hub.store, request, *topics, now_ms=now_ms()))


async def _list_addresses(asked: RequestContext, request: ListAddresses) -> Sequence[str]:
    hub = asked.hub
    known: dict[str, Any] = {"router": hub.router, "controller": hub.controller, "after": request.after}
    return await hub.directory.list(request.prefix, request.limit, readable=asked.permissions.reads, **known)


async def _begin_body(asked: RequestContext, request: BeginBody) -> Sequence[int]:
    pace = asked.endpoint.pace
    excess = None if pace is None else pace.publish(1, request.size_bytes, now_ms=now_ms())
    if excess is not None:
        raise excess
    return await asked.hub.queues.bodies.begin(request.message)


async def _publish_body(asked: RequestContext, request: PublishBody) -> StoredBody:
    hub, message, status = asked.hub, request.message, "stored"
    try:
        return await hub.queues.bodies.publish(message, request.began_ms)
    except Refusal as refusal:
        status = refusal.cause.value
        raise
    except StoreError as error:
        status = refusal_of(error).cause.value
        raise
    finally:
        hub.metrics.messages_in(asked.endpoint.protocol, hub.router.topic_of(message.address), status).inc()


async def _join_shared(asked: RequestContext, request: JoinShared) -> Sequence[str | Refusal]:
    return await asked.hub.shared.join(asked.endpoint, request, asked.endpoint.principal.permissions)


# ---- requests that a room of its own answers


def _keys(method: Callable[[KeyValues, KeyClient, R], Awaitable[T]]) -> Callable[[RequestContext, R], Awaitable[T]]:
    return lambda asked, request: asked.hub.keys.answer(method, KeyClient(asked.endpoint, asked.permissions), request)


def _answers(
    method: Callable[[AnswerWaits, Endpoint, Principal, R], Awaitable[T]],
) -> Callable[[RequestContext, R], Awaitable[T]]:
    return lambda asked, request: method(asked.hub.answers, asked.endpoint, asked.who, request)


def _groups(
    method: Callable[[ConsumerGroups, GroupClient, R], Awaitable[T]],
) -> Callable[[RequestContext, R], Awaitable[T]]:
    return lambda asked, request: asked.hub.groups.answer(method, GroupClient(*asked[1:]), request)


def _lease_groups(
    method: Callable[[LeaseGroups, GroupClient, R], Awaitable[T]],
) -> Callable[[RequestContext, R], Awaitable[T]]:
    return lambda asked, request: asked.hub.lease_groups.answer(method, GroupClient(*asked[1:]), request)


def _push(method: Callable[[PushRegistry, Principal, R], Awaitable[T]]) -> Callable[[RequestContext, R], Awaitable[T]]:
    return lambda asked, request: method(asked.hub.push.registry, asked.who, request)


def _queues(
    method: Callable[[NamedQueues], Callable[[Endpoint, R], Awaitable[T]]],
) -> Callable[[RequestContext, R], Awaitable[T]]:
    def ask(asked: RequestContext, request: R) -> Awaitable[T]:
        queues = asked.hub.queues
        return queues.answer(method(queues)(asked.endpoint, request))

    return ask


# ---- the table


def _served(
    kind: type[Request[T]],
    answer: Callable[[RequestContext, Any], Awaitable[T]],
    needs: Callable[[Hub, Permissions, Any], None],
    *,
    on_grid: bool = False,
) -> tuple[type[Request[T]], Served]:
    """Returns a row, whose answer is of the type that the request's class names."""
    return kind, Served(answer, needs, on_grid)


REQUESTS: Mapping[type[Request[Any]], Served] = dict(
    [
        _served(Authenticate, _authenticate, rights.own),
        _served(FindKeys, lambda asked, request: asked.hub.contexts.find_keys(request), rights.own),  # no client's
        _served(OpenContext, _open_context, rights.own),  # its client has the keys, or is not heard
        _served(NextLostContexts, _next_lost_contexts, rights.own),
        _served(OpenSession, _open_session, rights.own),  # its will is checked when it is set, and when it is published
        _served(SaveSession, _save_session, rights.own),
        _served(EndSession, lambda asked, _: asked.hub.sessions.end(asked.endpoint), rights.own),
        _served(DropWill, _drop_will, rights.own),
        _served(RecallKey, _recall_key, rights.own),
        _served(  # by a ticket that its publisher was given
            CancelTimer,
            lambda asked, request: cancel_timer(asked.hub.store, timer_of(asked.who, request.timer)),
            rights.own,
        ),
        _served(JoinShared, _join_shared, rights.own),  # each of its filters is checked and refused by itself
        _served(LeaveShared, lambda asked, request: asked.hub.shared.leave(asked.endpoint, request), rights.own),
        _served(BeginBody, _begin_body, rights.publishes),
        # A part is read by nothing before the message, whose right is checked, and by who was delivered the message.
        _served(
            StorePart,
            lambda asked, request: asked.hub.queues.bodies.store_part(request.groups, request.data),
            rights.own,
        ),
        _served(PublishBody, _publish_body, rights.publishes),
        _served(ReadPart, lambda asked, request: asked.hub.queues.bodies.read_part(request.frame), rights.own),
        _served(LastValue, _last_value, rights.reads_address),
        _served(LastValues, _last_values, rights.reads_filter, on_grid=True),
        _served(Retained, _retained, rights.reads_filter),
        _served(FindMessages, _find_messages, rights.finds, on_grid=True),
        _served(ReadQueue, _read_queue, rights.reads_queue, on_grid=True),
        _served(ListAddresses, _list_addresses, rights.own, on_grid=True),  # it gets those that it may read
        _served(ExpectAnswer, _answers(AnswerWaits.expect), rights.reads_address),
        _served(AwaitAnswer, _answers(AnswerWaits.wait), rights.own),
        _served(ForgetAnswer, _answers(AnswerWaits.forget), rights.own),
        _served(OpenVhost, _queues(lambda queues: queues.registry.open_vhost), rights.opens_vhost),
        _served(DeclareExchange, _queues(lambda queues: queues.registry.declare_exchange), rights.declares_exchange),
        _served(DeleteExchange, _queues(lambda queues: queues.registry.delete_exchange), rights.manages_exchange),
        _served(DeclareQueue, _queues(lambda queues: queues.declare), rights.declares_queue),
        _served(DeleteQueue, _queues(lambda queues: queues.registry.delete_queue), rights.manages_queue),
        _served(PurgeQueue, _queues(lambda queues: queues.purge), rights.purges),
        _served(BindExchange, _queues(lambda queues: queues.registry.bind_exchange), rights.binds_exchange),
        _served(UnbindExchange, _queues(lambda queues: queues.registry.unbind_exchange), rights.unbinds_exchange),
        _served(BindQueue, _queues(lambda queues: queues.registry.bind), rights.binds),
        _served(UnbindQueue, _queues(lambda queues: queues.registry.unbind), rights.unbinds),
        _served(GetMessage, _queues(lambda queues: queues.get), rights.gets),
        _served(GetKey, _keys(KeyValues.get), rights.reads_key),
        _served(StoreKey, _keys(KeyValues.put), rights.writes_key),
        _served(RemoveKey, _keys(KeyValues.remove), rights.writes_key),
        _served(TransactKeys, _keys(KeyValues.transact), rights.transacts),
        _served(ListKeys, _keys(KeyValues.list_keys), rights.reads_keys, on_grid=True),
        _served(CountKeys, _keys(KeyValues.count), rights.counts_keys),
        _served(HoldKeys, _keys(KeyValues.hold), rights.holds_keys),
        _served(ReleaseKeys, _keys(KeyValues.release), rights.own),
        _served(WatchKeys, _keys(KeyValues.watch), rights.reads_keys),
        _served(NextChanges, _keys(KeyValues.next_changes), rights.own),  # of a watch, which knows whose it is
        _served(UnwatchKeys, _keys(KeyValues.unwatch), rights.own),
        _served(JoinGroup, _groups(ConsumerGroups.join), rights.reads_by_group),
        _served(PollGroup, _groups(ConsumerGroups.poll), rights.reads_by_group),
        _served(CommitOffsets, _groups(ConsumerGroups.commit), rights.reads_by_group),
        _served(RenewMember, _groups(ConsumerGroups.renew), rights.reads_by_group),
        _served(LeaveGroup, _groups(ConsumerGroups.leave), rights.reads_by_group),
        _served(CreateLeaseGroup, _lease_groups(LeaseGroups.create), rights.creates_lease_group),
        _served(ReceiveMessages, _lease_groups(LeaseGroups.receive), rights.reads_by_group),
        _served(SettleReceived, _lease_groups(LeaseGroups.settle), rights.reads_by_group),
        _served(ReturnReceived, _lease_groups(LeaseGroups.give_back), rights.reads_by_group),
        _served(ExtendReceived, _lease_groups(LeaseGroups.extend), rights.reads_by_group),
        _served(ListGroups, _groups(ConsumerGroups.list_groups), rights.own, on_grid=True),  # those that it may read by
        _served(DescribeGroup, _groups(ConsumerGroups.describe), rights.describes_group),
        _served(ResetGroup, _groups(ConsumerGroups.reset), rights.manages_group),
        _served(DeleteGroup, _groups(ConsumerGroups.delete), rights.manages_group),
        # A subscription's address has the name of its owner: its rights are checked once it is found.
        _served(CreateSubscription, _push(PushRegistry.create), rights.own),
        _served(GetSubscription, _push(PushRegistry.get), rights.own),
        _served(ListSubscriptions, _push(PushRegistry.list), rights.own, on_grid=True),
        _served(UpdateSubscription, _push(PushRegistry.update), rights.own),
        _served(PauseSubscription, _push(PushRegistry.pause), rights.own),
        _served(DeleteSubscription, _push(PushRegistry.delete), rights.own),
    ]
)


async def outcome(work: Awaitable[Any]) -> Outcome:
    """Returns how a request ends, of whatever it may end by."""
    try:
        value = await work
    except Refusal as refusal:
        return Outcome(error=refusal)
    except StoreError as error:
        return Outcome(error=refusal_of(error))
    except Exception:  # our own bug: the asker gets an answer, the log the trace
        log.exception("a request failed")
        return Outcome(error=Refusal(Cause.UNAVAILABLE, "internal error"))
    return DONE if value is None else Outcome(value=value)
