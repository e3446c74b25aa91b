"""The controller as the simulation of the cluster has it: one process that never forgets, and may be out of reach.

It takes `alter_sync_set` and `elect`, each fenced by epochs, and elects a master when it does not hear from the one
there is: any live member of the set in force, by chance, because any of them has to do; where a quorum acknowledges,
whoever stands best of a majority of the set that has promised to follow no older master.
"""

import random
from typing import NamedTuple

from cluster_world import World

from store.replication.agreement import Acknowledge
from store.replication.epochs import Standing
from store.replication.sync_set import AlterSet

__all__ = ["CONTROLLER", "Controller", "GroupState"]

CONTROLLER = "controller"
LOOK_MS = 40
ALIVE_MS = 300


class GroupState(NamedTuple):
    """What is in force."""

    master: int | None
    epoch: int
    sync_set: frozenset[int]
    sync_epoch: int

    @property
    def newness(self) -> tuple[int, int]:
        return self.epoch, self.sync_epoch


class Controller:
    def __init__(self, world: World, replicas: dict[int, bool], acknowledge: Acknowledge) -> None:
        self.world = world
        self.chance = random.Random(world.chance.random())
        self.replicas = replicas
        self.acknowledge = acknowledge
        members = frozenset(replica for replica, learner in replicas.items() if not learner)
        self.state = GroupState(None, 0, members, 0)
        self.heard: dict[int, int] = {}
        self.reachable = True
        self.elections = 0
        self._ballot: tuple[GroupState, int] | None = None  # promises are being gathered
        self._highest = 0  # epoch that anybody was asked to promise
        self._promises: dict[int, Standing] = {}
        self._prefer: int | None = None
        world.doors[CONTROLLER] = self.receive
        world.after(LOOK_MS, self._look)

    def receive(self, source, message) -> None:
        if not self.reachable:
            return
        match message:
            case ("heartbeat", epoch):
                if epoch in {0, self.state.epoch} or source != self.state.master:
                    self.heard[source] = self.world.now
            case AlterSet():
                self._alter(message)
            case ("elect", epoch, candidate):
                self._asked_to_elect(source, epoch, candidate)
            case ("promised", epoch, standing):
                self._promised(source, epoch, standing)
                return
        self.world.send(CONTROLLER, source, ("state", self.state))

    def _alter(self, ask: AlterSet) -> None:
        now = self.state
        if (ask.master, ask.master_epoch, ask.sync_epoch) == (now.master, now.epoch, now.sync_epoch):
            assert ask.master in ask.sync_set
            assert not any(self.replicas[member] for member in ask.sync_set)
            self.state = now._replace(sync_set=ask.sync_set, sync_epoch=now.sync_epoch + 1)

    def _asked_to_elect(self, source: int, epoch: int, candidate: int) -> None:
        if epoch != self.state.epoch or source != self.state.master or self._ballot is not None:
            return
        if candidate == source:  # it was restarted, and is not what it was
            self._elect(prefer=candidate if self.chance.random() < 0.5 else None)
        elif self._alive(candidate) and candidate in self.state.sync_set:
            self._elect(prefer=candidate)

    def _alive(self, replica: int) -> bool:
        return self.world.now - self.heard.get(replica, -ALIVE_MS) < ALIVE_MS

    def _look(self) -> None:
        self.world.after(LOOK_MS, self._look)
        if not self.reachable:
            return
        if self._ballot is not None:
            if self.world.now - self._asked_ms > ALIVE_MS:
                self._gather(self._prefer)
        elif self.state.master is None or not self._alive(self.state.master):
            self._elect()

    def _elect(self, prefer: int | None = None) -> None:
        if self.acknowledge is Acknowledge.QUORUM:
            self._gather(prefer)
            return
        candidates = sorted(replica for replica in self.state.sync_set if self._alive(replica))
        if prefer in candidates:
            candidates = [prefer]
        if candidates:
            self._name(self.chance.choice(candidates), self.state.epoch + 1)

    def _name(self, master: int, epoch: int) -> None:
        assert epoch > self.state.epoch
        self.elections += 1
        self.heard[master] = self.world.now
        self.state = GroupState(master, epoch, frozenset({master}), self.state.sync_epoch + 1)
        for replica in self.replicas:
            self.world.send(CONTROLLER, replica, ("state", self.state))

    # ---- by quorum

    def _gather(self, prefer: int | None) -> None:
        """Ask for promises, once more if there was no majority: whoever has promised cannot follow the old master."""
        self._highest = max(self._highest, self.state.epoch) + 1
        self._ballot = (self.state, self._highest)
        self._asked_ms = self.world.now
        self._promises = {}
        self._prefer = prefer
        for replica in self.state.sync_set:
            self.world.send(CONTROLLER, replica, ("promise", self._highest))

    def _promised(self, source: int, epoch: int, standing: Standing) -> None:
        if self._ballot is None or epoch != self._ballot[1]:
            return
        if self._ballot[0] != self.state:  # the set is not what it was when they were asked
            self._gather(self._prefer)
            return
        self._promises[source] = standing
        if len(self._promises) > len(self.state.sync_set) // 2:
            best = max(self._promises.values())
            candidates = [replica for replica, its in self._promises.items() if its == best]
            chosen = self._prefer if self._prefer in candidates else self.chance.choice(candidates)
            self._ballot = self._prefer = None
            self._name(chosen, epoch)
