"""The things that both roles of a replica work with, and the services they offer to others."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from controller.api.client import ControllerClient, Group
from store.api.client import StoreClient
from store.format.frame import LogOffset
from store.local.local import LocalStore
from store.node.replica.disk import Disk
from store.node.replica.identity import ReplicaIdentity
from store.replication.pace import ReplicationPace
from store.serving.rpc import StoreService
from store.serving.service import GRACE_S, NodeService
from store.timers.timers import TimerLimits

TICK_S = 0.05  # how often a master's core gets the time
IDLE_TICK_S = (
    0.1  # the same while nothing is written, and all that was is confirmed; with the heartbeats while it is calm
)


class MasterServices(Protocol):
    """The services of a node to replicas and operators while it is master."""

    async def attend(self, context: Any, hello: bytes) -> None:
        """Serves a replica's stream whose first message is given, until it ends. Raises `StoreError`."""

    async def send_snapshot(self, context: Any, request: bytes) -> None:
        """Sends the views. Raises `StoreError`."""

    async def switch_over(self, target: int | None) -> int:
        """Hands over; returns who is master then. Raises `CannotSwitchOver`, `ControllerError`."""


class RepairServices(Protocol):
    """The services of a node to replicas with damaged logs, in either role."""

    async def send(self, request: bytes, context: Any) -> None:
        """Sends the sound frames of a range. Raises `StoreError`, OSError."""

    def seals(self, request: bytes) -> bytes:
        """Returns the digests of closed segments. Raises `StoreError`."""


class Repairing(Protocol):
    """The repair of the log's damages, beside the roles.

    `needs_repair`: there is damage that another replica may have sound. `cut_short`: the log has lost its end.
    """

    needs_repair: bool
    cut_short: bool

    def look(self) -> None:
        """Takes in which damages there are now, and begins with their repair."""

    def blocks(self, at: LogOffset) -> bool:
        """Returns whether the log is damaged at a log offset."""

    def awaited(self, at: LogOffset) -> frozenset[int]:
        """Returns the replicas that may have the damage at a log offset sound, and were not reached last."""


class RoleServices:
    """The services on a node's port, in the role that it has: none while it has no role."""

    def __init__(self, node: NodeService, timers: TimerLimits) -> None:
        self.rpc: StoreService | None = None  # once it listens
        self.master: MasterServices | None = None
        self.ranges: RepairServices | None = None  # once it is registered
        self._node = node
        self._timers = timers

    def serve(self, store: LocalStore, *, master: bool, hint: str | None = None) -> None:
        """Serves clients from now on; `hint` is where the master is, if it is another."""
        leases = store.leases
        self._node.serve(store, master=master, hint=hint, timers=self._timers, retired=lambda: leases.retired)
        self._read_from(store)

    async def stand_down(self, hint: str | None = None, *, grace_s: float = GRACE_S) -> None:
        """Serves clients nothing any more."""
        self._read_from(None)
        await self._node.stand_down(hint, grace_s=grace_s)

    def point_to(self, hint: str | None) -> None:
        """Sends clients to another master from now on."""
        self._node.point_to(hint)

    def _read_from(self, store: StoreClient | None) -> None:
        if self.rpc is not None:
            self.rpc.store = store


@dataclass(slots=True, kw_only=True)
class ReplicaContext:
    """A replica and its surroundings.

    `send_heartbeat` tells the controllers of changed epochs and roles at once. `known` returns the newest known group,
    `on_group` takes one that a controller has answered with. `dial` opens a channel to another node, `answers` asks
    whether a replica answers at an address. `unfit` are epochs to which this replica was elected and could not be their
    master. To those up to `since` it was elected before its node registered, and a node with a copy of its directory
    may be their master. Before `relief_ms` it does not hand over because its disk is full, before `start_over_ms` it
    does not start over again.
    """

    group: int
    identity: ReplicaIdentity
    disk: Disk
    services: RoleServices
    controller: ControllerClient
    send_heartbeat: Callable[[], None]
    known: Callable[[], Group]
    on_group: Callable[[Group], None]
    dial: Callable[[str], Any]
    answers: Callable[[str], Awaitable[bool]]
    now_ms: Callable[[], int]
    repairing: Repairing
    pace: ReplicationPace = field(default_factory=ReplicationPace)
    unfit: set[int] = field(default_factory=set)
    since: int = 0
    relief_ms: int = 0
    start_over_ms: int = 0

    @property
    def replica(self) -> int:
        """The replica's id."""
        return self.identity.id

    def address_of_master(self, group: Group) -> str | None:
        """Returns where the master of a group serves, if it is another replica."""
        if group.master in {None, self.replica}:
            return None
        found = group.replica(group.master) if group.master is not None else None
        return found.address if found is not None else None
