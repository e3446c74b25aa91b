"""One seeded history of a whole cluster: controllers, store groups, proxies and their clients, everything that goes
wrong, and what must hold (`joint_watch`). Then all is well again: everybody gets on, and everything is the same.
"""

import logging
import os
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path

from controller.api.client import ControllerError, GroupConfig
from controller.api.commands import ElectMaster, MoveQueue, decode_command
from controller.api.requests import Elect, Transfer
from controller.raft import EntryKind, RaftError
from store.base.errors import StoreError
from store.format.frame import LogOffset
from store.node.replacing import START_OVER_AGAIN_MS
from tests.sim.joint.joint_clients import Follower, KeyClient, Producer, Reader
from tests.sim.joint.joint_cluster import (
    GROUP_COUNT,
    QUICK_S,
    REPLICA_COUNT,
    TOPIC,
    ControllerMachine,
    End,
    JointCluster,
    JointMachine,
    ReplicaMachine,
)
from tests.sim.joint.joint_owners import Device, Owner
from tests.sim.joint.joint_raft_files import Verdict
from tests.sim.joint.joint_watch import Watch
from tests.sim.raft.raft_checks import Checks
from tests.support.histories.linearizability import check_history

BOOT_S = 30
ENTRIES_BYTES = 1 << 20  # of a controller's log that are looked at together
HEAL_S = 9  # less than a controller waits for one that it has elected and that does not serve
SNAPSHOT_AGAIN_S = START_OVER_AGAIN_MS / 1000  # from one attempt to replace damaged views to the next
BETWEEN_S = ((0.05, 0.4), (0.1, 0.8), (0.3, 1.2))  # two faults
LASTS_S = (0.1, 0.4, 0.8, 1.2, 3.0)
LOST_S = (2.1, 3.5)  # more than `DEAD_AFTER_MS`: nobody is elected for what it said before its disk lied
USURPED_S = (2.2, 4.0)  # long enough for another one to be elected
GREY_S = (1.0, 8.0)  # some of them until complaints have moved the master
FAULTS = [
    *["crash"] * 5,
    *["controllers"] * 2,
    *["behead"] * 8,
    *["usurp"] * 4,
    *["rival"] * 3,
    "outage",
    *["cut"] * 3,
    *["alone"] * 3,
    *["grey"] * 3,
    *["split"] * 2,
    *["no controller"] * 2,
    *["freeze"] * 3,
    *["stop"] * 2,
    *["reset"] * 2,
    *["disk"] * 2,
    *["trim"] * 3,
    *["spoil"] * 6,
    *["lose end"] * 2,
    *["forget"] * 4,
    "weather",
    "proxy",
    "switch over",
    "elect",
    "transfer",
    "move",
]
FILES = 0.4  # how likely a fault is one of files, in histories that have these
FILE_FAULTS = [*["raft"] * 3, *["raft write"] * 2, *["small"] * 4, *["small write"] * 2, *["views"] * 3]
HARMED_KEYS = 0.3  # how likely a key is damaged where views are
REPLACED_S = (0.3, 4.0)  # until an operator gives a damaged controller an empty directory
EXPECTED = ("the files `epochs` and `epochs.copy` are damaged",)  # of what is logged with an error's trace
LOST = "has lost confirmed frames"
TROUBLE = (ControllerError, RaftError, StoreError)


class JointHistory:
    """A cluster in which things go wrong by chance, or as a test tells it to."""

    def __init__(
        self,
        seed: int,
        *,
        acknowledge: str | None = None,
        min_in_sync: int | None = None,
        datagrams: bool | None = None,
        replicas: int = REPLICA_COUNT,
        learners: int = 0,
        torn_chance: float = 0.0,
        files: bool = False,
    ) -> None:
        self.seed = seed
        self.directory = _directory() if files else None
        self.file_chance = random.Random(f"{seed} files")  # its own, so that other histories are what they were
        self.harmed: dict[str, int] = {}  # by what became of files that were damaged
        self.torn_chance = torn_chance
        self.chance = chance = random.Random(seed)
        acknowledge = acknowledge or chance.choices(["all_in_sync", "quorum"], [2, 1])[0]
        datagrams = chance.random() < 0.75 if datagrams is None else datagrams
        min_in_sync = min_in_sync or chance.choice([1, 2, 2, 2, 3])
        min_in_sync = min(min_in_sync, replicas)
        config = GroupConfig(replicas=replicas, min_in_sync=min_in_sync, acknowledge=acknowledge)
        checks = Checks()
        self.watch = Watch(checks, config)
        self.cluster = JointCluster(
            seed,
            config=config,
            learners=learners,
            datagrams=datagrams,
            raft_checks=checks,
            directory=Path(self.directory.name) if self.directory is not None else None,
        )
        self.watch.follow(self.cluster)
        self.cluster.begin, self.cluster.ended = self._begin, self._ended
        self.clients: dict[str, list] = {proxy.name: [] for proxy in self.cluster.proxies}
        self.hurting = False
        self.healing_s = 0.0  # until everybody had got on
        self.device = Device()
        self.producers = 0
        self.lives = 0

    @classmethod
    def of_any_kind(cls, seed: int, *, files: bool = False) -> "JointHistory":
        """Returns a history whose groups have any size, some with a learner, some whose master acknowledges alone.

        In one with `files` those of controllers, and the small ones of replicas, are damaged too.
        """
        chance = random.Random(f"{seed} kind")
        return cls(
            seed,
            replicas=chance.choice([1, 2, 3, 3, 3, 3, 3, 3, 4, 5]),
            learners=chance.choice([0, 0, 1]),
            acknowledge=chance.choices([None, "master"], [9, 1])[0],
            torn_chance=chance.choice([0, 0, 0, 0.002, 0.01]),
            files=files,
        )

    # ---- its clients

    async def _begin(self, proxy) -> None:
        """Begins the clients' work at a proxy that has connected."""
        self.producers += 2
        self.lives += 1
        life = self.lives
        group = proxy.number % GROUP_COUNT
        clients = [
            Producer(self.watch, proxy, f"producer {life}", self.producers - 1),
            Owner(self.watch, proxy, f"owner {life}", self.device, self.producers),
            Reader(self.watch, proxy, f"reader {life}", group, near=False),
            Follower(self.watch, proxy, f"follower {life}", group),
            KeyClient(self.watch, proxy, f"keys {life}"),
        ]
        if self.watch.may_lose:  # a device's messages are promised to be there
            clients = [one for one in clients if not isinstance(one, Owner)]
        if proxy.number == 1 and self.cluster.config.replicas > 1:
            clients.append(Reader(self.watch, proxy, f"near reader {life}", 1 - group, near=True))
        self.clients[proxy.name] = clients
        for client in clients:
            proxy.process.run(client.run(), client.name)

    def _ended(self, proxy) -> None:
        for client in self.clients[proxy.name]:
            client.died()
        self.clients[proxy.name] = []

    def everybody(self) -> list:
        """Returns all clients that there are."""
        return [client for clients in self.clients.values() for client in clients]

    # ---- life

    @contextmanager
    def living(self):
        """Runs the block with the cluster, and leaves nothing of the cluster at its end."""
        state = random.getstate()
        random.seed(self.seed)  # the product's own chance
        complaints = _Complaints(self.cluster.complaints)
        logging.getLogger().addHandler(complaints)
        try:
            yield self
        finally:
            self.cluster.close()
            if self.directory is not None:
                self.directory.cleanup()
            logging.getLogger().removeHandler(complaints)
            random.setstate(state)

    def play(self, length_s: float) -> None:
        """Plays the whole history."""
        with self.living():
            self.boot()
            self.hurt(length_s)
            self.heal()

    def boot(self) -> None:
        """Waits until every process runs."""
        self.cluster.start()
        assert self.cluster.run(BOOT_S, self._is_up), f"it does not come up: {self.describe()}"

    def _is_up(self) -> bool:
        return all(self.clients.values()) and self.all_in_sync()

    def all_in_sync(self) -> bool:
        """Returns whether every group has a master and a full SyncStateSet."""
        groups = self.watch.newest
        return len(groups) == GROUP_COUNT and all(
            len(one.sync_set) == self.cluster.config.replicas and one.master is not None for one in groups.values()
        )

    # ---- what goes wrong

    def hurt(self, length_s: float) -> None:
        """Makes faults happen by chance for a time."""
        chance, cluster = self.chance, self.cluster
        self.weather()
        between = chance.choice(BETWEEN_S)
        until = cluster.loop.now_s + length_s
        for replica in cluster.replicas:
            replica.torn_chance = self.torn_chance
        self.hurting = True
        while cluster.loop.now_s < until:
            cluster.run(chance.uniform(*between))
            if self.directory is not None and self.file_chance.random() < FILES:
                self.file_fault()
            else:
                self.fault()
        self.hurting = False

    def fault(self) -> None:
        """Makes one fault happen, for a time. Those that lead are hit as often as all others together."""
        chance, cluster, net = self.chance, self.cluster, self.cluster.net
        victim = self.victim()
        lasts = chance.choice(LASTS_S)
        how = chance.choice([End.KILLED, End.KILLED, End.RESET, End.RESET, End.DARK])
        match chance.choice(FAULTS):
            case "crash":
                self.crash(victim, lasts, how)
            case "behead":
                self.behead(chance.randrange(GROUP_COUNT), lasts, how)
            case "usurp":
                self.usurp(chance.randrange(GROUP_COUNT), chance.choice(["freeze", "alone", "alone", "followed"]))
            case "rival":
                self.rival(chance.choice(LASTS_S))
            case "forget":
                chosen = chance.choice(cluster.controllers)
                chance.choice(cluster.controllers).disk.back_up()
                self.forget(chosen, lasts, how)
            case "controllers":
                for controller in cluster.controllers:
                    self.crash(controller, lasts * chance.uniform(0.5, 1), how)
            case "outage":
                for machine in [one for one in cluster.replicas if one.group == chance.randrange(GROUP_COUNT)]:
                    self.crash(machine, lasts * chance.uniform(0.1, 1), how)
            case "cut":
                self.cut([victim], [chance.choice(self.others(victim))], lasts, both=chance.random() < 0.5)
            case "alone":
                whom = self.others(victim)
                if chance.random() < 0.5:
                    whom = [one for one in whom if one not in cluster.proxies]
                self.cut([victim], whom, lasts, both=chance.random() < 0.7)
            case "grey":
                self.grey(chance.randrange(GROUP_COUNT), chance.uniform(*GREY_S))
            case "split":
                side = chance.sample(cluster.machines, chance.randint(1, len(cluster.machines) - 1))
                self.cut(side, [one for one in cluster.machines if one not in side], lasts)
            case "no controller":
                self.cut([victim], cluster.controllers, lasts, both=chance.random() < 0.7)
            case "stop":
                victim.stop(lasts)
            case "freeze":
                if victim.process is not None:
                    victim.process.freeze()
                    self.later(lasts, victim.process.thaw)
            case "reset":
                net.reset_some(victim.name)
            case "disk":
                victim.disk_s = chance.choice([(0.0, 0.05), (0.1, 0.5)])
                self.later(lasts, setattr, victim, "disk_s", QUICK_S)
            case "trim":
                chance.choice(cluster.replicas).platter.trim()
            case "spoil":
                self.spoil(chance.choice(cluster.voters))
            case "lose end":
                self.lose_end(chance.choice(cluster.voters))
            case "weather":
                self.weather()
            case "proxy":
                self.crash(chance.choice(cluster.proxies), lasts, how)
            case order:
                self.order(order)

    def victim(self) -> JointMachine:
        chance, cluster = self.chance, self.cluster
        leading = [cluster.leader(), *(cluster.master(group) for group in range(GROUP_COUNT))]
        leading = [one for one in leading if one is not None]
        return chance.choice(leading if leading and chance.random() < 0.5 else cluster.machines)

    def others(self, machine: JointMachine) -> list[JointMachine]:
        return [one for one in self.cluster.machines if one is not machine]

    def later(self, delay_s: float, function, *arguments) -> None:
        """Calls a function later, whoever dies meanwhile."""
        self.cluster.net.at(self.cluster.loop.now_s + delay_s, function, *arguments)

    def weather(self) -> None:
        """Makes the network better or worse."""
        chance, net = self.chance, self.cluster.net
        net.loss = chance.choice([0, 0, 0.01, 0.1])
        net.doubles = chance.choice([0, 0.05])
        net.lates = chance.choice([0, 0, 0.05])
        net.resets = chance.choice([0, 0, 0.001, 0.01])
        net.delay_s = chance.choice([(0.0005, 0.002), (0.0005, 0.002), (0.001, 0.02), (0.02, 0.06)])

    def forget(self, controller: ControllerMachine, lasts_s: float, how: End) -> None:
        """Takes a controller's disk away, where a majority of the voters keep theirs: so much is promised."""
        if not self._may_forget():
            return
        controller.crash(how)
        controller.lose_disk(copy=self.chance.random() < 0.5)
        self.later(lasts_s, controller.start)

    def _may_forget(self) -> bool:
        """Returns whether every controller votes, and has the memory by which the others know it."""
        everybody = self.cluster.controllers
        memberships = [one for other in everybody for one in other.memberships()]
        known = all(everybody[id_ - 1].remembers(one) for one in memberships for id_ in one.voters)
        return known and all(len(one.voters) == len(everybody) for one in memberships)

    def file_fault(self) -> None:
        """Makes a disk damage a file of a controller or of a replica, or refuse what it is given."""
        chance, cluster = self.file_chance, self.cluster
        how, lasts_s = chance.choice(list(End)), chance.choice(LASTS_S)
        match chance.choice(FILE_FAULTS):
            case "raft":
                self.harm_controller(chance.choice(cluster.controllers), lasts_s, how)
            case "raft write":
                chance.choice(cluster.controllers).disk.failing = True
            case "small":
                self.harm_replica(chance.choice(cluster.replicas), lasts_s, how)
            case "small write":
                self._fail_write(chance.choice(cluster.replicas))
            case "views":
                self.harm_views(chance.choice(cluster.voters))

    def harm_controller(self, controller: ControllerMachine, lasts_s: float, how: End) -> Verdict | None:
        """Ends a controller, and damages its files; one that refuses to start gets an empty directory later."""
        if not self._may_forget():
            return None
        controller.crash(how)
        found = controller.disk.harm()
        self.harmed[found.name] = self.harmed.get(found.name, 0) + 1
        self.later(lasts_s, controller.start)
        self.later(lasts_s + self.file_chance.uniform(*REPLACED_S), self.replace, controller)
        return found

    def replace(self, controller: ControllerMachine) -> None:
        """Gives a controller that does not start an empty directory, as an operator does."""
        if controller.is_refused:
            controller.lose_disk(copy=False)
            controller.start()

    def harm_replica(self, replica: ReplicaMachine, lasts_s: float, how: End) -> bool:
        """Ends a replica and damages one of its small files, where others of its group are whole."""
        if not self._may_harm(replica):
            return False
        self.crash(replica, lasts_s, how)
        replica.small_files.harm()
        self.harmed["small"] = self.harmed.get("small", 0) + 1
        return True

    def harm_views(self, replica: ReplicaMachine) -> list[str]:
        """Changes some keys in a replica's views, where another replica of its group has sound ones."""
        group = [one for one in self.cluster.voters if one.group == replica.group and one is not replica]
        whole = [one for one in group if one.up and not one.platter.views.spoiled and not one.small_files.harmed]
        views = replica.platter.views
        if not group or len(whole) < len(group) or not self._may_harm(replica):
            return []
        found = [key for key in sorted(views.keys) if self.file_chance.random() < HARMED_KEYS]
        views.spoiled.update(dict.fromkeys(found))
        self.harmed["views"] = self.harmed.get("views", 0) + bool(found)
        return found

    def _fail_write(self, replica: ReplicaMachine) -> None:
        if replica.up:
            replica.small_files.fail()

    def _may_harm(self, replica: ReplicaMachine) -> bool:
        """Returns whether no other replica of its group lacks anything, and this one has its log."""
        group = [one for one in self.cluster.replicas if one.group == replica.group]
        for one in group:
            if one.node is not None and one.node.role is not None:
                one.small_files.harmed = ""
        platter = replica.platter
        whole = not (platter.surface.spoiled or platter.surface.damages or platter.views.spoiled)
        return whole and not any(one.small_files.harmed for one in group)

    def crash(self, machine: JointMachine, lasts_s: float, how: End) -> None:
        """Ends a machine, and starts it again later."""
        machine.crash(how)
        self.later(lasts_s, machine.start)

    def spoil(self, replica: ReplicaMachine, count: int | None = None) -> list[int]:
        """Damages some frames of a replica's log that another replica has, and returns where they are."""
        log, surface = replica.platter.log, replica.platter.surface
        end = min(self.watch.logs[replica.group].end, log.durable)
        if replica.small_files.harmed and not self._may_harm(replica):
            return []
        places = [start for start in log.starts if start < end]
        if not places:
            return []
        at = self.chance.randrange(len(places))
        some = places[at : at + (count or self.chance.choice([1, 1, 3, 10]))]
        found = [start for start in some if start not in surface.spoiled and self._is_elsewhere(replica, start)]
        for start in found:
            surface.spoil(start)
        return found

    def lose_end(self, replica: ReplicaMachine) -> None:
        """Stops a replica's machine for a while; it comes back without some of its log's end."""
        if replica.up and self._may_lose(replica):
            replica.crash(End.DARK)
            self.later(self.chance.uniform(*LOST_S), self._start_short, replica)

    def _start_short(self, replica: ReplicaMachine) -> None:
        log, end = replica.platter.log, self.watch.logs[replica.group].end
        places = [start for start in log.starts if start < log.durable][-10:]
        if not replica.up and places and self._may_lose(replica):
            at = self.chance.choice(places)
            if all(start >= end or self._is_elsewhere(replica, start) for start in places if start >= at):
                replica.platter.lose_end(LogOffset(at))
        replica.start()

    def _may_lose(self, replica: ReplicaMachine) -> bool:
        """Returns whether its group has another to elect, and a master that is up: more is beyond what is promised."""
        group = self.watch.newest[replica.group]
        shorts = [other for other in replica.platter.others if other.surface.is_short]
        alone = set(group.sync_set) <= {replica.id}
        if replica.id is None or group.master in {None, replica.id} or shorts or alone:
            return False
        if replica.small_files.harmed or self._may_be_elected(replica):
            return False
        return self.cluster.replica_of[replica.group, group.master].up  # else it may be chosen already to succeed it

    def _may_be_elected(self, replica: ReplicaMachine) -> bool:
        """Returns whether a controller's log elects it in the next epoch, which may yet be committed."""
        wanted = replica.group, replica.id, self.watch.newest[replica.group].master_epoch
        for controller in self.cluster.controllers:
            disk = controller.disk
            low, end = disk.first_index(), disk.last_index() + 1
            while low < end:
                entries = disk.entries(low, end, ENTRIES_BYTES)
                low = entries[-1].index + 1
                commands = [decode_command(one.data) for one in entries if one.kind is EntryKind.COMMAND]
                elections = [one for one in commands if isinstance(one, ElectMaster)]
                if any((one.group, one.candidate, one.master_epoch) == wanted for one in elections):
                    return True
        return False

    def _is_elsewhere(self, replica: ReplicaMachine, start: int) -> bool:
        """Returns whether another replica has a frame that is confirmed, as it was written."""
        log = replica.platter.log
        frame = log.frames[log.starts.index(start)]  # others may have something else there, that was never confirmed
        return any(
            start in other.log.starts
            and other.log.frames[other.log.starts.index(start)] == frame
            and start < other.log.durable
            and start not in other.surface.spoiled
            for other in replica.platter.others
        )

    def behead(self, group: int, lasts_s: float, how: End) -> None:
        """Cuts a master off from its replicas, or from one; it goes on writing for a moment, and dies."""
        master = self.cluster.master(group)
        if master is not None:
            replicas = [one for one in self.cluster.replicas if one.group == group and one is not master]
            replicas = replicas if not replicas or self.chance.random() < 0.5 else [self.chance.choice(replicas)]
            self.cut([master], replicas, lasts_s, both=self.chance.random() < 0.7)
            self.later(self.chance.uniform(0.05, 0.5), self._die, master, lasts_s, how)

    def _die(self, machine: JointMachine, lasts_s: float, how: End) -> None:
        if self.hurting:
            self.crash(machine, lasts_s, how)

    def usurp(self, group: int, how: str) -> None:
        """Makes a master that others take for dead go on: it has only slept, or all clients reach it, or those of
        one proxy that reaches no other.
        """
        master = self.cluster.master(group)
        if master is None:
            return
        lasts_s = self.chance.uniform(*USURPED_S)
        if how == "freeze":
            master.process.freeze()
            self.later(lasts_s, master.process.thaw)
        elif how == "alone":
            others = [one for one in self.others(master) if one not in self.cluster.proxies]
            self.cut([master], others, lasts_s, both=self.chance.random() < 0.5)
        else:
            side = [master, self.chance.choice(self.cluster.proxies)]
            self.cut(side, [one for one in self.cluster.machines if one not in side], lasts_s)

    def grey(self, group: int, lasts_s: float | None = None, *, way: str = "", whom: str = "") -> list:
        """Cuts a master off from those who need it, while the controllers hear it: in both directions or one, from
        all or some.
        """
        chance, cluster = self.chance, self.cluster
        master = cluster.master(group)
        if master is None:
            return []
        sides = {
            "replicas": [one for one in cluster.replicas if one.group == group and one is not master],
            "proxies": list(cluster.proxies),
        }
        others = [*sides["replicas"], *sides["proxies"]]
        others = sides.get(whom or chance.choice(["all", "all", "replicas", "proxies"]), others)
        way = way or chance.choice(["both", "from", "to"])
        some, others = (others, [master]) if way == "to" else ([master], others)
        links = [(one.name, other.name) for one in some for other in others]
        links += [(other, one) for one, other in links] if way == "both" else []
        cluster.net.cut.update(dict.fromkeys(links))
        if lasts_s is not None:
            self.later(lasts_s, cluster.net.mend, links)
        return links

    def rival(self, lasts_s: float) -> None:
        """Cuts the controllers' leader off from the others; stores, clients and operators still reach it."""
        leader = self.cluster.leader()
        if leader is not None:
            self.cut([leader], self.cluster.controllers, lasts_s, both=self.chance.random() < 0.7)
            for _ in range(2):
                self.order(self.chance.choice(["switch over", "elect", "move"]))
            if self.chance.random() < 0.3:
                self.later(self.chance.uniform(0.05, 0.5), self._die, leader, lasts_s, End.RESET)

    def cut(self, some, others, lasts_s: float | None = None, *, both: bool = True) -> list:
        """Cuts the links from some to others, or in both directions, and returns the links that are cut."""
        links = [(one.name, other.name) for one in some for other in others if one is not other]
        if both:
            links += [(other, one) for one, other in links]
        elif self.chance.random() < 0.5:
            links = [(other, one) for one, other in links]
        self.cluster.net.cut.update(dict.fromkeys(links))
        if lasts_s is not None:
            self.later(lasts_s, self.cluster.net.mend, links)
        return links

    def order(self, what: str) -> None:
        """Makes an operator give an order."""
        chance, cluster = self.chance, self.cluster
        group = chance.randrange(GROUP_COUNT)
        master, leader, controller = cluster.master(group), cluster.leader(), cluster.operator.controller
        match what:
            case "switch over":
                if master is not None:
                    target = chance.choice(self._candidates())
                    master.process.run(_tried(master.node.switch_over, target))
            case "elect":
                candidate = chance.choice(self._candidates())
                cluster.operator.process.run(_tried(controller.do, Elect(group=group, candidate=candidate)))
            case "transfer":
                if leader is not None:
                    to = chance.choice(cluster.controllers).number
                    cluster.operator.process.run(_tried(controller.do, Transfer(to=to)))
            case "move":
                topic = controller.topic(TOPIC)
                if topic is not None:
                    moving = _tried(controller.do, MoveQueue(number=chance.choice(topic.open), group=group))
                    cluster.operator.process.run(moving)

    def _candidates(self) -> list[int | None]:
        """Returns the replicas of a group that an operator may name, learners too, and None: any of them."""
        return [None, *range(1, len(self.cluster.replicas) // GROUP_COUNT + 1)]

    # ---- and then

    def heal(self) -> None:
        """Ends all faults, demands progress of everybody, and then rest and equality."""
        self.mend()
        before = {client: client.done for client in self.everybody()}

        def goal() -> bool:
            clients = self.everybody()
            got_on = all(client.done >= before.get(client, 0) + 2 for client in clients if client.busy)
            return all(self.clients.values()) and got_on and self.all_in_sync()

        began_s = self.cluster.loop.now_s
        healing_s = HEAL_S if self.directory is None else HEAL_S + SNAPSHOT_AGAIN_S
        assert self.cluster.run(healing_s, goal), f"no progress: {self.describe()}"
        self.healing_s = self.cluster.loop.now_s - began_s
        for client in self.everybody():
            client.stopped = True
        assert self.cluster.run(HEAL_S, self._at_rest), f"no rest: {self.describe()}"
        assert not check_history(self.watch.operations)
        self._check_device()
        states = {one.node.state.snapshot() for one in self.cluster.controllers}
        assert len(states) == 1, "the controllers do not know the same"
        voters = {one.node.membership.voters for one in self.cluster.controllers}
        assert voters == {tuple(one.number for one in self.cluster.controllers)}, "a controller was not added again"

    def _check_device(self) -> None:
        """Checks that all that a device was told is stored is there; each replica's views check for doubles."""
        kept = {key for replica in self.cluster.replicas for key in replica.platter.views.keys}
        assert {f"exact/{number}" for number in self.device.answered} <= kept

    def mend(self) -> None:
        """Makes all machines run and all links carry."""
        cluster, net = self.cluster, self.cluster.net
        net.loss = net.doubles = net.lates = net.resets = 0.0
        net.delay_s = (0.0005, 0.002)
        net.mend(list(net.cut))
        for replica in cluster.replicas:
            replica.torn_chance = 0.0
            replica.platter.files.heal()
        for controller in cluster.controllers:
            controller.disk.failing = False
            self.replace(controller)
        for machine in cluster.machines:
            machine.disk_s = QUICK_S
            machine.start()
            machine.process.thaw()

    def _at_rest(self) -> bool:
        """Returns whether every replica has everything, and knows that it is confirmed."""
        if not (self.all_in_sync() and all(client.idle for client in self.everybody())):
            return False
        if any(one.node is None for one in self.cluster.controllers):
            return False  # it was about to stop
        for replica in self.cluster.replicas:
            end, log = self.watch.logs[replica.group].end, replica.platter.log
            if not (log.end == log.durable == replica.platter.views.applied == end):
                return False
            if replica.platter.surface.spoiled or replica.platter.surface.damages or replica.platter.views.spoiled:
                return False
        if any(len(one.node.membership.voters) < len(self.cluster.controllers) for one in self.cluster.controllers):
            return False
        return len({one.node.applied for one in self.cluster.controllers}) == 1

    def describe(self) -> str:
        """Returns a text that says where everybody is."""
        cluster = self.cluster
        parts = [f"{cluster.loop.now_s:.3f} s, {cluster.config}"]
        parts += [f"{one.name}: {_of_controller(one)}" for one in cluster.controllers]
        parts += [f"{number}: {group}" for number, group in sorted(self.watch.newest.items())]
        parts += [f"{replica.name}: {_of_replica(replica)}" for replica in cluster.replicas]
        parts += [f"{one.name}: up {one.up}, connected {one.store is not None}" for one in cluster.proxies]
        parts += [f"{one.name}: {one.done} done, idle {one.idle} {vars(one).get('asking')}" for one in self.everybody()]
        return "\n".join(parts)


class _Complaints(logging.Handler):
    """The errors that the product has logged and that nobody expected."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not record.getMessage().startswith(EXPECTED):
            self._complaints.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
        elif LOST in record.getMessage():
            self._complaints.append(record.getMessage())


def _directory() -> tempfile.TemporaryDirectory:
    """Returns a directory in memory, where the machine has such a file system."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)


async def _tried(function, *arguments) -> None:
    try:
        await function(*arguments)
    except TROUBLE:
        return


def _of_controller(controller: ControllerMachine) -> str:
    if controller.node is None:
        return "down"
    status = controller.node.driver.status
    return f"{status.role.value} of term {status.term}, leader {status.leader}, applied {controller.node.applied}"


def _of_replica(replica: ReplicaMachine) -> str:
    core, log = replica.core, replica.platter.log
    if replica.node is None:
        return "down"
    what = f"{type(core).__name__} promised {replica.node.disk.promised}"
    if core is not None:
        what += f" {getattr(core, 'stage', '')} {getattr(core, 'refusal', '')!r} confirmed {core.confirmed}"
    what += f" damages {replica.platter.surface.damages} of {sorted(replica.platter.surface.spoiled)}"
    return f"{what} log {log.first}..{log.durable}..{log.end} failed {replica.node.failed.done()}"


@contextmanager
def steady(seed: int, **kinds):
    """Returns a cluster in which some messages are acknowledged, and nothing is wrong yet."""
    history = JointHistory(seed, **{"min_in_sync": 2} | kinds)
    with history.living():
        history.boot()
        assert history.cluster.run(10, lambda: history.watch.acknowledgements > 10)
        yield history


# ---- playing histories by their seeds

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "60"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
LENGTHS_S = (1.0, 2.5, 4.5)
BLOCK = 10  # seeds in one test: small enough for its time limit, large enough not to flood the report


def play(seed: int, *, files: bool = False) -> JointHistory:
    try:
        history = JointHistory.of_any_kind(seed, files=files)
        history.play(history.chance.choice(LENGTHS_S))
    except BaseException as error:
        error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
        raise
    return history
