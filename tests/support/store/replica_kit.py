"""The part that the tests of replicas share: hooks that remember, a master and replicas fed from its log by hand."""

from pathlib import Path

from store.local.local import LocalStore
from tests.support.process.waiting import until
from tests.support.store.store_kit import begin

WAIT_S = 60


class Hooks:
    """`store.engine.replication_hooks.ReplicationHooks` that remember; `on_flushed` is called too."""

    def __init__(self, on_flushed=lambda end: None):
        self.told: list = []
        self.beyond_repair = False
        self.on_flushed = on_flushed

    def written(self, end):
        self.told.append(("written", end))

    def flushed(self, end):
        self.told.append(("flushed", end))
        self.on_flushed(end)

    def lost(self, at):
        return self.beyond_repair

    def damaged(self):
        self.told.append(("damaged", 0))

    def failed(self, error):
        self.told.append(("failed", error))

    def last(self, what):
        return max((end for kind, end in self.told if kind == what), default=0)


async def open_master(path: Path, *, alone=False, **options) -> LocalStore:
    """Opens a master that has other replicas; with `alone` it confirms at once what is on its own disk."""
    hooks = Hooks()
    store = await LocalStore.open(path, **{"epoch": 1, "replication": hooks, **options})
    store.hooks = hooks
    if alone:
        hooks.on_flushed = store.replication.confirm
    return store


async def open_replica(path: Path, **options) -> LocalStore:
    hooks = Hooks()
    store = await LocalStore.open(path, **{"role": "replica", "replication": hooks, **options})
    store.hooks = hooks
    return store


async def stored(master, *frames):
    """Appends to a master, waits until the frames are on its disk, and returns the futures of the answers."""
    futures = begin(master, *frames)
    for future in futures:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # a test need not ask
    end = master.replication.flushed + sum(one.size_bytes for one in frames)  # no other append may be in flight
    await until(lambda: master.hooks.last("flushed") >= end)
    return futures


async def feed(master, replica, *, max_bytes=1 << 20):
    """Copies the log that a master has written to a replica."""
    while frames := await master.replication.read_log(replica.replication.receive(b""), max_bytes):
        replica.replication.receive(frames)
    await until(lambda: replica.replication.flushed == replica.replication.receive(b""))


def log_bytes(path: Path) -> bytes:
    """Returns the whole log of a data directory, from its first segment on."""
    return b"".join(one.read_bytes() for one in sorted((path / "log").iterdir()))
