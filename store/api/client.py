"""The interface of a store group, for proxies, in process (`store.local.local`) or over the network.

Everything that must outlive a master goes through the log: KV operations, group offsets and settled leases are
records of reserved queues, so one mechanism makes all of them durable. A call that changes something returns when
the change is durable and applied; a read sees every change that was acknowledged before it began.
"""

from collections.abc import Mapping
from typing import Protocol

from store.api.groups import GroupCalls
from store.api.keys import KeyCalls
from store.api.leases import LeaseCalls
from store.api.log import LogCalls
from store.api.queues import QueueCalls
from store.api.timers import TimerCalls


class StoreClient(Protocol):
    """One store group, or all groups of a cluster behind one. Its calls raise `StoreError` and its kind.

    Each store group has a log of its own. A call that names a queue goes to the store group that the queue lies in;
    keys and values, the offsets of consumer groups and addresses are in the home group; a search or a count without a
    queue covers all store groups.
    """

    @property
    def group(self) -> int:
        """The number of the store group; of a cluster, that of its home group."""

    @property
    def logs(self) -> Mapping[int, "StoreClient"]:
        """The store groups behind this client, by number, each with its own log. The client of one has itself there.

        A store group that joins the cluster appears here, and one that was removed is gone; one that cannot be reached
        stays, and its methods raise.
        """

    @property
    def log(self) -> LogCalls:
        """Appends to the log, and reads and follows it."""

    @property
    def queues(self) -> QueueCalls:
        """Reads and configures queues of the log."""

    @property
    def keys(self) -> KeyCalls:
        """Reads, changes and watches keys and values."""

    @property
    def groups(self) -> GroupCalls:
        """Stores the offsets of consumer groups."""

    @property
    def leases(self) -> LeaseCalls:
        """Leases messages of queues, one by one, and settles them."""

    @property
    def timers(self) -> TimerCalls:
        """Publishes messages at a later time."""
