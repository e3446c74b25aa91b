"""Raft nodes whose network and disks do what a test says, one step at a time."""

import random

from controller.raft import (
    EntryKind,
    Membership,
    MemoryStorage,
    Raft,
    RaftMember,
    RaftSettings,
    Role,
    decode,
    encode,
    first_snapshot,
)
from controller.raft.messages import Entry, HardState
from controller.raft.ready import Ready

ELECTION_TICKS = 10


class Node:
    """A node with its disk and state machine. `hold` leaves its `Ready` unsaved, as a slow disk does."""

    def __init__(self, id, storage, settings, seed):
        self.id = id
        self.storage = storage
        self.settings = settings
        self.seed = seed
        self.hold = False
        self.start()

    def start(self):
        self.raft = Raft(self.id, self.storage, settings=self.settings, random=random.Random(self.seed))
        self.data = [self.storage.snapshot().data] if self.storage.snapshot().data else []
        self.reads = {}
        self.installed = 0
        self.memberships = []

    @property
    def status(self):
        return self.raft.status()

    @property
    def role(self):
        return self.status.role

    @property
    def term(self):
        return self.status.term

    def work(self):
        """Carries out what is to be done, and returns the messages to send."""
        sent = []
        while not self.hold and (ready := self.raft.ready()) is not None:
            self.storage.save(ready)
            sent += [*ready.early, *ready.messages]
            if ready.membership is not None:
                self.memberships.append(ready.membership)
            if ready.snapshot is not None:
                self.data = [ready.snapshot.data] if ready.snapshot.data else []
                self.installed += 1
            self.data += [entry.data for entry in ready.committed if entry.kind is EntryKind.COMMAND]
            self.reads |= {read.context: read.index for read in ready.reads}
            self.raft.advance(ready)
        return sent


class Net:
    """Nodes 1, 2, ...; `cut` holds (from, to), `lost` takes messages that a test wants lost."""

    def __init__(self, voters=3, *, learners=0, **settings):
        self.settings = RaftSettings(election_ticks=ELECTION_TICKS, **settings)
        members = [RaftMember(id=id, learner=id > voters) for id in range(1, voters + learners + 1)]
        first = first_snapshot(Membership.of(*members))
        self.nodes = {member.id: self.make(member.id, MemoryStorage(first)) for member in members}
        self.cut = set()
        self.lost = lambda message: False
        self.seen = []  # all messages that were sent

    def __getitem__(self, id):
        return self.nodes[id]

    def make(self, id, storage):
        return Node(id, storage, self.settings, seed=id)

    def join(self, id, storage=None):
        """Adds a machine, with an empty disk unless one is given."""
        self.nodes[id] = self.make(id, storage or MemoryStorage())

    def restart(self, id):
        self.nodes[id].start()
        self.nodes[id].hold = False

    def isolate(self, id):
        self.cut |= {(id, other) for other in self.nodes} | {(other, id) for other in self.nodes}

    def heal(self):
        self.cut = set()

    def settle(self):
        """Carries messages until there are none."""
        busy = True
        while busy:
            busy = False
            for node in list(self.nodes.values()):
                for message in node.work():
                    self.seen.append(message)
                    busy = True
                    if (
                        message.to in self.nodes
                        and (message.sender, message.to) not in self.cut
                        and not self.lost(message)
                    ):
                        self.nodes[message.to].raft.step(decode(encode(message)))

    def tick(self, count=1, *ids):
        for _ in range(count):
            for id in ids or tuple(self.nodes):
                self.nodes[id].raft.tick()
            self.settle()

    def elect(self, id):
        """Makes all nodes forget their leader, and one node's election timeout run out."""
        for _ in range(3):  # first it may have to learn of the term it is in
            if self.nodes[id].role is Role.LEADER:
                break
            for node in self.nodes.values():
                node.raft.elapsed = max(node.raft.elapsed, ELECTION_TICKS)
            self.nodes[id].raft.election_timeout = 1
            self.tick(1, id)
        assert self.nodes[id].role is Role.LEADER
        return self.nodes[id]

    def leader(self):
        return max((node for node in self.nodes.values() if node.role is Role.LEADER), key=lambda node: node.term)

    def propose(self, data, id=None):
        entry = (self.nodes[id] if id else self.leader()).raft.propose(data)
        self.settle()
        return entry

    def change(self, change):
        entry = self.leader().raft.propose_change(change)
        self.settle()
        return entry


def storage_with(*terms, voters=3, term=None, vote=0, commit=1):
    """Returns a disk with entries of these terms from index 2 on."""
    storage = MemoryStorage(first_snapshot(Membership.of(*(RaftMember(id=id) for id in range(1, voters + 1)))))
    entries = tuple(Entry(of, index, EntryKind.COMMAND, b"%d.%d" % (of, index)) for index, of in enumerate(terms, 2))
    hard = HardState(term=term or max((1, *terms)), vote=vote, commit=commit)
    storage.save(Ready(entries=entries, hard_state=hard, must_sync=True))
    return storage
