"""The rights that requests at the port need: one function for each kind, named in the table of requests.

A function raises `Refusal` (FORBIDDEN) unless the permissions allow the request; only askers restricted by rules are
checked.
"""

from collections.abc import Mapping
from typing import Any

from gateway.domain.access import Permissions
from gateway.domain.access_settings import ACTIONS, Action
from gateway.domain.address import group_address, key_address
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import (
    DEFAULT_VHOST,
    REPLIES,
    exchange_address,
    in_vhost,
    local_name,
    queue_address,
    said,
    vhost_address,
    vhost_of,
)
from gateway.port.adapter import Consume, Request
from gateway.port.bodies import BeginBody, PublishBody
from gateway.port.groups import (
    CommitOffsets,
    CreateLeaseGroup,
    DeleteGroup,
    DescribeGroup,
    ExtendReceived,
    JoinGroup,
    LeaveGroup,
    PollGroup,
    ReceiveMessages,
    RenewMember,
    ResetGroup,
    ReturnReceived,
    SettleReceived,
)
from gateway.port.kv import CountKeys, GetKey, HoldKeys, ListKeys, RemoveKey, StoreKey, TransactKeys, WatchKeys
from gateway.port.queues import (
    TOPIC_EXCHANGE,
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
    address_of,
    exchange_root,
)
from gateway.port.reads import ExpectAnswer, FindMessages, LastValue, LastValues, ReadQueue, Retained
from gateway.port.shared import SHARED_PREFIX
from gateway.queues.leaving.rules import DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY
from gateway.queues.model.bindings import ALTERNATE, PREDECLARED, Exchange, patterns
from gateway.runtime.endpoint import Hub
from store.api.kv_rules import end_of_prefix

_SEEING: tuple[Action, ...] = ("subscribe", "publish")  # the rights by which a thing may be asked for
_RABBITMQ: Mapping[Action, str] = {"manage": "configure", "publish": "write", "subscribe": "read"}


def check_consume(permissions: Permissions, effect: Consume) -> None:
    """Raises `Refusal` (FORBIDDEN) unless a queue may be read. The pump checks a shared subscription's filter."""
    if not effect.queue.startswith(SHARED_PREFIX):
        _check_queue(permissions, "subscribe", effect.queue)


def _check_queue(permissions: Permissions, action: Action, name: str) -> None:
    """Raises `Refusal` (FORBIDDEN), in RabbitMQ's words, unless the action on a queue is allowed."""
    _check(permissions, action, queue_address(name), f"queue {said(name)}")


def _check_exchange(permissions: Permissions, action: Action, name: str) -> None:
    """Raises `Refusal` (FORBIDDEN), in RabbitMQ's words, unless the action on an exchange is allowed."""
    _check(permissions, action, exchange_address(name), f"exchange {said(name)}")


def _check(permissions: Permissions, action: Action, address: str, what: str) -> None:
    if permissions.access is None or permissions.access.may(action, address):
        return
    permissions.refusal(action, address)  # is counted
    who = permissions.identity.name
    raise Refusal(Cause.FORBIDDEN, f"{_RABBITMQ[action]} access to {what} refused for user '{who}'")


def _check_managed(permissions: Permissions, other: Action, address: str, what: str) -> bool:
    """Checks the right to manage a thing, or another one that RabbitMQ takes for it; returns whether it was the other.

    Raises `Refusal` (FORBIDDEN) unless one of them is there, or where a rule denies to manage the thing.
    """
    access = permissions.access
    if access is None or access.may("manage", address):
        return False
    if access.explain("manage", address).origin:
        _check(permissions, "manage", address, what)
    _check(permissions, other, address, what)
    return True


def _check_queue_managed(permissions: Permissions, other: Action, name: str) -> bool:
    return _check_managed(permissions, other, queue_address(name), f"queue {said(name)}")


def _check_exchange_managed(permissions: Permissions, other: Action, name: str) -> bool:
    return _check_managed(permissions, other, exchange_address(name), f"exchange {said(name)}")


def own(_hub: Hub, _permissions: Permissions, _request: Request[Any]) -> None:
    """Needs nothing: the request is about the asker's own state."""


def publishes(_hub: Hub, permissions: Permissions, request: BeginBody | PublishBody) -> None:
    """Needs the right to publish the message."""
    permissions.check_message(request.message)


def reads_address(_hub: Hub, permissions: Permissions, request: LastValue | ExpectAnswer) -> None:
    """Needs the right to read the address."""
    permissions.check("subscribe", request.address)


def reads_filter(_hub: Hub, permissions: Permissions, request: LastValues | Retained) -> None:
    """Needs the right to read something that the filter matches."""
    permissions.check_filter(request.pattern)


def finds(_hub: Hub, permissions: Permissions, request: FindMessages) -> None:
    """Needs the right to read the address, if one is given."""
    if request.address is not None:
        permissions.check("subscribe", request.address)


def reads_queue(_hub: Hub, permissions: Permissions, request: ReadQueue) -> None:
    """Needs the right to read each of the addresses."""
    for address in request.addresses:
        permissions.check("subscribe", address)


def opens_vhost(_hub: Hub, permissions: Permissions, request: OpenVhost) -> None:
    """Needs some right within the virtual host; everybody may open "/"."""
    access = permissions.access
    pattern = f"{vhost_address(request.name)}/#"
    if request.name == DEFAULT_VHOST or access is None or any(access.reaches(one, pattern) for one in ACTIONS):
        return
    permissions.refusal("subscribe", pattern)  # is counted; the words are RabbitMQ's
    name = permissions.identity.name
    raise Refusal(Cause.FORBIDDEN, f"access to vhost '{request.name}' refused for user '{name}'")


def declares_exchange(_hub: Hub, permissions: Permissions, request: DeclareExchange) -> None:
    """Needs the right to manage the exchange; an alternate exchange needs the same right as a binding to it.

    Whoever may publish something to an exchange, or read something of it, may ask whether it is there.
    """
    if not (request.passive and _sees_exchange(permissions, request.name)):
        _check_exchange(permissions, "manage", request.name)
    alternate = request.arguments.get(ALTERNATE)
    if isinstance(alternate, str) and not request.passive:
        _check_exchange_managed(permissions, "publish", in_vhost(vhost_of(request.name), alternate))
        for pattern in patterns(Exchange(name=request.name, kind="fanout"), ""):
            permissions.check_all("subscribe", pattern)


def manages_exchange(_hub: Hub, permissions: Permissions, request: DeleteExchange) -> None:
    """Needs the right to manage the exchange."""
    _check_exchange(permissions, "manage", request.name)


def binds_exchange(hub: Hub, permissions: Permissions, request: BindExchange) -> None:
    """Needs the right to manage or to write to the destination, and to read all that is bound to it.

    Others read that there.
    """
    _check_exchange_managed(permissions, "publish", request.destination)
    _check_bound(hub, permissions, request.source, request.routing_key)


def unbinds_exchange(hub: Hub, permissions: Permissions, request: UnbindExchange) -> None:
    """Needs the right to manage the destination, or to write to it and to read all that is bound."""
    if _check_exchange_managed(permissions, "publish", request.destination):
        _check_bound(hub, permissions, request.source, request.routing_key)


def declares_queue(_hub: Hub, permissions: Permissions, request: DeclareQueue) -> None:
    """Needs the right to manage the queue; for dead letters, to read it and to publish wherever they may go.

    Whoever may read a queue, or publish to it, may ask whether it is there. So may everybody who knows the name of a
    queue for answers: they cannot be guessed.
    """
    if request.passive and local_name(request.name).startswith(REPLIES):
        return
    if not (request.passive and _sees_queue(permissions, request.name)):
        _check_queue(permissions, "manage", request.name)
    exchange, key = request.arguments.get(DEAD_LETTER_EXCHANGE), request.arguments.get(DEAD_LETTER_KEY)
    if isinstance(exchange, str) and not request.passive:
        exchange = in_vhost(vhost_of(request.name), exchange)
        _check_queue(permissions, "subscribe", request.name)
        if isinstance(key, str):
            permissions.check("publish", address_of(exchange, key))
        else:
            kind = "topic" if exchange == TOPIC_EXCHANGE else "fanout"
            for pattern in patterns(Exchange(name=exchange, kind=kind), "#"):
                permissions.check_all("publish", pattern)


def _sees_queue(permissions: Permissions, name: str) -> bool:
    """Returns whether a queue may be asked for: rights to read it, or to publish to it, are enough.

    Nobody publishes to the queue of a shared subscription, whose messages come by its filter.
    """
    if _sees(permissions, queue_address(name)):
        return True
    direct = address_of(in_vhost(vhost_of(name), ""), local_name(name))
    return not local_name(name).startswith(SHARED_PREFIX) and _may(permissions, "publish", direct)


def _sees_exchange(permissions: Permissions, name: str) -> bool:
    """Returns whether an exchange may be asked for: a right to any of its messages is enough."""
    if local_name(name) in PREDECLARED or _sees(permissions, exchange_address(name)):
        return True
    access, messages = permissions.access, f"{exchange_root(name)}/#"
    return access is not None and any(access.reaches(action, messages) for action in _SEEING)


def _sees(permissions: Permissions, address: str) -> bool:
    return any(_may(permissions, action, address) for action in _SEEING)


def _may(permissions: Permissions, action: Action, address: str) -> bool:
    return permissions.access is not None and permissions.access.may(action, address)


def manages_queue(_hub: Hub, permissions: Permissions, request: DeleteQueue) -> None:
    """Needs the right to manage the queue."""
    _check_queue(permissions, "manage", request.name)


def purges(_hub: Hub, permissions: Permissions, request: PurgeQueue) -> None:
    """Needs the right to manage the queue, or to read it: a reader can take all messages away, too."""
    _check_queue_managed(permissions, "subscribe", request.name)


def unbinds(hub: Hub, permissions: Permissions, request: UnbindQueue) -> None:
    """Needs the right to manage the queue, or to write to it and to read all that is bound."""
    if _check_queue_managed(permissions, "publish", request.queue):
        _check_bound(hub, permissions, request.exchange, request.routing_key)


def binds(hub: Hub, permissions: Permissions, request: BindQueue) -> None:
    """Needs the right to manage or to write to the queue, and to read all that is bound to it.

    A reader of the queue reads that.
    """
    _check_queue_managed(permissions, "publish", request.queue)
    _check_bound(hub, permissions, request.exchange, request.routing_key)


def _check_bound(hub: Hub, permissions: Permissions, name: str, routing_key: str) -> None:
    """Checks the right to read all that a binding to an exchange takes.

    The refusal names all of a declared exchange, so that it does not reveal whether that is there, nor its type.
    """
    exchange, whole = hub.queues.exchange(name), Exchange(name=name, kind="fanout")
    if exchange is None:  # or one that is not known here yet: then all that may be published to it
        exchange = whole
    wanted = list(patterns(exchange, routing_key))
    if permissions.reads_all(wanted):
        return
    told = wanted if local_name(name) in PREDECLARED else patterns(whole, "")
    for pattern in told:
        permissions.check_all("subscribe", pattern)
    raise permissions.refusal("subscribe", wanted[0])


def gets(_hub: Hub, permissions: Permissions, request: GetMessage) -> None:
    """Needs the right to read the queue."""
    _check_queue(permissions, "subscribe", request.queue)


def reads_key(_hub: Hub, permissions: Permissions, request: GetKey) -> None:
    """Needs the right to read the key."""
    permissions.check("subscribe", key_address(request.namespace, request.key))


def writes_key(_hub: Hub, permissions: Permissions, request: StoreKey | RemoveKey) -> None:
    """Needs the right to write the key."""
    permissions.check("publish", key_address(request.namespace, request.key))


def transacts(_hub: Hub, permissions: Permissions, request: TransactKeys) -> None:
    """Needs the right to write the keys written, and to read keys only compared: a compare reveals its key."""
    written = {operation.key for operation in request.operations}
    for key in written:
        permissions.check("publish", key_address(request.namespace, key))
    for key in request.compares.keys() - written:
        permissions.check("subscribe", key_address(request.namespace, key))


def reads_keys(_hub: Hub, permissions: Permissions, request: ListKeys | WatchKeys) -> None:
    """Needs the right to read some key of the namespace."""
    permissions.check_filter(key_address(request.namespace, "#"))


def holds_keys(_hub: Hub, permissions: Permissions, _request: HoldKeys) -> None:
    """Needs the right to read some key: few states are held at a time, for all clients together."""
    permissions.check_filter(key_address("+", "#"))


def counts_keys(_hub: Hub, permissions: Permissions, request: CountKeys) -> None:
    """Needs the right to read all keys below a level, or of the whole namespace: the number tells of all of them."""
    start = request.start
    below = start if start.endswith("/") and request.end == end_of_prefix(start) else ""
    permissions.check_all("subscribe", key_address(request.namespace, f"{below}#"))


def reads_by_group(
    _hub: Hub,
    permissions: Permissions,
    request: JoinGroup
    | PollGroup
    | CommitOffsets
    | RenewMember
    | LeaveGroup
    | CreateLeaseGroup
    | ReceiveMessages
    | SettleReceived
    | ReturnReceived
    | ExtendReceived,
) -> None:
    """Needs the right to read by the group; the right to its topic is checked where the group is read."""
    permissions.check("subscribe", group_address(request.group))


def creates_lease_group(hub: Hub, permissions: Permissions, request: CreateLeaseGroup) -> None:
    """Needs the right to read by the group, and to publish its dead letters."""
    reads_by_group(hub, permissions, request)
    if (address := request.terms.dead_letter) is not None:
        permissions.check("publish", address)


def describes_group(_hub: Hub, permissions: Permissions, request: DescribeGroup) -> None:
    """Needs any right to the group."""
    address = group_address(request.group)
    if not _sees(permissions, address):
        permissions.check("manage", address)


def manages_group(_hub: Hub, permissions: Permissions, request: ResetGroup | DeleteGroup) -> None:
    """Needs the right to manage the group."""
    permissions.check("manage", group_address(request.group))
