"""A master and its replicas with logs in memory, and no network: what a test sends arrives when it says so."""

from store.format.frame import HEADER, ROW, Header, LogOffset, UnplacedFrame
from store.replication.effects import Close, Prepare, SaveEpochs, Send, TakeSnapshot, Write
from store.replication.epochs import EpochList
from store.replication.master import Master
from store.replication.messages import decode, encode
from store.replication.replica_core import ReplicaCore

FRAME_BYTES = 200


def frame_at(at: int, epoch: int, *, size: int = FRAME_BYTES, sequence: int = 0) -> bytes:
    """Returns a frame of `size` bytes for its place in the log."""
    record = bytes(size - HEADER.size - ROW.size)
    made = UnplacedFrame.build(ROW.pack(16, 0, len(record), 0, 0, 0, 0, 0), record, producer_id=1, sequence=sequence)
    return made.header(log_offset=at, epoch=epoch, stored_at_ms=7) + made.rows + made.payload


class FrameLog:
    """Frames from `first` on."""

    def __init__(self, first: int = 0) -> None:
        self.first = self.end = LogOffset(first)
        self.frames: list[bytes] = []

    def append(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.end = LogOffset(self.end + len(frame))

    def fill(self, epoch: int, count: int) -> "FrameLog":
        for _ in range(count):
            self.append(frame_at(self.end, epoch))
        return self

    def cut(self, end: int) -> None:
        while self.end > end:
            self.end = LogOffset(self.end - len(self.frames.pop()))
        assert self.end == end

    def between(self, start: int, end: int) -> list[bytes]:
        return [frame for frame in self.frames if start <= Header(*HEADER.unpack_from(frame)).log_offset < end]


class Following:
    """A replica, its log, and what it has asked for. Everything is synced at once unless `lazy`."""

    def __init__(
        self, number: int, log: FrameLog | None = None, epochs=(), *, promised: int = 0, confirmed=None, **kinds
    ):
        self.number = number
        self.log = log if log is not None else FrameLog()
        self.saved = (EpochList.of(epochs), promised)
        self.lazy = False
        self.sent: list = []
        self.closed: list[str] = []
        self.snapshots: list[int] = []
        self.writes: list[Write] = []
        self.core = ReplicaCore(
            group=kinds.pop("group", 0),
            replica=number,
            epochs=self.saved[0],
            promised=promised,
            first=self.log.first,
            end=self.log.end,
            confirmed=LogOffset(confirmed if confirmed is not None else self.log.first),
            **kinds,
        )

    def work(self) -> None:
        """Carries out what the replica asks for."""
        while effects := self.core.take():
            for effect in effects:
                match effect:
                    case Send(message):
                        self.sent.append(message)
                    case SaveEpochs(epochs, promised):
                        self.saved = (epochs, promised)
                    case Prepare(cut_to, epochs, promised):
                        if cut_to is not None:
                            self.log.cut(min(cut_to, self.log.end))
                        self.saved = (epochs, promised)
                        self.core.prepared()
                    case Write(_, end, _, frames) as write:
                        self.writes.append(write)
                        for frame in frames:
                            self.log.append(frame.data)
                        if not self.lazy:
                            self.core.flushed_to(end)
                    case TakeSnapshot(epoch):
                        self.snapshots.append(epoch)
                    case Close(why):
                        self.closed.append(why)


class Leading:
    """A master, its log, and its replicas."""

    def __init__(self, epoch: int = 1, log: FrameLog | None = None, epochs=(), *, followers=(), **kinds):
        self.log = log if log is not None else FrameLog()
        self.followers = {follower.number: follower for follower in followers}
        self.now = 1_000
        self.mailbox: list = []
        self.unwelcome: set[int] = set()  # replicas that the controller takes into no SyncStateSet
        self.asked: list[frozenset[int]] = []
        replicas = kinds.pop("replicas", dict.fromkeys([1, *self.followers], False))
        self.master = Master(
            group=kinds.pop("group", 0),
            replica=1,
            epoch=epoch,
            epochs=EpochList.of(epochs),
            first=self.log.first,
            end=self.log.end,
            confirmed=LogOffset(kinds.pop("confirmed", self.log.first)),
            replicas=replicas,
            sync_set=kinds.pop("sync_set", frozenset({1})),
            sync_epoch=kinds.pop("sync_epoch", 1),
            min_in_sync=kinds.pop("min_in_sync", 1),
            now_ms=self.now,
            **kinds,
        )
        self.master.controller_contacted(now_ms=self.now)

    def connect(self, *numbers: int) -> "Leading":
        for number in numbers:
            self.followers[number].core.connect(self.master.epoch, session=number + 100, now_ms=self.now)
        return self.settle()

    def append(self, count: int = 1, *, flush: bool = True, size: int = FRAME_BYTES) -> "Leading":
        for _ in range(count):
            self.log.append(frame_at(self.log.end, self.master.epoch, size=size))
        self.master.written(self.log.end)
        if flush:
            self.master.flushed_to(self.log.end)
        return self

    def collect(self) -> list:
        """Returns what the master has to say now."""
        found = []
        for number in self.followers:
            while (batch := self.master.batch(number)) is not None:
                frames = b"".join(self.log.between(batch.start, batch.end))
                found.append((number, self.master.sent(number, batch.start, frames)))
        return found + self.master.take()

    def settle(self) -> "Leading":
        """Carries messages both ways until there are none, and answers for every SyncStateSet that is asked for."""
        while True:
            for number, follower in self.followers.items():
                follower.work()
                sent, follower.sent = follower.sent, []
                for message in sent:
                    self.master.receive(number, decode(encode(message)), now_ms=self.now)
            said = self.collect()
            self.mailbox += said
            for number, message in said:
                if number in self.followers:
                    self.followers[number].core.receive(decode(encode(message)), now_ms=self.now)
                    self.followers[number].work()
            ask = self.master.ask()
            if ask is not None:
                self.asked.append(ask.sync_set)
                if self.unwelcome & (ask.sync_set - self.master.sync_set):
                    self.master.set_refused(ask.sync_epoch)
                else:
                    self.master.set_altered(ask.sync_set, ask.sync_epoch + 1)
            if not said and ask is None and not any(follower.sent for follower in self.followers.values()):
                return self

    def pass_time(self, ms: int, *, step_ms: int = 50, talk: bool = True) -> "Leading":
        for _ in range(0, ms, step_ms):
            self.now += step_ms
            self.master.controller_contacted(now_ms=self.now)
            self.master.tick(now_ms=self.now)
            if talk:
                self.settle()
        return self
