"""One seeded history of a store group: replicas, a controller, clients, everything that goes wrong, and what must hold.

After every step:

* an epoch has one master;
* what any replica says is confirmed is the same everywhere, on disk there, and never taken back;
* what was confirmed, so what was acknowledged, is on disk wherever the next master can come from;
* nothing is in the log twice.

At the end: the history of the keys is linearizable; and when everything is well again, everybody gets on, every replica
is in sync, and all logs are the same.
"""

import random
from bisect import bisect_left

from cluster_clients import KeyClient, Producer
from cluster_controller import Controller
from cluster_log import header_of
from cluster_node import ORIGIN, Node
from cluster_world import World
from linearizability import check_history

from store.errors import StoreError
from store.format import LogOffset
from store.replication.agreement import Acknowledge
from store.replication.master import Master
from store.replication.slave import Slave, Stage

__all__ = ["History"]

FAULTS_MS = ((5, 150), (20, 400), (100, 1500))  # between two of them
FAULTS = [
    *["crash"] * 4,
    "outage",
    *["cut"] * 3,
    *["alone"] * 2,
    *["split"] * 3,
    "controller",
    *["disk"] * 2,
    "trim",
    "trim",
    "hand over",
]
HEAL_MS = 20_000


class History:
    """A group of `replicas`, in which things go wrong by chance, or as a test tells them to."""

    def __init__(
        self,
        seed: int,
        *,
        replicas: int | None = None,
        learners: int | None = None,
        acknowledge: Acknowledge | None = None,
        min_in_sync: int | None = None,
        producers: int = 2,
        key_clients: int = 3,
        pace=None,
    ) -> None:
        self.chance = chance = random.Random(seed)
        self.world = world = World(random.Random(chance.random()))
        full = replicas or chance.choice([1, 2, 3, 3, 3, 3, 4, 5])
        extra = learners if learners is not None else chance.choice([0, 0, 1])
        self.replicas = {n: n > full for n in range(1, full + extra + 1)}
        self.acknowledge = acknowledge or chance.choices(list(Acknowledge), [7, 2, 1])[0]
        self.min_in_sync = min_in_sync or min(full, chance.choice([1, 2, 2, 2, 3]))
        self.masters: dict[int, int] = {}  # by epoch
        self.common: list[bytes] = []  # the one log: what was confirmed anywhere
        self.starts: list[int] = []
        self.end = ORIGIN
        self.operations: set[tuple[int, int]] = set()  # in it
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.controller = Controller(world, self.replicas, self.acknowledge)
        more = {} if pace is None else {"pace": pace}
        self.nodes = [
            Node(
                world,
                number,
                replicas=self.replicas,
                acknowledge=self.acknowledge,
                min_in_sync=self.min_in_sync,
                on_master=self._began,
                **more,
            )
            for number in self.replicas
        ]
        # How far each replica's log is known to be the common one; what it has said is confirmed.
        self.same = {node.number: ORIGIN for node in self.nodes}
        self.cuts = {node.number: node.log.cuts for node in self.nodes}
        self.said = {(node.number, node.log.begun): ORIGIN for node in self.nodes}
        self.history: list = []
        numbers = list(self.replicas)
        self.producers = [
            Producer(world, f"producer {n}", n, numbers, on_acknowledged=self._acknowledged)
            for n in range(1, producers + 1)
        ]
        self.key_clients = [
            KeyClient(world, f"keys {n}", 100 + n, numbers, history=self.history, on_acknowledged=self._acknowledged)
            for n in range(key_clients)
        ]
        self.clients = [*self.producers, *self.key_clients]
        world.after_each = self.check

    # ---- what must hold

    def _began(self, node: Node, epoch: int) -> None:
        assert self.masters.setdefault(epoch, node.number) == node.number, f"two masters of epoch {epoch}"

    def _acknowledged(self, producer: int, sequence: int, start: int, end: int) -> None:
        if self.acknowledge is not Acknowledge.MASTER:
            assert end <= self.end, "acknowledged and not confirmed"
            header = header_of(self.common[bisect_left(self.starts, start)])
            assert (header.producer_id, header.sequence) == (producer, sequence), "acknowledged and not there"
            self.acknowledged[producer, sequence] = start
            having = sum(node.log.has(start, end) and not self.replicas[node.number] for node in self.nodes)
            assert having >= self.min_in_sync, f"acknowledged and on {having} disks"

    def check(self) -> None:
        """What holds after every step."""
        for node in self.nodes:
            if self.cuts[node.number] != node.log.cuts:
                self.cuts[node.number] = node.log.cuts
                self.same[node.number] = min(self.same[node.number], node.log.end)
            if node.core is not None and node.core.confirmed > self.same[node.number]:
                self._compare(node, node.core.confirmed)
            if node.core is not None:
                said = (node.number, node.log.begun)
                assert node.core.confirmed >= self.said.get(said, ORIGIN), "confirmed goes back"
                assert node.core.confirmed <= node.log.durable, "confirmed and not on disk"
                diverged = isinstance(node.core, Slave) and node.core.stage is Stage.DIVERGED
                assert not diverged, f"replica {node.number} is left with a log that nobody else has"
                self.said[said] = node.core.confirmed
        self._check_electable()

    def _compare(self, node: Node, until: LogOffset) -> None:
        """The replica's log, from where it was looked at, is the common one; and where that ends, makes it longer."""
        at = max(self.same[node.number], node.log.first)
        for frame in node.log.between(at, until):
            if at < self.end:
                assert self.common[bisect_left(self.starts, at)] == frame, f"replica {node.number} differs at {at}"
            else:
                self._add(at, frame)
            at = LogOffset(at + len(frame))
        assert at >= until, f"replica {node.number} does not have what it says is confirmed"
        self.same[node.number] = at

    def _add(self, at: LogOffset, frame: bytes) -> None:
        header = header_of(frame)
        operation = (header.producer_id, header.sequence)
        assert at == self.end
        assert operation not in self.operations, f"{operation} twice"
        self.operations.add(operation)
        self.starts.append(at)
        self.common.append(frame)
        self.end = LogOffset(at + len(frame))

    def _check_electable(self) -> None:
        """Whoever may be elected has all that was confirmed."""
        members = self.controller.state.sync_set
        having = 0
        for node in self.nodes:
            if node.number not in members:
                continue
            having += node.log.durable >= self.end and self._has_all(node)
        if self.acknowledge is Acknowledge.QUORUM:
            assert having > len(members) - (len(members) // 2 + 1), f"{having} of {members} have what was confirmed"
        else:
            assert having == len(members), f"{having} of {members} have what was confirmed"

    def _has_all(self, node: Node) -> bool:
        at = max(self.same[node.number], node.log.first)
        if at >= self.end:
            return True
        for frame in node.log.between(at, self.end):
            if self.common[bisect_left(self.starts, at)] != frame:
                return False
            at = LogOffset(at + len(frame))
        self.same[node.number] = max(at, self.same[node.number])
        return at >= self.end

    # ---- what goes wrong

    def run(self, length_ms: int) -> None:
        """Faults by chance for a time; then all is well, and everything has to come right."""
        chance, world = self.chance, self.world
        world.drop_chance = chance.choice([0, 0, 0.01, 0.1])
        world.repeat_chance = chance.choice([0, 0.05])
        world.reorder_chance = chance.choice([0, 0, 0.1])
        world.delay_chance = chance.choice([0, 0.02])
        between = chance.choice(FAULTS_MS)
        torn = chance.choice([0, 0, 0.01, 0.05])
        for node in self.nodes:
            node.torn_chance = torn
        until = world.now + length_ms
        while world.now < until:
            world.run(world.now + chance.randint(*between))
            self.fault()
        self.heal()

    def fault(self) -> None:
        """Something, for a time. The master is hit as often as all others."""
        chance, world = self.chance, self.world
        master = self.master()
        victim = master if master is not None and chance.random() < 0.5 else chance.choice(self.nodes)
        lasts = chance.choice([20, 200, 600, 1200, 2000])
        match chance.choice(FAULTS):
            case "crash":
                self.crash(victim)
                world.after(lasts, lambda: None if victim.up else victim.start())
            case "outage":
                for node in self.nodes:
                    self.crash(node)
                    world.after(chance.randint(0, lasts), lambda node=node: None if node.up else node.start())
            case "cut":
                other = chance.choice([*(n for n in self.replicas if n != victim.number), "controller"])
                pair = chance.sample([victim.number, other], 2)
                self.mend_after(lasts, self.cut(*pair, both=chance.random() < 0.5))
            case "alone":
                self.mend_after(lasts, self.isolate(victim.number, clients=chance.random() < 0.5))
            case "split":
                places = [*self.replicas, "controller"]
                side = set(chance.sample(places, chance.randint(1, len(places) - 1)))
                pairs = [(one, other) for one in side for other in places if other not in side]
                self.mend_after(lasts, set().union(*(self.cut(*pair) for pair in pairs)))
            case "controller":
                self.controller.reachable = False
                world.after(lasts, lambda: setattr(self.controller, "reachable", True))
            case "disk":
                victim.disk_ms = chance.choice([(0, 40), (100, 400)])
                world.after(lasts, lambda: setattr(victim, "disk_ms", (0, 3)))
            case "trim":
                victim.trim()
            case "hand over":
                self.hand_over(chance.choice(list(self.replicas)))

    def crash(self, node: Node) -> None:
        """Unless it is down."""
        if node.up:
            node.crash()
            self.check()

    def cut(self, one, other, *, both: bool = True) -> set:
        """No message from one to the other, or back; the links that are cut."""
        links = {(one, other), (other, one)} if both else {(one, other)}
        self.world.cut |= links
        return links

    def isolate(self, number: int, *, clients: bool = False) -> set:
        """A replica that reaches nobody but, if these are not cut off too, clients; the links that are cut."""
        others = [n for n in self.replicas if n != number]
        names = [client.name for client in self.clients] if clients else []
        return set().union(*(self.cut(number, other) for other in [*others, "controller", *names]))

    def mend_after(self, delay_ms: int, links: set) -> None:
        """The links are whole again later."""
        self.world.after(delay_ms, lambda: self.world.cut.difference_update(links))

    def hand_over(self, target: int) -> None:
        """If there is a master that can."""
        master = self.master()
        if master is not None:
            try:
                master.core.hand_over(target, now_ms=master.now)
            except StoreError:
                return

    def master(self) -> Node | None:
        """The newest one that runs."""
        leading = [node for node in self.nodes if isinstance(node.core, Master) and node.core.ended is None]
        return max(leading, key=lambda node: node.core.epoch, default=None)

    # ---- and then

    def heal(self) -> None:
        """Nothing is wrong any more: demand progress, and then rest."""
        self.world.heal()
        self.controller.reachable = True
        for node in self.nodes:
            node.disk_ms = (0, 3)
            node.torn_chance = 0.0
            if not node.up:
                node.start()
        clients = self.clients
        before = {client.name: client.done for client in clients}

        def goal() -> bool:
            return all(client.done >= before[client.name] + 2 for client in clients) and self._all_in_sync()

        assert self.world.run(self.world.now + HEAL_MS, goal), f"no progress: {self.describe()}"
        for client in self.producers:
            client.stopped = True
        for client in self.key_clients:
            client.give_up()
        assert self.world.run(self.world.now + HEAL_MS, self._at_rest), f"no rest: {self.describe()}"
        assert not check_history(self.history)
        assert set(self.acknowledged) <= self.operations

    def _all_in_sync(self) -> bool:
        return self.controller.state.sync_set == {n for n, learner in self.replicas.items() if not learner}

    def _at_rest(self) -> bool:
        """Everybody has everything, and knows it is confirmed."""
        if any(client.asking is not None for client in self.producers) or not self._all_in_sync():
            return False
        ends = {(node.log.end, node.log.durable, node.views.applied) for node in self.nodes}
        return len(ends) == 1 and ends == {(self.end,) * 3}

    def describe(self) -> str:
        """Where everybody is."""
        parts = [
            f"{self.world.now} ms, {self.acknowledge.value} of {self.min_in_sync}, {self.end - ORIGIN} confirmed",
            f"{self.controller.state}",
        ]
        for node in self.nodes:
            core = node.core
            what = type(core).__name__ if core is not None else "opening" if node.opening else "down"
            if isinstance(core, Slave):
                what += f" {core.stage.name} {core.promised} {core.epochs.entries[-3:]}"
            if isinstance(core, Master):
                what += f" {core.epoch} {core.refusal!r} {core._set.members} {core._set.pending} {core.positions()}"
            confirmed = core.confirmed - ORIGIN if core is not None else "-"
            parts.append(
                f"{node.number}: {what} log {node.log.first - ORIGIN}..{node.log.durable - ORIGIN}"
                f"..{node.log.end - ORIGIN} applied {node.views.applied - ORIGIN} confirmed {confirmed} "
                f"busy {node.busy} work {len(node.work)} known {node.known[:2]}"
            )
        parts += [f"{client.name}: {client.done} done, asks {client.target} {client.asking}" for client in self.clients]
        return "\n".join(parts)
