"""The answers to what adapters ask by `Call`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.config.config import is_loopback
from gateway.delivery.find import find_messages
from gateway.delivery.last_value import last_value, last_values
from gateway.delivery.time_grid import on_grid
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import is_sys
from gateway.domain.idempotency import StoredRequest, recall
from gateway.groups.consumer_groups import GROUP_REQUESTS
from gateway.kv.kv import KV_REQUESTS
from gateway.port.adapter import (
    DONE,
    Authenticate,
    Call,
    CancelTimer,
    Challenge,
    DropWill,
    EndSession,
    FindMessages,
    FoundMessages,
    LastValue,
    LastValues,
    LastValuesPage,
    ListAddresses,
    OpenedSession,
    OpenSession,
    Outcome,
    Principal,
    RecallKey,
    Request,
    Retained,
    RetainedPage,
    SaveSession,
)
from gateway.port.shared import JoinShared, LeaveShared
from gateway.port.tickets import timer_of
from gateway.publishing.delayed import cancel_timer
from gateway.publishing.ingest import refusal_of
from gateway.publishing.retained import retained_page
from gateway.runtime import access_requests
from gateway.runtime.endpoint import Endpoint
from gateway.security.auth import same_principal
from store.api.message import Message
from store.base import logs
from store.base.clock import now_ms
from store.base.errors import StoreError

if TYPE_CHECKING:
    from gateway.runtime.hub import Hub

__all__ = ["answer", "outcome"]

log = logs.get(__name__)


async def answer(hub: "Hub", endpoint: Endpoint, call: Call) -> Any:
    """The answer to a request; its type stands in the request's docstring. Raises `Refusal` or `StoreError`."""
    request, permissions = call.request, (call.who or endpoint.principal).permissions
    if permissions.access is None:
        return await _answer(hub, endpoint, call)
    access_requests.check(hub, permissions, request)
    sifted = access_requests.SIFTED.get(type(request))
    work = _answer(hub, endpoint, call) if sifted is None else sifted(hub, permissions, request)
    return await (on_grid(work) if type(request) in access_requests.ON_GRID else work)


async def _answer(hub: "Hub", endpoint: Endpoint, call: Call) -> Any:
    request, permissions = call.request, (call.who or endpoint.principal).permissions
    handler = _HANDLERS.get(type(request))
    if handler is not None:
        return await handler(hub, endpoint, request)
    if isinstance(request, CancelTimer):
        return await cancel_timer(hub.store, timer_of(call.who or endpoint.principal, request.timer))
    if isinstance(request, KV_REQUESTS):
        return await hub.keys.answer(endpoint, request, permissions)
    if isinstance(request, GROUP_REQUESTS):
        return await hub.groups.answer(endpoint, request, call.who or endpoint.principal)
    return await hub.queues.request(endpoint, request)


async def _authenticate(hub: "Hub", endpoint: Endpoint, request: Authenticate) -> Principal | Challenge:
    if endpoint.turned_away is not None:
        raise endpoint.turned_away
    address, loopback = endpoint.host, endpoint.loopback
    if request.address:
        address, loopback = request.address, is_loopback(request.address)
        if not request.sole:
            endpoint.several = True
        elif not endpoint.gone:  # else nobody would say that who is counted there has left
            endpoint.comes_from(address)
    principal = await hub.authenticator.authenticate(
        request, loopback=loopback, address=address, certificate=endpoint.certificate
    )
    if isinstance(principal, Challenge):
        return principal
    if endpoint.has_session and not same_principal(principal, endpoint.principal):
        raise Refusal(Cause.FORBIDDEN, "whoever has a session cannot become somebody else")
    client_id = request.client_id or endpoint.principal.permissions.identity.client_id
    principal = msgspec.structs.replace(
        principal,
        secret=hub.timer_secrets.of(principal.name),
        permissions=hub.access.permissions(principal, client_id=client_id, protocol=endpoint.protocol),
    )
    before, endpoint.principal = endpoint.principal, principal
    if before.name != principal.name and before is not hub.access.stranger(endpoint.protocol):
        endpoint.several = True
    return principal


async def _open_session(hub: "Hub", endpoint: Endpoint, request: OpenSession) -> OpenedSession:
    if endpoint.has_session:
        raise Refusal(Cause.CONFLICT, "this connection has a session already")
    if request.will is not None:
        permissions = endpoint.principal.permissions
        permissions.check_message(request.will.message)
        request = msgspec.structs.replace(request, will=msgspec.structs.replace(request.will, who=permissions.identity))
    endpoint.has_session = True
    delay_ms = hub.reconnect_penalty.delay_ms(endpoint.reconnecting_client(request.session_id), now_ms=now_ms())
    if delay_ms:
        await asyncio.sleep(delay_ms / 1_000)
    return await hub.sessions.open(endpoint, request, hub.authenticator.session_user(endpoint.principal))


async def _save_session(hub: "Hub", endpoint: Endpoint, request: SaveSession) -> None:
    await hub.sessions.save(endpoint, request)


async def _drop_will(hub: "Hub", endpoint: Endpoint, request: DropWill) -> None:
    hub.sessions.drop_will(endpoint)


async def _end_session(hub: "Hub", endpoint: Endpoint, request: EndSession) -> None:
    await hub.sessions.end(endpoint)


async def _recall_key(hub: "Hub", endpoint: Endpoint, request: RecallKey) -> StoredRequest:
    return await recall(hub.store, request.group, request.name)


async def _last_value(hub: "Hub", endpoint: Endpoint, request: LastValue) -> Message | None:
    return await last_value(hub.store, request.address, now_ms=now_ms())


async def _last_values(hub: "Hub", endpoint: Endpoint, request: LastValues) -> LastValuesPage:
    return await last_values(hub.store, request, now_ms=now_ms())


async def _retained(hub: "Hub", endpoint: Endpoint, request: Retained) -> RetainedPage:
    if is_sys(request.pattern):
        return hub.sys_topics.page(request)
    return await retained_page(hub.store, request, now_ms=now_ms())


async def _find_messages(hub: "Hub", endpoint: Endpoint, request: FindMessages) -> FoundMessages:
    async def find() -> FoundMessages:
        return await find_messages(hub.store, request, now_ms=now_ms(), indexed=hub.router.indexed)

    return await hub.finds.find(request, find)


async def _list_addresses(hub: "Hub", endpoint: Endpoint, request: ListAddresses) -> Sequence[str]:
    return await hub.directory.list(request.prefix, request.limit, router=hub.router, controller=hub.controller)


async def _join_shared(hub: "Hub", endpoint: Endpoint, request: JoinShared) -> Sequence[str | Refusal]:
    return await hub.shared.join(endpoint, request, endpoint.principal.permissions)


async def _leave_shared(hub: "Hub", endpoint: Endpoint, request: LeaveShared) -> None:
    await hub.shared.leave(endpoint, request)


_HANDLERS: dict[type[Request], Callable[["Hub", Endpoint, Any], Awaitable[Any]]] = {
    Authenticate: _authenticate,
    OpenSession: _open_session,
    SaveSession: _save_session,
    DropWill: _drop_will,
    EndSession: _end_session,
    RecallKey: _recall_key,
    LastValue: _last_value,
    LastValues: _last_values,
    Retained: _retained,
    ListAddresses: _list_addresses,
    FindMessages: _find_messages,
    JoinShared: _join_shared,
    LeaveShared: _leave_shared,
}


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
