"""Raft nodes on simulated machines: virtual time, disks that take their time, and a network that does what it likes."""

import heapq
import zlib
from random import Random

from controller.raft import (
    BadMessage,
    ChangeKind,
    EntryKind,
    Membership,
    MembershipChange,
    MemoryStorage,
    NotLeader,
    ProposalDropped,
    Raft,
    RaftMember,
    RaftSettings,
    decode,
    encode,
    first_snapshot,
)
from tests.sim.raft.raft_checks import Checks, Seen

TICK_MS = 10
COPIES_MAX = 3
MEND_MS = 10 * TICK_MS  # between two looks for who is another node than the membership says


class RaftDisk(MemoryStorage):
    """A storage whose machine may lose power: what did not have to be synced may be gone then."""

    def __init__(self, snapshot=None, incarnation=""):
        super().__init__(snapshot, incarnation)
        self._synced = self._hard
        self.copies = []  # of earlier times; as many as COPIES_MAX

    def save(self, ready):
        super().save(ready)
        if ready.must_sync:
            self._synced = self._hard

    def lose_power(self):
        self._hard = self._synced

    def back_up(self):
        """Keeps a copy of what is on disk now."""
        copy = RaftDisk(self._snapshot, self._incarnation)
        copy._hard = copy._synced = self._synced
        copy._base, copy._entries = self._base, list(self._entries)
        self.copies = [*self.copies[-COPIES_MAX + 1 :], copy]


class Host:
    """A machine. `raft` is None while it is down."""

    def __init__(self, id, disk):
        self.id = id
        self.disk = disk
        self.raft = None
        self.life = 0  # how often it was started
        self.ready = None  # being saved
        self.tick_ms = TICK_MS
        self.disk_ms = (0, 3)
        self.seen = Seen()
        self.state = 0  # the state machine: a checksum of all it was given
        self.applied = 0
        self.reads = {}  # context -> the least index that is right
        self.waiting = []  # indexes that reads wait for


class RaftCluster:
    """Hosts, their network, and what time it is, in virtual milliseconds."""

    def __init__(self, random, voters, settings=None, *, incarnations=True):
        self.incarnations = incarnations  # False: nodes go by their ids alone
        self.made = self.forgotten = self.rolled_back = self.replaced = 0  # how often that has happened
        self.voted = set()  # ids of those that voted before they were replaced, and are to vote again
        self.unused = Random(0)  # of hosts that are looked at while they are down
        self.random = random
        self.settings = settings or RaftSettings()
        self.checks = Checks()
        self.now = 0.0
        self.steps = 0
        self._events = []
        self._number = 0
        self.hosts = {}
        self.cut = set()  # (from, to): nothing gets through
        self.lost = lambda message: False  # takes what a story wants lost
        self.drop = self.double = self.late = 0.0  # probabilities
        self.delay_ms = (0.5, 4)
        self.coded = random.random() < 0.25  # messages go through their encoding
        self.acknowledged = {}  # index -> data, of proposals that were answered
        self.proposed = {}  # (host, life) -> {index: (term, data)}
        self.reads_served = 0
        self.refused = 0
        names = {id: self.new_incarnation(id) for id in voters}
        membership = Membership.of(*(RaftMember(id=id, incarnation=name) for id, name in names.items()))
        for id, name in names.items():
            self.add_host(id, first_snapshot(membership), name)
        self.at(MEND_MS, self._mend)

    # ---- time

    def at(self, delay_ms, function, *arguments):
        self._number += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._number, function, arguments))

    def run(self, duration_ms, until=lambda: False):
        """Lets time pass, and returns whether `until` became true."""
        end = self.now + duration_ms
        while self._events and self._events[0][0] <= end:
            self.now, _, function, arguments = heapq.heappop(self._events)
            function(*arguments)
            self.steps += 1
            if until():
                return True
        self.now = end
        return until()

    # ---- machines

    def new_incarnation(self, id):
        self.made += 1
        return f"{id}.{self.made}" if self.incarnations else ""

    def add_host(self, id, snapshot=None, incarnation=None):
        name = self.new_incarnation(id) if incarnation is None else incarnation
        host = self.hosts[id] = Host(id, RaftDisk(snapshot, name))
        self.start(host)
        return host

    # ---- memories that are lost

    def memories_may_go(self, host):
        """Returns whether a host may lose its memory: a minority at most has in every membership in force."""
        for other in self.hosts.values():
            history = self._history(other)
            for membership in history:
                gone = [id for id in membership.voters if not self._remembers(membership, id) or id == host.id]
                if len(gone) > (len(membership.voters) - 1) // 2 and host.id in gone:
                    return False
        return True

    def remembers_all(self, also):
        """Returns whether all who vote, and this one, have the memory by which the memberships know them."""
        memberships = [one for host in self.hosts.values() for one in self._history(host)]
        wanted = [(membership, id) for membership in memberships for id in {*membership.voters, also}]
        return all(self._remembers(membership, id) for membership, id in wanted if id in membership.ids)

    def _remembers(self, membership, id):
        return self.hosts[id].disk.incarnation() == membership.incarnation_of(id)

    def _history(self, host):
        """Returns the memberships that a host goes by, or may go by when what it has appended is taken back."""
        raft = host.raft or Raft(host.id, host.disk, settings=self.settings, random=self.unused)
        log = raft.node.log
        return [log.history.at(log.committed), *(one for index, one in log.history.held if index > log.committed)]

    def forget(self, host):
        """Starts a host with an empty disk."""
        if host.raft is not None:
            self.crash(host)
        host.disk = RaftDisk(None, self.new_incarnation(host.id))
        self.forgotten += 1

    def roll_back(self, host):
        """Starts a host with an earlier copy of its disk, which can be seen to be a copy."""
        if not host.disk.copies:
            return
        if host.raft is not None:
            self.crash(host)
        host.disk = self.random.choice(host.disk.copies)
        host.disk.copies = []
        if self.incarnations:
            host.disk.renew(self.new_incarnation(host.id))
        self.rolled_back += 1

    def _mend(self):
        """Lets members take part again whose incarnation is not the membership's, as controllers do."""
        self.at(MEND_MS, self._mend)
        leader = self.leader()
        if leader is None or not self.incarnations:
            return
        status = leader.raft.status()
        for member in status.membership.members:
            host, peer = self.hosts[member.id], status.progress.get(member.id)
            if host.raft is None or peer is None or {(host.id, leader.id), (leader.id, host.id)} & self.cut:
                continue
            name = host.disk.incarnation()
            if name != member.incarnation and not peer.active:
                change = MembershipChange(kind=ChangeKind.ADD_LEARNER, node=member.id, incarnation=name)
                if self.ask(leader, leader.raft.propose_change, change):
                    self.replaced += 1
                    self.voted |= set() if member.learner else {member.id}
                return
            if name == member.incarnation and member.learner and member.id in self.voted:
                self.ask(leader, leader.raft.propose_change, MembershipChange(kind=ChangeKind.PROMOTE, node=member.id))
                return

    def start(self, host):
        host.life += 1
        host.ready = None
        host.raft = Raft(host.id, host.disk, settings=self.settings, random=self.random)
        host.seen = Seen(host.disk.hard_state().term)
        host.reads, host.waiting = {}, []
        self._restore(host, host.disk.snapshot())
        self.checks.look(host)
        self.at(self.random.uniform(0, host.tick_ms), self._tick, host, host.life)
        self._pump(host)

    def crash(self, host):
        """Cuts the power. What was being saved is on disk whole or not at all, and no other node knows of it."""
        if host.ready is not None and self.random.random() < 0.5:
            host.disk.save(host.ready)
        host.disk.lose_power()
        host.raft = host.ready = None

    def up(self):
        return [host for host in self.hosts.values() if host.raft is not None]

    def leader(self):
        """Returns the leader of the latest term, if there is one."""
        leaders = [host for host in self.up() if host.raft.leadership is not None]
        return max(leaders, key=lambda host: host.raft.node.term, default=None)

    def membership(self):
        """Returns the newest membership that any node has applied."""
        return self.checks.memberships[max(self.checks.memberships)]

    def _tick(self, host, life):
        if host.raft is None or host.life != life:
            return
        host.raft.tick()
        self.at(host.tick_ms, self._tick, host, life)
        self._pump(host)

    # ---- what a driver does with a Ready

    def _pump(self, host):
        self.checks.look(host)
        if host.ready is not None:
            return
        host.ready = ready = host.raft.ready()
        if ready is None:
            return
        self._send(ready.early)
        delay = self.random.uniform(*host.disk_ms) if ready.must_sync else 0
        self.at(delay, self._saved, host, host.life, ready)

    def _saved(self, host, life, ready):
        if host.raft is None or host.life != life:
            return
        host.disk.save(ready)
        self._send(ready.messages)
        if ready.snapshot is not None:
            self._restore(host, ready.snapshot)
        mine = self.proposed.get((host.id, host.life), {})
        for entry in ready.committed:
            assert entry.index == host.applied + 1, "an entry is skipped, or applied twice"
            host.applied = entry.index
            if entry.kind is EntryKind.COMMAND:
                host.state = zlib.crc32(entry.data, host.state)
            term, data = mine.pop(entry.index, (0, b""))
            if term == entry.term:
                assert data == entry.data
                self.acknowledged[entry.index] = data
        host.ready = None
        host.raft.advance(ready)
        history = host.raft.node.log.history
        if ready.committed and history.held[0][0] <= host.applied:  # else a snapshot came while this was saved
            self.checks.applied(host.applied, host.state, history.at(host.applied))
        for read in ready.reads:
            self._read(host, read)
        host.waiting = [index for index in host.waiting if index > host.applied]
        self._pump(host)

    def _restore(self, host, snapshot):
        host.applied = snapshot.index
        host.state = int.from_bytes(snapshot.data, "big")
        if snapshot.index:
            self.checks.applied(snapshot.index, host.state, snapshot.membership)

    def _read(self, host, read):
        floor = host.reads.pop(read.context, None)
        if read.index is not None and floor is not None:
            assert read.index >= floor, f"a read of {read.index} misses what was committed up to {floor}"
            host.waiting.append(read.index)
            self.reads_served += 1

    # ---- the network

    def _send(self, messages):
        random = self.random
        for message in messages:
            self.checks.said(message)
            if (message.sender, message.to) in self.cut or message.to not in self.hosts or self.lost(message):
                continue
            copies = 2 if random.random() < self.double else 1
            for _ in range(copies):
                if random.random() >= self.drop:
                    delay = random.uniform(*self.delay_ms)
                    if random.random() < self.late:
                        delay += random.uniform(0, 30 * TICK_MS)
                    self.at(delay, self._arrive, message)

    def _arrive(self, message):
        host = self.hosts[message.to]
        if host.raft is None or (message.sender, message.to) in self.cut:
            return
        if self.coded:
            message = decode(encode(message))
        host.raft.step(message)
        self._pump(host)

    # ---- clients

    def propose(self, host, data):
        try:
            entry = host.raft.propose(data)
        except (NotLeader, ProposalDropped):
            self.refused += 1
            return None
        self.proposed.setdefault((host.id, host.life), {})[entry.index] = (entry.term, data)
        self._pump(host)
        return entry

    def read(self, host):
        self._number += 1
        context = self._number.to_bytes(8, "big")
        try:
            host.raft.read_index(context)
        except (NotLeader, ProposalDropped):
            self.refused += 1
            return None
        host.reads[context] = self.checks.commit
        self._pump(host)
        return context

    def ask(self, host, function, *arguments):
        """Calls a function that a host may refuse, and returns whether the host did not."""
        try:
            function(*arguments)
        except BadMessage:
            raise
        except Exception as error:
            from controller.raft import RaftError

            if not isinstance(error, RaftError):
                raise
            self.refused += 1
            return False
        self._pump(host)
        return True

    def compact(self, host, keep):
        """Compacts up to what is applied, or was a moment ago."""
        known = self.checks.states
        indexes = [at for at in range(max(0, host.applied - 10), host.applied + 1) if at in known]
        if not indexes:
            return
        index = self.random.choice(indexes)
        host.raft.compact(index, known[index].to_bytes(4, "big"), keep=keep)
        self._pump(host)
