"""A store as plain dictionaries."""

from collections import defaultdict

from store.api.log import IndexKind
from store.format.frame import FIRST_QUEUE, ROW_EXTRA, ROW_INDEX_ADDRESS, ROW_INDEX_KEY
from tests.support.store.model.keys import KeyModel
from tests.support.store.model.leases import LeaseModel


class StoreModel:
    """The state behind what was stored so far."""

    def __init__(self):
        self.queues = defaultdict(list)  # queue -> records
        self.queue_keys = defaultdict(list)  # queue -> the key's hash of each record
        self.bodies = {}  # position -> record
        self.last = {}  # address hash -> position
        self.index = defaultdict(list)  # (kind, hash) -> positions, the newest first
        self.kv = KeyModel()
        self.groups = defaultdict(dict)  # group -> queue -> offset
        self.leases = defaultdict(LeaseModel)  # (queue, group)
        self.addresses = set()
        self.timers = {}  # key -> record
        self.ended_timers = {}  # key -> "fired" or "cancelled"

    def store(self, at, queue, body, *, flags=0, key=0, address=0, id_=0):
        """Stores a record at a position of the log."""
        self.queues[queue].append(body)
        self.queue_keys[queue].append(key)
        self.bodies[at] = body
        if queue < FIRST_QUEUE or flags & ROW_EXTRA:
            return
        if address:
            self.last[address] = at
        for kind, hash_, wanted in (
            (IndexKind.KEY, key, flags & ROW_INDEX_KEY),
            (IndexKind.ADDRESS, address, flags & ROW_INDEX_ADDRESS),
            (IndexKind.ID, id_, True),
        ):
            if hash_ and wanted:
                self.index[kind, hash_].insert(0, at)

    def delete_queue(self, queue):
        """Deletes a queue's records and what was settled of them; the log, and what addresses had last, keep them."""
        self.queues.pop(queue, None)
        self.queue_keys.pop(queue, None)
        for at, leased in self.leases.items():
            if at[0] == queue:
                leased.settled.clear()

    def end_leases(self, queue):
        """Ends all leases of a queue that was deleted."""
        for at, leased in self.leases.items():
            if at[0] == queue:
                leased.end()

    def restart(self):
        """Forgets what a store does not keep when it starts again."""
        for leased in self.leases.values():
            leased.restart()

    # ---- leases

    def free(self, queue, group=""):
        """Returns the offsets of a queue that may be leased to a group."""
        return self.leases[queue, group].free(self.queue_keys[queue])

    def waiting(self, queue, group=""):
        """Returns how many messages of a queue are neither settled nor leased."""
        leased = self.leases[queue, group]
        return len(self.queues[queue]) - len(leased.settled) - len(leased.held)

    # ---- groups

    def commit(self, group, offsets):
        self.groups[group].update(offsets)

    def delete_group(self, group):
        self.groups.pop(group, None)

    # ---- timers

    def set_timer(self, key, record):
        self.timers[key] = record

    def end_timer(self, key, how):
        """Returns whether the timer was pending."""
        if self.timers.pop(key, None) is None:
            return False
        self.ended_timers[key] = how
        return True
