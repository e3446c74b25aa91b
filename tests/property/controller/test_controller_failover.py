"""Elections over a model of replicas: whatever dies, is cut off or is late, no acknowledged entry is ever missing on a
master. The model does what the rules say that a store does; what it checks is that the rules are enough."""

import random

import pytest

from controller.api.client import ControllerError, GroupConfig, Replica
from controller.api.commands import AddGroup, AlterSyncSet, RegisterReplica
from controller.elections.admission import ReplicaAdmission
from controller.elections.elections import Elections
from controller.elections.registry import Heartbeat, Registry
from controller.metadata.groups import majority
from controller.metadata.state import MetadataState

STEPS = 500


class ReplicaLog:
    """One replica: a log of (epoch, value), where each epoch begins in it, and whether it is master."""

    def __init__(self, id_):
        self.id = id_
        self.log = []
        self.starts = [(0, 0)]  # (epoch, first index), the epochs it has a part of or whose beginning it has reached
        self.known = 0  # the newest epoch it has heard of
        self.start()

    def start(self):
        """Starts the store as after a crash, with what is on disk."""
        self.up, self.linked = True, True
        self.epoch = None  # of its mastership
        self.set, self.sync_epoch, self.asked = (), 0, None
        self.acks = {}
        self.confirmed = 0

    @property
    def log_epoch(self):
        return max(epoch for epoch, start in self.starts if start <= len(self.log))

    def learn(self, epoch):
        if epoch > self.known:
            self.known = epoch
            self.epoch = None

    def lead(self, group):
        self.epoch, self.acks, self.asked, self.confirmed = group.master_epoch, {}, None, 0
        self.starts = [(epoch, start) for epoch, start in self.starts if start < len(self.log)]
        self.starts.append((self.epoch, len(self.log)))  # an epoch without data is replaced

    def follow(self, master, entries_max):
        """Cuts what the master does not have, copies a part of what it has, and reports how far this log is the
        master's.
        """
        self.learn(master.epoch)
        same = 0
        while same < min(len(self.log), len(master.log)) and self.log[same] == master.log[same]:
            same += 1
        self.log[same:] = master.log[same : same + entries_max]
        self.starts = [(epoch, start) for epoch, start in master.starts if start <= len(self.log)]
        return len(self.log)


class FailoverCluster:
    """Controllers that always agree, hear some heartbeats, and answer some."""

    def __init__(self, seed, acknowledge):
        self.chance = random.Random(seed)
        self.quorum = acknowledge == "quorum"
        size = self.chance.choice((2, 3, 3, 5))
        self.state, self.registry, self.now = MetadataState(), Registry(0, dead_after_ms=800), 0
        self.elections = Elections(self.state.groups, self.registry)
        self.state.apply(AddGroup(number=0, config=GroupConfig(replicas=size, acknowledge=acknowledge), time_ms=0))
        self.stores = [ReplicaLog(id_) for id_ in range(1, size + 1)]
        for store in self.stores:
            replica = Replica(id=store.id, node="n", address="a", check="c")
            self.state.apply(RegisterReplica(group=0, replica=replica, time_ms=0))
            self.heartbeat(store)
        self.cut = set()  # pairs that do not hear each other
        self.acknowledged = []
        self.asked = []  # alterations on their way
        self.values = iter(range(10**9))
        self.epochs = 0

    @property
    def group(self):
        return self.state.groups[0]

    # ---- controllers

    def heartbeat(self, store):
        if not (store.up and store.linked):
            return
        said = Heartbeat(
            group=0,
            replica=store.id,
            node="n",
            address="a",
            master=store.epoch is not None,
            master_epoch=store.known,
            log_epoch=store.log_epoch,
            log_end=len(store.log),
        )
        self.registry.heartbeat(said, self.now)

    def answer(self, store):
        """Tells a store what the controllers have decided."""
        if not (store.up and store.linked) or self.group.master_epoch < store.known:
            return
        store.learn(self.group.master_epoch)
        # One that was master in this epoch before it was started again waits to be elected again.
        was_master = any(epoch == store.known for epoch, _ in store.starts)
        if self.group.master == store.id and store.epoch is None and not was_master:
            store.lead(self.group)
        if store.epoch == self.group.master_epoch and self.group.sync_epoch > store.sync_epoch:
            store.set, store.sync_epoch, store.asked = self.group.sync_set, self.group.sync_epoch, None

    def tick(self):
        self.now += 300
        for command in self.elections.tick(self.now, self.now):
            if self.chance.random() < 0.9:
                try:
                    self.state.apply(command)
                except ControllerError as refused:
                    raise AssertionError("proposed on what is in force") from refused

    def decide(self):
        """Applies one of the requests by chance; one that is refused changes nothing."""
        if self.asked:
            command = self.asked.pop(self.chance.randrange(len(self.asked)))
            try:
                ReplicaAdmission(self.state.groups, self.registry).check_alteration(command, self.now)
                self.state.apply(command)
            except ControllerError:
                pass

    # ---- stores

    def masters(self):
        return [store for store in self.stores if store.up and store.epoch is not None and store.set]

    def write(self, store):
        store.log.append((store.epoch, next(self.values)))

    def replicate(self, master, replica):
        if replica is master or not replica.up or {master.id, replica.id} in [set(pair) for pair in self.cut]:
            return
        if replica.known > master.epoch:
            master.learn(replica.known)
            return
        master.acks[replica.id] = replica.follow(master, self.chance.choice((0, 1, 1, 3, 50)))
        self.confirm(master)

    def confirm(self, master):
        acks = master.acks | {master.id: len(master.log)}
        sets = [master.set] if master.asked is None else [master.set, master.asked]
        if self.quorum:
            begin = dict(master.starts)[master.epoch]
            found = min(sorted((acks.get(id_, 0) for id_ in one), reverse=True)[majority(len(one)) - 1] for one in sets)
            found = found if found >= begin else 0
        else:
            found = min(acks.get(id_, 0) for one in sets for id_ in one)
        for index in range(master.confirmed, found):
            if index == len(self.acknowledged):
                self.acknowledged.append(master.log[index])
            assert self.acknowledged[index] == master.log[index], "acknowledged is acknowledged"
        master.confirmed = max(master.confirmed, found)

    def ask(self, master):
        """Asks for a set that is smaller or larger by one; a heartbeat brings the answer, or nothing does."""
        if master.asked is not None:
            return
        other = self.chance.choice(self.stores).id
        wanted = set(master.set) ^ {other}
        if other == master.id:
            return
        begin = dict(master.starts)[master.epoch]
        if other in wanted and master.acks.get(other, -1) < max(master.confirmed, begin):
            return
        master.asked = tuple(sorted(wanted))
        self.asked.append(
            AlterSyncSet(
                group=0,
                master=master.id,
                master_epoch=master.epoch,
                sync_epoch=master.sync_epoch,
                new_set=master.asked,
                time_ms=self.now,
            )
        )

    # ---- faults

    def fault(self):
        store, other = self.chance.choice(self.masters() or self.stores), self.chance.choice(self.stores)
        what = self.chance.choice((0, 1, 1, 2, 2, 3, 4, 4))
        if what == 0:
            store.up = False
        elif what == 1:
            other.start()
        elif what == 2:
            store.linked = False
        elif what == 3:
            self.cut ^= {(store.id, other.id)}
        elif what == 4:
            self.cut.clear()
            for one in self.stores:
                one.linked = True
                one.up or one.start()

    def step(self):
        masters = self.masters()
        master = self.chance.choice(masters) if masters else None
        dice = self.chance.random()
        if dice < 0.1:
            self.fault()
        elif dice < 0.3:
            self.tick()
            for store in self.stores:
                if self.chance.random() < 0.6:
                    self.heartbeat(store)
        elif dice < 0.45:
            self.answer(self.chance.choice(self.stores))
        elif dice < 0.55:
            self.decide()
        elif master is not None and dice < 0.62:
            self.write(master)
            self.confirm(master)
        elif master is not None and dice < 0.75:
            self.ask(master)
        elif master is not None:
            self.replicate(master, self.chance.choice(self.stores))
        self.check()

    def check(self):
        serving = [store for store in self.stores if store.up and store.epoch is not None]
        assert len({store.epoch for store in serving}) == len(serving), "one master an epoch"
        self.epochs = max([self.epochs, *(store.epoch for store in serving)])
        for store in serving:
            if store.epoch == self.epochs:
                assert store.log[: len(self.acknowledged)] == self.acknowledged, "the newest master has everything"

    def heal(self):
        """Ends all faults: a master is elected, it writes, and everybody receives what it wrote."""
        self.cut.clear()
        self.asked.clear()
        for store in self.stores:
            store.up = store.linked = True
            store.asked = None if store.epoch is None else store.asked
        before = len(self.acknowledged)
        for _ in range(120):
            self.tick()
            for store in self.stores:
                self.heartbeat(store)
                self.answer(store)
            for master in self.masters():
                self.write(master)
                for store in self.stores:
                    self.replicate(master, store)
                if master.epoch is not None:
                    self.ask(master)
            self.decide()
            self.check()
        assert len(self.acknowledged) > before
        assert self.group.sync_set


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_no_acknowledged_entry_is_missing_on_a_newer_master(acknowledge):
    acknowledged = elected = 0
    for seed in range(50):
        cluster = FailoverCluster(seed, acknowledge)
        try:
            for _ in range(STEPS):
                cluster.step()
            acknowledged += len(cluster.acknowledged)
            elected += cluster.group.master_epoch
            cluster.heal()
        except AssertionError as failed:
            raise AssertionError(f"seed {seed}: {failed}") from failed
    assert acknowledged > 200
    assert elected > 150
