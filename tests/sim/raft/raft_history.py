"""A history of a Raft cluster, made of its seed: faults, work, then healing, after which it must go on."""

import random

from controller.raft import ChangeKind, MembershipChange, RaftSettings
from tests.sim.raft.raft_cluster import TICK_MS, RaftCluster

ELECTION_TICKS = 10
CALM_MS = 60 * TICK_MS  # until the last late message has arrived
HEAL_MS = 3000 * TICK_MS  # with one entry in a message at a time
HOSTS_MAX = 9


class RaftHistory:
    def __init__(self, seed, *, incarnations=True):
        self.random = rng = random.Random(seed)
        small = rng.random() < 0.7  # limits that are reached all the time
        settings = RaftSettings(
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=rng.choice([1, 2, 3]),
            snapshot_ticks=30,
            append_bytes_max=rng.choice([1, 60, 500]) if small else 1 << 20,
            apply_bytes_max=rng.choice([1, 60, 500]) if small else 1 << 20,
            inflight_max=rng.choice([1, 2, 8]) if small else 256,
            inflight_bytes_max=rng.choice([1, 100]) if small else 1 << 20,
            uncommitted_bytes_max=rng.choice([50, 500]) if small else 1 << 20,
            cache_bytes_max=rng.choice([0, 0, 100]) if small else 1 << 20,
            promote_lag_max=rng.choice([0, 5, 1000]),
        )
        self.cluster = RaftCluster(
            rng, range(1, rng.choice([1, 2, 3, 3, 3, 4, 5, 5]) + 1), settings, incarnations=incarnations
        )
        self.proposals = 0
        self.next_id = len(self.cluster.hosts) + 1
        self.faults = rng.choices(FAULTS, k=rng.randrange(4, 3 * len(FAULTS)))  # some of them often, some not at all
        self.pace_ms = rng.choice([3, 10, 10, 30])

    def run(self, duration_ms):
        self.cluster.at(0, self._work)
        self.cluster.at(20 * TICK_MS, self._fault)
        self.working = True
        self.cluster.run(duration_ms)
        self.working = False
        self.heal()
        self.demand_progress()

    # ---- work

    def _work(self):
        if not self.working:
            return
        cluster, rng = self.cluster, self.random
        hosts = cluster.up()
        if hosts:
            leading = [host for host in hosts if host.raft.leadership is not None]
            host = rng.choice(leading if leading and rng.random() < 0.9 else hosts)
            for _ in range(rng.choice([1, 1, 2, 5])):
                self.proposals += 1
                cluster.propose(host, b"%d" % self.proposals)
            if rng.random() < 0.4:
                cluster.read(rng.choice(hosts))
        cluster.at(rng.expovariate(1 / self.pace_ms), self._work)

    def _fault(self):
        if not self.working:
            return
        self.random.choice(self.faults)(self)
        self.cluster.at(self.random.expovariate(1 / (4 * TICK_MS)), self._fault)

    # ---- faults

    def split(self):
        """Splits the nodes into two sides that do not reach each other."""
        hosts = list(self.cluster.hosts)
        side = set(self.random.sample(hosts, self.random.randrange(1, len(hosts) + 1)))
        self.cluster.cut = {(a, b) for a in hosts for b in hosts if (a in side) != (b in side)}

    def cut_one_way(self):
        """Lets some connections carry messages in one direction only."""
        hosts = list(self.cluster.hosts)
        for _ in range(self.random.randrange(1, 4)):
            self.cluster.cut.add((self.random.choice(hosts), self.random.choice(hosts)))

    def cut_leader(self):
        """Cuts the leader's incoming messages, its outgoing messages, or both."""
        leader = self.cluster.leader()
        if leader is not None:
            hears, heard = self.random.choice([(False, False), (True, False), (False, True)])
            for other in self.cluster.hosts:
                self.cluster.cut |= {(leader.id, other)} if not heard else set()
                self.cluster.cut |= {(other, leader.id)} if not hears else set()

    def join(self):
        self.cluster.cut = set()

    def weather(self):
        """Makes the network better or worse."""
        rng, cluster = self.random, self.cluster
        cluster.drop = rng.choice([0, 0, 0.05, 0.3])
        cluster.double = rng.choice([0, 0.1, 0.5])
        cluster.late = rng.choice([0, 0.02, 0.3])
        cluster.delay_ms = rng.choice([(0.5, 4), (0, 0.1), (1, 30)])

    def crash(self):
        hosts = self.cluster.up()
        if hosts:
            leader = self.cluster.leader()
            self.cluster.crash(
                leader if leader is not None and self.random.random() < 0.4 else self.random.choice(hosts)
            )

    def back_up(self):
        """Keeps a copy of a disk."""
        self.random.choice(list(self.cluster.hosts.values())).disk.back_up()

    def forget(self):
        """Replaces a disk by an empty one."""
        self._lose(self.cluster.forget)

    def roll_back(self):
        """Replaces a disk by an old copy."""
        self._lose(self.cluster.roll_back)

    def _lose(self, how):
        host = self.random.choice(list(self.cluster.hosts.values()))
        if self.cluster.memories_may_go(host):
            how(host)

    def crash_all(self):
        for host in self.cluster.up():
            if self.random.random() < 0.8:
                self.cluster.crash(host)

    def restart(self):
        for host in self.cluster.hosts.values():
            if host.raft is None and self.random.random() < 0.7:
                self.cluster.start(host)

    def skew(self):
        """Makes a clock faster or slower."""
        self.random.choice(list(self.cluster.hosts.values())).tick_ms = TICK_MS * self.random.choice(
            [0.3, 1, 1, 1.5, 5]
        )

    def slow_disk(self):
        host = self.random.choice(list(self.cluster.hosts.values()))
        host.disk_ms = self.random.choice([(0, 3), (0, 0), (10, 60), (50, 300)])

    def transfer(self):
        leader = self.cluster.leader()
        if leader is not None:
            to = self.random.choice(list(self.cluster.hosts))
            self.cluster.ask(leader, leader.raft.transfer, to)

    def add(self):
        leader = self.cluster.leader()
        if leader is not None and len(self.cluster.hosts) < HOSTS_MAX:
            id, name = self.next_id, self.cluster.new_incarnation(self.next_id)
            change = MembershipChange(kind=ChangeKind.ADD_LEARNER, node=id, address=f"node{id}", incarnation=name)
            if self.cluster.ask(leader, leader.raft.propose_change, change):
                self.cluster.add_host(id, incarnation=name)
                self.next_id += 1

    def promote(self):
        self._change(ChangeKind.PROMOTE)

    def remove(self):
        self._change(ChangeKind.REMOVE)

    def _change(self, kind):
        leader = self.cluster.leader()
        if leader is not None:
            node = self.random.choice(leader.raft.node.membership.ids)
            if not self.cluster.remembers_all(node):
                return  # with one lost already, one more could be one too many to go on
            change = MembershipChange(kind=kind, node=node)
            self.cluster.ask(leader, leader.raft.propose_change, change)

    def reshape(self):
        """Asks for many changes at once, of which at most one is taken."""
        for change in self.random.choices([RaftHistory.add, RaftHistory.promote, RaftHistory.remove], k=4):
            change(self)

    def compact(self):
        hosts = self.cluster.up()
        if hosts:
            self.cluster.compact(self.random.choice(hosts), self.random.choice([0, 0, 3, 20]))

    def unreachable(self):
        leader = self.cluster.leader()
        if leader is not None:
            leader.raft.unreachable(self.random.choice(list(self.cluster.hosts)))

    # ---- the end

    def heal(self):
        cluster = self.cluster
        cluster.cut, cluster.drop, cluster.double, cluster.late, cluster.delay_ms = set(), 0, 0, 0, (0.5, 4)
        for host in cluster.hosts.values():
            host.tick_ms, host.disk_ms = TICK_MS, (0, 3)
            if host.raft is None:
                cluster.start(host)

    def demand_progress(self):
        """Checks that there is a leader that commits, and that every node gets all of it and can read."""
        cluster = self.cluster
        cluster.run(CALM_MS)
        assert cluster.run(HEAL_MS, self._has_settled), "there is no leader that has applied all"
        entry = cluster.propose(cluster.leader(), b"last")
        done = cluster.run(HEAL_MS, lambda: all(host.applied >= entry.index for host in self._members()))
        assert done, "somebody does not get everything"
        assert cluster.checks.committed[entry.index] == entry.term, "what was proposed after healing was lost"
        assert len({host.state for host in self._members()}) == 1
        for host in self._members():
            host.reads.clear()
            assert cluster.read(host) is not None
            assert cluster.run(HEAL_MS, lambda host=host: not host.reads), f"node {host.id} cannot read"
        for index, data in cluster.acknowledged.items():
            assert cluster.checks.entries[index, cluster.checks.committed[index]][1] == data

    def _has_settled(self):
        leader = self.cluster.leader()
        if leader is None or leader.raft.leadership.transferee:
            return False
        log = leader.raft.node.log
        newest = self.cluster.membership()
        known = leader.raft.status().progress.keys() | {leader.id} == set(newest.ids)
        named = all(self.cluster.hosts[one.id].disk.incarnation() == one.incarnation for one in newest.members)
        return log.applied == log.last_index >= leader.raft.leadership.first and known and named

    def _members(self):
        return [self.cluster.hosts[id] for id in self.cluster.membership().ids]


FAULTS = [
    RaftHistory.split,
    RaftHistory.cut_one_way,
    RaftHistory.cut_leader,
    RaftHistory.join,
    RaftHistory.join,
    RaftHistory.weather,
    RaftHistory.crash,
    RaftHistory.crash_all,
    RaftHistory.restart,
    RaftHistory.restart,
    RaftHistory.skew,
    RaftHistory.slow_disk,
    RaftHistory.transfer,
    RaftHistory.add,
    RaftHistory.promote,
    RaftHistory.remove,
    RaftHistory.reshape,
    RaftHistory.reshape,
    RaftHistory.compact,
    RaftHistory.unreachable,
    RaftHistory.back_up,
    RaftHistory.back_up,
    RaftHistory.forget,
    RaftHistory.roll_back,
]
