"""Changes users and access rules of a running gateway: by SIGHUP, by a worker's parent, or from the cluster.

A new configuration takes effect whole or not at all: its reader refuses one with a mistake, and the previous one stays
in force. Other changes wait for a restart, and the log names them. Rules apply to the next message, published or
delivered, of open connections too. Connections of users that were removed or changed are closed; their clients may
connect again with another password, token or certificate.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from gateway.delivery.answers import AnswerWaits
from gateway.delivery.lanes import Receiver
from gateway.domain.access import OPEN, Permissions
from gateway.port.adapter import SubscriptionId
from gateway.push.delivery import PushDelivery
from gateway.runtime.endpoint import Endpoint
from gateway.runtime.turn import StreamHub
from store.base import logs
from store.base.process_errors import ConfigError

if TYPE_CHECKING:
    from gateway.config.config import Config

RELOADED = frozenset({"auth", "access"})  # sections

log = logs.get(__name__)


async def reread(config: "Config", hangups: asyncio.Event, load: Callable[[], "Config"]) -> AsyncIterator["Config"]:
    """Yields each configuration that `load` returns after a hangup, and logs those that cannot be used.

    `config` is the one of the start: its sections that are not reloaded stay in force until a restart.
    """
    while True:
        await hangups.wait()
        hangups.clear()
        log.info("reading the configuration again")
        try:
            new = await asyncio.to_thread(load)
        except (ConfigError, OSError) as error:
            log.error(
                "the new configuration is invalid; the previous one stays in force", mistakes=str(error).splitlines()
            )
            continue
        except asyncio.CancelledError:
            hangups.set()  # the next reader finds the request again
            raise
        sections = waiting_for_a_restart(config, new)
        if sections:
            log.warning("changes in these sections take effect at the next restart", sections=sections)
        yield new


def waiting_for_a_restart(before: "Config", after: "Config") -> list[str]:
    """Returns the sections that differ in two configurations, and keys of others, that are read at the start alone."""
    names = [name for name in before.__struct_fields__ if name not in RELOADED]
    differing = [name for name in names if getattr(before, name) != getattr(after, name)]
    if before.auth.psk_file != after.auth.psk_file:  # only what is in the file is read again
        differing.append("auth.psk_file")
    return differing


async def follow(
    hub: StreamHub, news: AsyncIterator["Config"], applied: Callable[["Config"], None] = lambda _config: None
) -> None:
    """Applies every new configuration; calls `applied` with those that count from then on."""
    async for config in news:
        try:
            dismissed = apply(hub, config)
        except ConfigError as error:  # a file of keys that was there a moment ago
            log.error(
                "the new configuration is invalid; the previous one stays in force", mistakes=str(error).splitlines()
            )
        else:
            applied(config)
            log.info("users and access rules are reloaded from the configuration", dismissed=dismissed)


def apply(hub: StreamHub, config: "Config") -> int:
    """Applies a configuration's users and rules; returns the number of connections that were closed.

    Raises `ConfigError`, with everything as it was.
    """
    changed = hub.authenticator.reload(config.auth)
    hub.access.reload(config.access)
    hub.contexts.provisioned.reload(config.auth.oscore_file)
    hub.fanout.restrict(lambda receiver, sub: _permissions_of(hub, receiver, sub))
    return _dismiss(hub, changed)


def watch_users(hub: StreamHub) -> None:
    """Starts closing connections of cluster users that are removed or get another password."""
    known = _passwords(hub)

    def look() -> None:
        nonlocal known
        before, known = known, _passwords(hub)
        own = hub.authenticator.has_own  # the file's users go before those of the cluster
        changed = frozenset([name for name, old in before.items() if known.get(name) != old and not own(name)])
        if changed:
            log.info("users of the cluster have changed", users=len(changed), dismissed=_dismiss(hub, changed))

    hub.controller.watch(look)


def _passwords(hub: StreamHub) -> dict[str, str]:
    """Returns the password hashes of the cluster's users, by name."""
    return {user.name: user.password for user in hub.controller.users()}


def _dismiss(hub: StreamHub, changed: frozenset[str]) -> int:
    """Closes connections whose clients could not authenticate again as the same user; returns how many."""
    leaving = [one for one in hub.connections.values() if not _stands(hub, one, changed)]
    for connection in leaving:
        connection.dismiss()
        hub.answers.left(connection)
    return len(leaving)


def _stands(hub: StreamHub, endpoint: Endpoint, changed: frozenset[str]) -> bool:
    """Returns whether a connection would still be accepted as its principal, or has not authenticated yet."""
    principal = endpoint.principal
    if endpoint.several and changed:  # its earlier principals are not known here
        return False
    if principal is hub.access.unauthenticated(endpoint.protocol):
        return True
    if principal.name and principal.name in changed:
        return False
    return hub.authenticator.admits(principal, loopback=endpoint.loopback)


def _permissions_of(hub: StreamHub, receiver: Receiver, sub: SubscriptionId) -> Permissions:
    """Returns the permissions of a nameless subscriber, whose subscription nothing restricted, nor could have."""
    if isinstance(receiver, AnswerWaits):
        return receiver.permissions_of(sub)
    if isinstance(receiver, PushDelivery):
        return receiver.permissions
    if not isinstance(receiver, Endpoint):
        return OPEN
    principal = receiver.principal
    return (principal if principal.anonymous else hub.access.unauthenticated(receiver.protocol)).permissions
