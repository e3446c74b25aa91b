"""A disk that fills up under the views: writing is refused, nothing fails, and all goes on when there is room."""

import errno
import os

import lmdb
import pytest

from store.base.errors import StoreFailed, StoreFull
from store.disk.files import OsFiles
from store.disk.space import Space
from store.engine import dispatcher as dispatcher_module
from store.local.local import LocalStore
from store.views import Views
from store.views.producers import ProducersView
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

WAIT_S = 60


class Refusing:
    """Transactions of LMDB that end as on a full disk while `error` is set."""

    def __init__(self, monkeypatch) -> None:
        self.error: lmdb.Error | None = None
        self.sizes: list[int] = []  # of the transactions that were tried, in rows: one a frame here
        put, apply = ProducersView.apply, Views.apply

        def refusing(view, txn, runs):
            put(view, txn, runs)
            if self.error is not None:
                raise self.error

        def counted(views, runs):
            self.sizes.append(sum(len(run.rows) for run in runs))
            apply(views, runs)

        monkeypatch.setattr(ProducersView, "apply", refusing)
        monkeypatch.setattr(Views, "apply", counted)
        monkeypatch.setattr(dispatcher_module, "LOOK_S", 0.01)
        monkeypatch.setattr(dispatcher_module, "RETRY_S", 0.1)


@pytest.fixture
def lmdb_disk(monkeypatch):
    return Refusing(monkeypatch)


FULL = lmdb.DiskError("mdb_txn_commit: No space left on device")


@pytest.mark.anyio
async def test_views_without_room_refuse_and_go_on_by_themselves(lmdb_disk, tmp_path):
    async with await LocalStore.open(tmp_path / "data", linger_s=0.001) as store:
        await append(store, frame((16, b"before")))
        while store.core.engine.views.dispatched < store.replication.end:
            await store.queues.bounds(16)
        lmdb_disk.error = FULL
        await append(store, frame((16, b"acknowledged")))
        while store.full is None:
            await store.queues.bounds(16)
        assert isinstance(store.full, StoreFull)
        assert store.error is None
        with pytest.raises(StoreFull):
            await append(store, frame((16, b"refused")))
        assert await bodies(store, 16) == [b"before", b"acknowledged"]
        lmdb_disk.error = None
        while store.core.engine.views.dispatched < store.replication.end:
            await store.queues.bounds(16)
        store.core.engine.space.look()
        await append(store, frame((16, b"later")))
        assert await bodies(store, 16) == [b"before", b"acknowledged", b"later"]


@pytest.mark.anyio
async def test_closing_does_not_wait_for_room(lmdb_disk, tmp_path):
    store = await LocalStore.open(tmp_path / "data", linger_s=0.001)
    lmdb_disk.error = FULL
    await append(store, frame((16, b"kept")))
    await store.close()
    lmdb_disk.error = None
    async with await LocalStore.open(tmp_path / "data") as store:
        assert await bodies(store, 16) == [b"kept"]


@pytest.mark.anyio
async def test_opening_on_a_full_disk_says_so_and_succeeds_later(lmdb_disk, tmp_path):
    store = await LocalStore.open(tmp_path / "data", linger_s=0.001)
    lmdb_disk.error = FULL
    await append(store, frame((16, b"kept")))
    await store.close()
    with pytest.raises(StoreFull, match="No space"):
        await LocalStore.open(tmp_path / "data")
    lmdb_disk.error = None
    async with await LocalStore.open(tmp_path / "data") as store:
        assert await bodies(store, 16) == [b"kept"]


@pytest.mark.anyio
async def test_a_write_that_was_cut_short_is_a_full_disk_only_where_little_is_free(lmdb_disk, tmp_path, monkeypatch):
    """LMDB says EIO of both."""
    store = await LocalStore.open(tmp_path / "data", linger_s=0.001)
    monkeypatch.setattr(OsFiles, "free_bytes", lambda *_: 4096)
    lmdb_disk.error = lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EIO)}")
    await append(store, frame((16, b"a")))
    while store.full is None:
        await store.queues.bounds(16)
    assert store.error is None
    monkeypatch.setattr(OsFiles, "free_bytes", lambda *_: 1 << 40)
    while store.error is None:
        await store.queues.bounds(16)
    assert isinstance(store.error, StoreFailed)
    await store.close()


@pytest.mark.anyio
async def test_a_transaction_holds_a_bounded_part_of_the_log(lmdb_disk, tmp_path, monkeypatch):
    """So the pages that it cannot use again are bounded; on a full disk it is a single run, which fits soonest."""
    monkeypatch.setattr(dispatcher_module, "TRANSACTION_BYTES", 1000)
    async with await LocalStore.open(tmp_path / "data", linger_s=60.0) as store:
        for _ in range(9):
            await append(store, frame((16, b"x" * 300)))
        lmdb_disk.error = FULL
        store.core.engine.apply_views(store.replication.end)
        while len(lmdb_disk.sizes) < 3:
            await store.queues.bounds(16)
        lmdb_disk.error = None
        while store.core.engine.views.dispatched < store.replication.end:
            await store.queues.bounds(16)
    assert lmdb_disk.sizes[0] == 2
    assert lmdb_disk.sizes[1:3] == [1, 1]
    assert max(lmdb_disk.sizes) == 2


def test_room_is_kept_for_what_the_views_lack(tmp_path):
    files, owed = FaultyFiles(), 0
    space = Space(files, tmp_path, 1000, owed=lambda: owed)
    files.free = 1500
    space.look()
    assert space.refusal is None
    owed = 600
    space.look()
    assert "600 for the views" in str(space.refusal)
    files.free = 1700
    space.look()
    assert space.refusal is not None  # an eighth more than the reserve
    owed = 500
    space.look()
    assert space.refusal is None


def test_room_is_short_before_there_is_none(tmp_path):
    files = FaultyFiles()
    space = Space(files, tmp_path, 1000)
    for free, low in (
        (2500, False),
        (1999, True),
        (2100, True),
        (2125, False),
        (1500, True),
        (900, True),
        (1200, True),
    ):
        files.free = free
        space.look()
        assert (space.low, space.refusal is None) == (low, free >= 1000), free


def test_views_are_not_begun_where_lmdb_would_be_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(OsFiles, "free_bytes", lambda *_: 4096)
    with pytest.raises(StoreFull, match="4096 are free"):
        Views(tmp_path / "views")


@pytest.mark.anyio
async def test_a_directory_that_cannot_be_made_for_want_of_room_is_a_full_store(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FaultyFiles, "open", refuse)
    with pytest.raises(StoreFull, match="cannot be opened"):
        await LocalStore.open(tmp_path / "data", files=FaultyFiles())
