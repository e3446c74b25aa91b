"""Clients of the simulated cluster, each in a proxy: over `ClusterStore`, as whoever serves a protocol uses it."""

import asyncio
import random

from store.api.log import Appended
from store.base.errors import (
    AppendOutcomeUnknown,
    NotMaster,
    NotWritable,
    RevisionConflict,
    SequenceOutOfOrder,
    StoreClosed,
    StoreError,
    StoreUnreachable,
)
from store.format.frame import Position, origin_of
from store.remoting import RemoteStore
from tests.sim.joint.joint_cluster import TOPIC
from tests.sim.joint.joint_store import message_frame
from tests.support.histories.linearizability import UNKNOWN, Operation

KEYS = ("x", "y")
BURST, UNDER_WAY = 4, 8  # messages: at once, and of a group without an answer
PAUSES_S = ((0.02, 0.2), (0.1, 0.5), (0.1, 1.0))
SCAN_BYTES = 4_000
ANOTHER_NUMBER = 1_000_000  # from a producer's number to its next one
_NOT_DONE = (NotMaster, NotWritable, StoreClosed, StoreUnreachable)  # with these errors, the call has had no effect


class _Client:
    """`done` is what it has achieved; it begins nothing new when it is `stopped`."""

    def __init__(self, watch, proxy, name: str) -> None:
        self.watch = watch
        self.proxy = proxy
        self.name = name
        self.chance = random.Random(f"{proxy.cluster.seed} {name}")
        self.pause_s = self.chance.choice(PAUSES_S)
        self.loop = proxy.cluster.loop
        self.done = 0
        self.busy = True  # by itself, so that it has to get on
        self.stopped = False

    @property
    def idle(self) -> bool:
        """Returns whether nothing is in flight."""
        return True

    async def run(self) -> None:
        try:
            while not self.stopped:
                await asyncio.sleep(self.chance.uniform(*self.pause_s))
                await self.act()
        except Exception as error:  # noqa: BLE001 - for the history to raise
            self.loop.errors.append(error)

    async def act(self) -> None:
        raise NotImplementedError

    def died(self) -> None:
        """Notes that the proxy has died."""


class Producer(_Client):
    """Appends to all open queues of a topic in turn, with some under way, each exactly once."""

    def __init__(self, watch, proxy, name: str, number: int) -> None:
        super().__init__(watch, proxy, name)
        self.number = number  # of a producer, never used before
        self.sequences: dict[int, int] = {}  # by group
        self.waiting: dict[tuple[int, int, int], None] = {}  # (group, number, sequence)
        self.turn = self.chance.randrange(8)

    @property
    def idle(self) -> bool:
        return not self.waiting

    async def act(self) -> None:
        topic = self.proxy.controller.topic(TOPIC)
        if topic is None or self.stopped:
            return
        for _ in range(self.chance.randint(1, BURST)):
            self._append(topic)

    def _append(self, topic) -> None:
        controller, store = self.proxy.controller, self.proxy.store
        self.turn += 1
        queue = topic.open[self.turn % len(topic.open)]
        group = controller.group_of_queue(queue)
        if sum(one[0] == group for one in self.waiting) >= UNDER_WAY:
            return
        sequence = self.sequences[group] = self.sequences.get(group, 0) + 1
        number = self.number
        self.waiting[group, number, sequence] = None
        record = ["message", "." * self.chance.randint(0, 60)]
        frame = message_frame(queue, record, number, sequence)
        store.logs[group].log.append(
            frame, lambda outcome: self._ended(group, number, sequence, frame.size_bytes, outcome)
        )

    def _ended(self, group: int, number: int, sequence: int, size: int, outcome) -> None:
        if self.watch.may_lose and isinstance(outcome, AppendOutcomeUnknown | SequenceOutOfOrder):
            # One before it was acknowledged and is lost: it is out of order for the new master.
            if number == self.number:
                self.number += ANOTHER_NUMBER
                self.sequences.clear()
            del self.waiting[group, number, sequence]
            return
        if isinstance(outcome, StoreError):
            raise AssertionError(
                f"{self.name} does not know what became of {sequence} in store group {group}"
            ) from outcome
        assert isinstance(outcome, Appended)
        del self.waiting[group, number, sequence]
        self.done += 1
        self.watch.acknowledged(group, number, sequence, outcome.frame, outcome.frame + size)


class Reader(_Client):
    """Follows a group's log with a cursor; of the master, or of a replica that is in sync."""

    def __init__(self, watch, proxy, name: str, group: int, *, near: bool) -> None:
        super().__init__(watch, proxy, name)
        self.group = group
        self.at = origin_of(group)
        self._near = RemoteStore(group, self._replica, budget_s=1e9, reading=True) if near else None

    def _replica(self) -> str | None:
        group = self.proxy.controller.group(self.group)
        others = [group.replica(id_) for id_ in group.sync_set if id_ != group.master] if group is not None else []
        return others[self.loop.steps % len(others)].address if others else None

    async def act(self) -> None:
        store = self._near or self.proxy.store.logs[self.group]
        try:
            frames, following = await store.log.scan(Position(self.at, 0), None, max_bytes=SCAN_BYTES)
        except _NOT_DONE:
            return
        self.watch.read(self.group, self.at, frames, following)
        self.at = following
        self.done += 1


class Follower(_Client):
    """Follows a group's log live, from where it is when it begins: every frame, once, in order."""

    def __init__(self, watch, proxy, name: str, group: int) -> None:
        super().__init__(watch, proxy, name)
        self.group = group
        self.at: int | None = None
        self.busy = False  # there may be nothing to follow
        proxy.store.logs[group].log.tail(self._heard)

    @property
    def idle(self) -> bool:
        return self.at in {None, self.watch.logs[self.group].end}

    async def act(self) -> None:
        pass

    def _heard(self, frames) -> None:
        if not frames:
            return
        start = frames[0].start if self.at is None else self.at
        self.at = frames[-1].end
        try:
            self.watch.read(self.group, start, frames, self.at)
        except AssertionError as error:
            self.loop.errors.append(error)
        self.done += len(frames)


class KeyClient(_Client):
    """Reads, puts, and compares and sets; what it was told is the history."""

    def __init__(self, watch, proxy, name: str) -> None:
        super().__init__(watch, proxy, name)
        self.seen = dict.fromkeys(KEYS, 0)
        self.writes = self.chance.choice([0.05, 0.5, 0.8])
        self.puts = 0
        self.asking: tuple | None = None

    @property
    def idle(self) -> bool:
        return self.asking is None

    async def act(self) -> None:
        chance = self.chance
        key = chance.choice(KEYS)
        kind = chance.choice(["put", "cas"]) if chance.random() < self.writes else "get"
        argument = None
        if kind != "get":
            self.puts += 1
            argument = f"{self.name} {self.puts}".encode()
            argument = argument if kind == "put" else (self.seen[key], argument)
        self.asking = key, kind, argument, self.loop.now_s
        try:
            result = await self._ask(key, kind, argument)
        except AppendOutcomeUnknown:
            self._note(None, UNKNOWN)
        except _NOT_DONE:
            self.asking = None
        else:
            self._note(result, self.loop.now_s)
            self.done += 1

    async def _ask(self, key: str, kind: str, argument):
        store = self.proxy.store
        if kind == "get":
            entry = await store.keys.get(key)
            self.seen[key] = entry.revision if entry is not None else 0
            return None if entry is None else (entry.value, entry.revision)
        expected, value = argument if kind == "cas" else (None, argument)
        try:
            self.seen[key] = await store.keys.put(key, value, expected_revision=expected)
        except RevisionConflict as conflict:
            self.seen[key] = conflict.actual
            return "conflict", conflict.actual
        return self.seen[key]

    def _note(self, result, returned: float) -> None:
        key, kind, argument, called = self.asking
        self.asking = None
        if kind != "get" or returned != UNKNOWN:
            self.watch.operations.append(Operation(key, kind, argument, result, called, returned))

    def died(self) -> None:
        if self.asking is not None:
            self._note(None, UNKNOWN)
