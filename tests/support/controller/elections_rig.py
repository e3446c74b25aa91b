"""The policy of elections over real metadata and a real registry, with replicas that are values."""

from controller.api.client import GroupConfig, Replica
from controller.api.commands import AddGroup, AlterSyncSet, RegisterReplica
from controller.elections.admission import ReplicaAdmission
from controller.elections.elections import Elections
from controller.elections.registry import TICK_MS, Heartbeat, Registry
from controller.metadata.state import MetadataState


class ElectionsRig:
    """The metadata, a registry and the policy, with replicas that heartbeat while they are `up`."""

    def __init__(self, replicas=3, *, learners=0, in_sync=None, config=None, **more):
        self.state = MetadataState()
        self.registry = Registry(0)
        self.elections = Elections(self.state.groups, self.registry)
        self.admission = ReplicaAdmission(self.state.groups, self.registry)
        self.now = 0
        self.said = {}  # replica -> what it says beyond the epoch and the role it takes from the metadata
        self.deaf = set()  # alive, and knows nothing of new epochs
        self.commands = []
        config = {"replicas": replicas, "min_in_sync": min(replicas, 2)} | more | (config or {})
        self.state.apply(AddGroup(number=0, config=GroupConfig(**config), time_ms=0))
        for id_ in range(1, replicas + learners + 1):
            self.register(id_, learner=id_ > replicas)
        self.elections.began(0)
        self.up(*range(1, replicas + learners + 1))
        if in_sync is not None:
            self.run(TICK_MS)
            assert self.group.master == 1
            for size in range(2, in_sync + 1):
                self.alter(range(1, size + 1))
            self.run(1000)
            self.commands.clear()

    @property
    def group(self):
        return self.state.groups[0]

    def register(self, id_, **changes):
        replica = Replica(**{"id": id_, "node": f"n{id_}", "address": f"n{id_}:1", "check": "c"} | changes)
        self.state.apply(RegisterReplica(group=0, replica=replica, time_ms=0))

    def alter(self, new_set):
        command = AlterSyncSet(
            group=0,
            master=self.group.master,
            master_epoch=self.group.master_epoch,
            sync_epoch=self.group.sync_epoch,
            new_set=tuple(new_set),
            time_ms=0,
        )
        self.admission.check_alteration(command, self.now)
        self.state.apply(command)

    def up(self, *ids, **what):
        for id_ in ids:
            self.said[id_] = self.said.get(id_, {}) | what
            self._speak(id_)

    def down(self, *ids):
        for id_ in ids:
            self.said.pop(id_, None)

    def _speak(self, id_):
        before = self.registry.last(0, id_)
        epoch = before.master_epoch if id_ in self.deaf and before else self.group.master_epoch
        role = {"master_epoch": epoch, "master": id_ == self.group.master and id_ not in self.deaf}
        said = {"group": 0, "replica": id_, "node": f"n{id_}", "address": "a"} | role | self.said[id_]
        self.registry.heartbeat(Heartbeat(**said), self.now)

    def tick(self):
        for command in self.elections.tick(self.now, 1_000_000 + self.now):
            self.commands.append(command)
            self.state.apply(command)

    def run(self, ms):
        """Lets time pass: all nodes report with every tick, and each proposal is applied at once."""
        for _ in range(0, ms, TICK_MS):
            self.now += TICK_MS
            for id_ in list(self.said):
                self._speak(id_)
            self.tick()
