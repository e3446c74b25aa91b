"""A device whose session moves between proxies, as QoS 2 wants it: each of its messages is in the log once.

It moves whenever it likes, and whoever had its session is stopped, cut off, slow or dead. What it had written to that
one is sent on when that one goes on. Fences are the product's (`gateway.publishing.fences`), marks are keys of
messages.
"""

import msgspec

from gateway.ownership.owners import OwnershipLost
from gateway.publishing.fences import fence_of, raise_fences
from store.base.errors import AppendOutcomeUnknown, RevisionConflict, StoreError
from store.format.frame import FRAME_GUARDED, UnplacedFrame
from store.guards.rows import guard_row
from tests.sim.joint.joint_clients import _Client
from tests.sim.joint.joint_cluster import GROUP_COUNT

SESSION, KEY = "device", "owner"
UNANSWERED_COUNT_MAX = 6
MOVES = 0.1  # how likely it moves here, whenever it is looked at


class Device:
    """A device and what it knows, wherever it is."""

    def __init__(self) -> None:
        self.at: Owner | None = None  # the owner that has its connection
        self.next = 0
        self.unanswered: dict[int, None] = {}
        self.answered: dict[int, None] = {}

    def answer(self, number: int) -> None:
        if self.unanswered.pop(number, 0) is None:
            self.answered[number] = None


class Owner(_Client):
    """A proxy's part: it owns the session, owned it before, or will."""

    def __init__(self, watch, proxy, name: str, device: Device, producer: int) -> None:
        super().__init__(watch, proxy, name)
        self.device = device
        self.producer = producer
        self.sequences: dict[int, int] = {}
        self.waiting: dict[tuple[int, int], None] = {}
        self.backlog: list[int] = []  # messages that the device has written to us
        self.fence = None
        self.epoch = 0

    @property
    def idle(self) -> bool:
        return not self.waiting

    async def act(self) -> None:
        device, chance = self.device, self.chance
        if self.stopped:
            return
        if device.at is not self and (device.at is None or chance.random() < MOVES):
            await self._take_over()
        if device.at is self and self.fence is not None and len(device.unanswered) < UNANSWERED_COUNT_MAX:
            device.unanswered[device.next] = None
            self.backlog.append(device.next)
            device.next += 1
        if device.at is not self:
            self.done += 1  # no device is connected here
        for _ in range(chance.randint(0, 3)):
            if self.backlog and self.fence is not None:
                self._append(self.backlog.pop(0))

    # ---- as `gateway.sessions.sessions` opens a session

    async def _take_over(self) -> None:
        device, store = self.device, self.proxy.store
        device.at, self.fence, self.backlog = self, None, []
        try:
            entry = await store.keys.get(KEY)
            expected = 0 if entry is None else entry.revision
            self.epoch = await store.keys.put(KEY, self.name.encode(), expected_revision=expected)
            fence = await raise_fences(store, SESSION, self)
            found = [n for n in list(device.unanswered) if await self._is_there(n)]
        except (OwnershipLost, RevisionConflict, AppendOutcomeUnknown, StoreError):
            self._lose()
            return
        if device.at is self:  # else nobody sends us anything any more
            for number in found:
                device.answer(number)
            self.backlog = list(device.unanswered)
        self.fence = fence

    async def confirm(self) -> None:
        try:
            self.epoch = await self.proxy.store.keys.put(KEY, self.name.encode(), expected_revision=self.epoch)
        except RevisionConflict as lost:
            raise OwnershipLost(SESSION) from lost

    async def _is_there(self, number: int) -> bool:
        return await self.proxy.store.logs[number % GROUP_COUNT].keys.get(f"exact/{number}") is not None

    def _lose(self) -> None:
        self.fence, self.backlog = None, []
        if self.device.at is self:
            self.device.at = None

    # ---- as `gateway.publishing.ingest` stores a message

    def _append(self, number: int) -> None:
        group = number % GROUP_COUNT
        sequence = self.sequences[group] = self.sequences.get(group, 0) + 1
        fence = self.fence
        record = msgspec.msgpack.encode(["exact", number])
        row = guard_row(0, len(record), fence.name, covers=0, epoch=fence.epoch)
        frame = UnplacedFrame.build(row, record, producer_id=self.producer, sequence=sequence, flags=FRAME_GUARDED)
        self.waiting[group, sequence] = None
        assert fence == fence_of(SESSION, self) or fence.epoch >= self.epoch
        self.proxy.store.logs[group].log.append(frame, lambda outcome: self._ended(number, group, sequence, outcome))

    def _ended(self, number: int, group: int, sequence: int, outcome) -> None:
        if isinstance(outcome, StoreError):
            raise AssertionError(f"{self.name} does not know what became of {number}") from outcome
        del self.waiting[group, sequence]
        if outcome.failed:
            self._lose()
        elif self.device.at is self:
            self.device.answer(number)
            self.done += 1

    def died(self) -> None:
        if self.device.at is self:
            self.device.at = None
