"""The virtual hosts there are: their limits, the connections that use them here, and those that were deleted."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.domain.vhosts import DEFAULT_VHOST, split_name, vhost_of

_COUNTED: Final = "$vhost/"  # in front of a name, where connections are counted for all proxies

_Limit = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]


class VhostLimits(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The limits of a virtual host, in RabbitMQ's words; -1 is none."""

    max_connections: _Limit = -1
    max_queues: _Limit = -1


NO_LIMITS: Final = VhostLimits()


class VhostConnection(Protocol):
    """A connection that uses a virtual host."""

    id: int
    gone: bool
    principal: Principal

    def force_close(self, reason: str) -> None:
        """Closes the connection, and tells its client why."""


class ConnectionCounts(Protocol):
    """The number of connections of each proxy, a moment late."""

    def here(self, name: str, count: int, /) -> None:
        """Notes the number of those here."""

    def elsewhere(self, name: str, /) -> int:
        """Returns how many there are at other proxies."""


class Vhosts:
    """The virtual hosts of one process. Those of the configuration are there for as long as it names them."""

    def __init__(self, configured: Iterable[str], counts: ConnectionCounts) -> None:
        self.configured = dict.fromkeys((DEFAULT_VHOST, *configured))
        self.names = dict(self.configured)
        self.deleted: dict[str, bool] = {}  # by name: whether it is empty, as far as is known here
        self._limits: Mapping[str, VhostLimits] = {}
        self._counts = counts
        self._queues: dict[str, int] = {}
        self._making: dict[str, int] = {}  # queues that are being made, and are not among those yet
        self._connections: dict[str, dict[int, VhostConnection]] = {}
        self._vhosts: dict[int, str] = {}  # by connection

    def take_over(self, names: Iterable[str], deleted: Iterable[str], limits: Mapping[str, VhostLimits]) -> bool:
        """Takes over the stored virtual hosts; returns whether a virtual host was deleted since."""
        before = self.deleted
        self.deleted = {vhost: before.get(vhost, False) for vhost in deleted}
        self.names |= dict.fromkeys(name for name in names if name not in self.deleted)
        self._limits = limits
        for vhost in limits:
            self._count(vhost)
        new = [vhost for vhost in self.deleted if vhost not in before]
        for vhost in new:
            self.delete(vhost)
        return bool(new)

    def delete(self, vhost: str) -> None:
        """Closes the connections of a virtual host that is deleted, as RabbitMQ does."""
        self.deleted[vhost] = False
        self.names.pop(vhost, None)
        for connection in list(self._connections.get(vhost, {}).values()):
            connection.force_close(f"vhost '{vhost}' is deleted")

    def made(self, vhost: str) -> None:
        """Notes a virtual host that is there, perhaps again."""
        self.deleted.pop(vhost, None)
        self.names[vhost] = None

    def know(self, vhost: str) -> None:
        """Notes a virtual host in which something is."""
        if vhost in self.deleted:
            self.deleted[vhost] = False
        else:
            self.names[vhost] = None

    def check(self, name: str) -> None:
        """Raises `Refusal` (NOT_FOUND) for a name inside the gateway that lies in a deleted virtual host."""
        if self.deleted and (vhost := vhost_of(name)) in self.deleted:
            raise Refusal(Cause.NOT_FOUND, f"vhost '{vhost}' is deleted")

    # ---- limits

    def limits(self, vhost: str) -> VhostLimits:
        """Returns the limits of a virtual host."""
        return self._limits.get(vhost, NO_LIMITS)

    def check_new_queue(self, name: str) -> None:
        """Raises `Refusal` (PRECONDITION) where one more queue is too many, in RabbitMQ's words."""
        vhost, local = split_name(name)
        limit = self.limits(vhost).max_queues
        if 0 <= limit <= self.queues(vhost) + self._making.get(vhost, 0):
            said = f"cannot declare queue '{local}': queue limit in vhost '{vhost}' ({limit}) is reached"
            raise Refusal(Cause.PRECONDITION, said)

    @contextmanager
    def making_queue(self, name: str) -> Iterator[None]:
        """Keeps room for a new queue while it is made. Raises as `check_new_queue`."""
        self.check_new_queue(name)
        vhost = vhost_of(name)
        self._making[vhost] = self._making.get(vhost, 0) + 1
        try:
            yield
        finally:
            self._making[vhost] -= 1
            if not self._making[vhost]:
                del self._making[vhost]

    def queues(self, vhost: str) -> int:
        """Returns how many queues a virtual host has."""
        return self._queues.get(vhost, 0)

    def queue_came(self, name: str, count: int = 1) -> None:
        """Notes a queue that is there, or with -1 one that is gone."""
        vhost = vhost_of(name)
        self._queues[vhost] = self._queues.get(vhost, 0) + count
        if not self._queues[vhost]:
            del self._queues[vhost]

    # ---- connections

    def connections(self, vhost: str) -> int:
        """Returns how many connections use a virtual host here."""
        return len(self._connections.get(vhost, {}))

    def enter(self, vhost: str, connection: VhostConnection) -> None:
        """Notes a connection. Raises `Refusal` (FORBIDDEN) where one more is too many, in RabbitMQ's words."""
        limit = self.limits(vhost).max_connections
        if 0 <= limit <= self.connections(vhost) + self._counts.elsewhere(f"{_COUNTED}{vhost}"):
            who = f"access to vhost '{vhost}' refused for user '{connection.principal.name}'"
            raise Refusal(Cause.FORBIDDEN, f"{who}: connection limit ({limit}) is reached")
        if connection.gone:
            return
        self._connections.setdefault(vhost, {})[connection.id] = connection
        self._vhosts[connection.id] = vhost
        self._count(vhost)

    def leave(self, connection: int) -> None:
        """Forgets a connection that has ended."""
        vhost = self._vhosts.pop(connection, None)
        if vhost is None:
            return
        del self._connections[vhost][connection]
        if not self._connections[vhost]:
            del self._connections[vhost]
        self._count(vhost)

    def _count(self, vhost: str) -> None:
        """Tells other proxies of the connections here, where they are limited."""
        if self.limits(vhost).max_connections >= 0:
            self._counts.here(f"{_COUNTED}{vhost}", self.connections(vhost))
