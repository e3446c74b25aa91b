"""Access to what is asked by `Call`: what has to be allowed for each request, and what is left out of the answers.

A request that is not in the table below is refused to whomever rules restrict: who adds one says here what it needs.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from gateway.delivery.find import find_messages
from gateway.delivery.last_value import last_values
from gateway.delivery.search_cursors import CursorSeal
from gateway.domain.access import Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import is_sys
from gateway.groups.admin import list_groups
from gateway.port.adapter import (
    Authenticate,
    CancelTimer,
    Consume,
    DropWill,
    EndSession,
    FindMessages,
    FoundMessages,
    LastValue,
    LastValues,
    LastValuesPage,
    ListAddresses,
    OpenSession,
    RecallKey,
    Request,
    Retained,
    RetainedPage,
    SaveSession,
)
from gateway.port.groups import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    GroupName,
    GroupsPage,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    PollGroup,
    RenewMember,
    ResetGroup,
    group_address,
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
    key_address,
)
from gateway.port.queues import (
    BindQueue,
    CountRoutes,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    PurgeQueue,
    UnbindQueue,
    exchange_address,
    queue_address,
)
from gateway.port.shared import SHARED_PREFIX, JoinShared, LeaveShared
from gateway.port.topology import Exchange, patterns
from gateway.publishing.retained import retained_page
from store.api.kv_rules import end_of_prefix
from store.base.clock import now_ms

if TYPE_CHECKING:
    from gateway.runtime.hub import Hub

__all__ = ["ON_GRID", "SIFTED", "check", "check_consume"]

GROUPS_AT_ONCE = 1_000  # names asked of the store at a time
_CURSORS: Final = "\0cursors of "  # with a user's name, what its cursors are sealed by; no user has such a name

_Check: TypeAlias = Callable[["Hub", Permissions, Any], None]


def check(hub: "Hub", permissions: Permissions, request: Request) -> None:
    """Raises `Refusal` (FORBIDDEN) unless the permissions allow a request."""
    needs = _NEEDS.get(type(request))
    if needs is None:
        raise Refusal(Cause.FORBIDDEN, f"not allowed: {type(request).__name__}")
    needs(hub, permissions, request)


def check_consume(permissions: Permissions, effect: Consume) -> None:
    """Raise `Refusal` (FORBIDDEN) unless a queue may be read. Of a shared subscription the pump looks at the filter."""
    if not effect.queue.startswith(SHARED_PREFIX):
        permissions.check("subscribe", queue_address(effect.queue))


# ---- what requests need


def _nothing(_hub: "Hub", _permissions: Permissions, _request: Request) -> None:
    """It is about what the asker itself has or has done."""


def _reads_address(_hub: "Hub", permissions: Permissions, request: LastValue) -> None:
    permissions.check("subscribe", request.address)


def _reads_filter(_hub: "Hub", permissions: Permissions, request: LastValues | Retained) -> None:
    permissions.check_filter(request.pattern)


def _finds(_hub: "Hub", permissions: Permissions, request: FindMessages) -> None:
    if request.address is not None:
        permissions.check("subscribe", request.address)


def _manages_exchange(_hub: "Hub", permissions: Permissions, request: DeclareExchange | DeleteExchange) -> None:
    _manages(
        permissions, exchange_address(request.name), passive=isinstance(request, DeclareExchange) and request.passive
    )


def _declares_queue(_hub: "Hub", permissions: Permissions, request: DeclareQueue) -> None:
    _manages(permissions, queue_address(request.name), passive=request.passive)


def _manages(permissions: Permissions, address: str, *, passive: bool) -> None:
    """Checks the right to manage an address; with `passive`, which only asks for existence, any right is enough."""
    access = permissions.access
    if passive and access is not None and (access.may("subscribe", address) or access.may("publish", address)):
        return
    permissions.check("manage", address)


def _manages_queue(_hub: "Hub", permissions: Permissions, request: DeleteQueue | PurgeQueue) -> None:
    permissions.check("manage", queue_address(request.name))


def _unbinds(_hub: "Hub", permissions: Permissions, request: UnbindQueue) -> None:
    permissions.check("manage", queue_address(request.queue))


def _binds(hub: "Hub", permissions: Permissions, request: BindQueue) -> None:
    """Checks that a client may read all that it binds to a queue: whoever reads the queue then reads that."""
    permissions.check("manage", queue_address(request.queue))
    exchange = hub.queues.exchange(request.exchange)
    if exchange is None:  # or one that is not known here yet: then all that may be published to it
        exchange = Exchange(name=request.exchange, kind="fanout")
    for pattern in patterns(exchange, request.routing_key):
        permissions.check_all("subscribe", pattern)


def _gets(_hub: "Hub", permissions: Permissions, request: GetMessage) -> None:
    permissions.check("subscribe", queue_address(request.queue))


def _reads_key(_hub: "Hub", permissions: Permissions, request: GetKey) -> None:
    permissions.check("subscribe", key_address(request.namespace, request.key))


def _writes_key(_hub: "Hub", permissions: Permissions, request: StoreKey | RemoveKey) -> None:
    permissions.check("publish", key_address(request.namespace, request.key))


def _transacts(_hub: "Hub", permissions: Permissions, request: TransactKeys) -> None:
    """A compare tells something of its key; of one that is written besides, no more than writing it does."""
    written = {operation.key for operation in request.operations}
    for key in written:
        permissions.check("publish", key_address(request.namespace, key))
    for key in request.compares.keys() - written:
        permissions.check("subscribe", key_address(request.namespace, key))


def _reads_keys(_hub: "Hub", permissions: Permissions, request: ListKeys | WatchKeys) -> None:
    permissions.check_filter(key_address(request.namespace, "#"))


def _counts_keys(_hub: "Hub", permissions: Permissions, request: CountKeys) -> None:
    """A number tells of all keys in its range: of those below a level, or of the whole namespace."""
    start = request.start
    below = start if start.endswith("/") and request.end == end_of_prefix(start) else ""
    permissions.check_all("subscribe", key_address(request.namespace, f"{below}#"))


def _reads_by_group(
    _hub: "Hub", permissions: Permissions, request: JoinGroup | PollGroup | CommitOffsets | RenewMember | LeaveGroup
) -> None:
    """The right to the topic is looked at where the group is read, which knows its topic."""
    permissions.check("subscribe", group_address(request.group))


def _describes_group(_hub: "Hub", permissions: Permissions, request: DescribeGroup) -> None:
    _manages(permissions, group_address(request.group), passive=True)


def _manages_group(_hub: "Hub", permissions: Permissions, request: ResetGroup | DeleteGroup) -> None:
    permissions.check("manage", group_address(request.group))


_NEEDS: dict[type[Request], _Check] = {
    Authenticate: _nothing,
    OpenSession: _nothing,  # its will is looked at when it is set, and when it is published
    SaveSession: _nothing,
    EndSession: _nothing,
    RecallKey: _nothing,
    DropWill: _nothing,
    CancelTimer: _nothing,  # by a ticket that its publisher was given
    CountRoutes: _nothing,  # of what it has published
    LeaveShared: _nothing,
    JoinShared: _nothing,  # each of its filters is looked at when it is joined, and refused by itself
    LastValue: _reads_address,
    LastValues: _reads_filter,
    Retained: _reads_filter,
    FindMessages: _finds,
    ListAddresses: _nothing,  # it gets those that it may read
    DeclareExchange: _manages_exchange,
    DeleteExchange: _manages_exchange,
    DeclareQueue: _declares_queue,
    DeleteQueue: _manages_queue,
    PurgeQueue: _manages_queue,
    BindQueue: _binds,
    UnbindQueue: _unbinds,
    GetMessage: _gets,
    GetKey: _reads_key,
    StoreKey: _writes_key,
    RemoveKey: _writes_key,
    TransactKeys: _transacts,
    ListKeys: _reads_keys,
    WatchKeys: _reads_keys,
    CountKeys: _counts_keys,
    HoldKeys: _nothing,
    ReleaseKeys: _nothing,
    NextChanges: _nothing,  # of a watch, which knows whose it is
    UnwatchKeys: _nothing,
    JoinGroup: _reads_by_group,
    PollGroup: _reads_by_group,
    CommitOffsets: _reads_by_group,
    RenewMember: _reads_by_group,
    LeaveGroup: _reads_by_group,
    ListGroups: _nothing,  # it gets those that it may read by
    DescribeGroup: _describes_group,
    ResetGroup: _manages_group,
    DeleteGroup: _manages_group,
}


# ---- answers of which something is left out


async def _retained(hub: "Hub", permissions: Permissions, request: Retained) -> RetainedPage:
    if is_sys(request.pattern):
        return hub.sys_topics.page(request, readable=permissions.reads)
    return await retained_page(hub.store, request, now_ms=now_ms(), readable=permissions.reads)


async def _last_values(hub: "Hub", permissions: Permissions, request: LastValues) -> LastValuesPage:
    return await last_values(hub.store, request, now_ms=now_ms(), readable=permissions.reads)


async def _list_addresses(hub: "Hub", permissions: Permissions, request: ListAddresses) -> Any:
    return await hub.directory.list(
        request.prefix, request.limit, router=hub.router, controller=hub.controller, readable=permissions.reads
    )


async def _find_messages(hub: "Hub", permissions: Permissions, request: FindMessages) -> FoundMessages:
    seal = CursorSeal(hub.timer_secrets.of(f"{_CURSORS}{permissions.identity.name}"))

    async def find() -> FoundMessages:
        return await find_messages(
            hub.store, request, now_ms=now_ms(), indexed=hub.router.indexed, readable=permissions.reads, cursors=seal
        )

    return await hub.finds.find(request, find)


async def _list_groups(hub: "Hub", permissions: Permissions, request: ListGroups) -> GroupsPage:
    found: list[GroupName] = []
    asked = msgspec.structs.replace(request, limit=GROUPS_AT_ONCE)
    while True:  # until it is known whether more than a page may be read
        page = await list_groups(hub.store, asked)
        found += [one for one in page.groups if permissions.reads(group_address(one.group))]
        if len(found) > request.limit:
            return GroupsPage(groups=found[: request.limit], after=found[request.limit - 1].group)
        if page.after is None:
            return GroupsPage(groups=found, after=None)
        asked = msgspec.structs.replace(asked, after=page.after)


SIFTED: dict[type[Request], Callable[["Hub", Permissions, Any], Awaitable[Any]]] = {
    Retained: _retained,
    LastValues: _last_values,
    ListAddresses: _list_addresses,
    FindMessages: _find_messages,
    ListGroups: _list_groups,
}

# What is looked for among things that the asker may not know of: answered on a grid of time
# (`gateway.delivery.time_grid`).
ON_GRID: Final[frozenset[type[Request]]] = frozenset({FindMessages, LastValues, ListAddresses, ListGroups, ListKeys})
