"""The controller as the simulation of the cluster has it: one process that never forgets, and may be out of reach.

It takes `alter_sync_set` and `elect`, each fenced by epochs, and elects a master when it does not hear from the one
there is: any live member of the set in force, by chance, because any of them has to do; the set is then that member.
Where a quorum acknowledges the master is taken away first; when a majority of the set has promised to follow no older
one, whoever of these stands best is elected, and the set stays.
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
        self.promises: dict[int, tuple[int, Standing]] = {}  # the newest epoch that each has promised, and its log then
        self._prefer: int | None = None
        world.doors[CONTROLLER] = self.receive
        world.after(LOOK_MS, self._look)

    def receive(self, source, message) -> None:
        if not self.reachable:
            return
        match message:
            case ("heartbeat", serving, promised, standing):
                if serving in {0, self.state.epoch} or source != self.state.master:
                    self.heard[source] = self.world.now
                if standing is not None and promised >= self.promises.get(source, (0,))[0]:
                    self.promises[source] = (promised, standing)
            case AlterSet():
                self._alter(message)
            case ("elect", epoch, candidate):
                self._asked_to_elect(source, epoch, candidate)
        self.world.send(CONTROLLER, source, ("state", self.state))

    def _alter(self, ask: AlterSet) -> None:
        now = self.state
        if (ask.master, ask.master_epoch, ask.sync_epoch) == (now.master, now.epoch, now.sync_epoch):
            assert ask.master in ask.sync_set
            assert not any(self.replicas[member] for member in ask.sync_set)
            assert self.acknowledge is not Acknowledge.QUORUM or len(ask.sync_set ^ now.sync_set) == 1
            self.state = now._replace(sync_set=ask.sync_set, sync_epoch=now.sync_epoch + 1)

    def _asked_to_elect(self, source: int, epoch: int, candidate: int) -> None:
        if epoch != self.state.epoch or source != self.state.master:
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
        if self.state.master is None or not self._alive(self.state.master):
            self._elect(self._prefer)

    def _elect(self, prefer: int | None = None) -> None:
        if self.acknowledge is Acknowledge.QUORUM and self.state.epoch > 0:
            self._elect_by_quorum(prefer)
            return
        candidates = sorted(replica for replica in self.state.sync_set if self._alive(replica))
        if prefer in candidates:
            candidates = [prefer]
        if candidates:
            self._name(self.chance.choice(candidates), frozenset)

    def _elect_by_quorum(self, prefer: int | None) -> None:
        """Take the master away, or elect the next one."""
        state = self.state
        enough = len(state.sync_set) // 2 + 1
        if state.master is not None:
            if sum(self._alive(replica) for replica in state.sync_set) >= enough:
                self._prefer = prefer
                self._put(GroupState(None, state.epoch + 1, state.sync_set, state.sync_epoch))
            return
        promised = {n: its[1] for n, its in self.promises.items() if n in state.sync_set and its[0] >= state.epoch}
        if len(promised) >= enough:
            best = max(promised.values())
            candidates = sorted(replica for replica, its in promised.items() if its == best)
            chosen = prefer if prefer in candidates else self.chance.choice(candidates)
            self._prefer = None
            self._name(chosen, lambda _master: state.sync_set)

    def _name(self, master: int, members) -> None:
        self.elections += 1
        self.heard[master] = self.world.now
        self._put(GroupState(master, self.state.epoch + 1, members({master}), self.state.sync_epoch + 1))

    def _put(self, state: GroupState) -> None:
        self.state = state
        for replica in self.replicas:
            self.world.send(CONTROLLER, replica, ("state", state))
