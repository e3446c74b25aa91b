"""Small batches that the event loop writes and syncs itself, on a disk that is fast."""

import asyncio
import errno
import time
from threading import get_ident
from types import SimpleNamespace

import pytest

from store.api.log import Appended
from store.base.errors import AppendOutcomeUnknown, StoreClosed
from store.engine.loop_commits import FAST_COUNT, LOOP_BYTES_MAX, LOOP_SYNC_S_MAX
from store.local import recorder
from store.local.local import LocalStore
from tests.support.store.replica_kit import Hooks
from tests.support.store.store_kit import FaultyFiles, append, begin, bodies, frame

pytestmark = pytest.mark.anyio

WAIT_S = 60


class ThreadNotingDisk(FaultyFiles):
    """A disk that writes down which thread has synced."""

    def __init__(self):
        super().__init__()
        self.synced_by = []
        self.before_sync = lambda: self.synced_by.append(get_ident())


@pytest.fixture
async def files():
    return ThreadNotingDisk()


@pytest.fixture
async def store(tmp_path, files):
    async with await LocalStore.open(tmp_path / "data", files=files) as store:
        files.synced_by.clear()
        yield store


def trust(store, *, fast=True):
    """Makes the rule take the disk for fast or slow, whatever this machine's disk is."""
    store.core.engine.loop_commits = SimpleNamespace(
        allows=lambda size_bytes, _now_s: fast and size_bytes <= LOOP_BYTES_MAX
    )


async def test_the_loop_syncs_a_lone_append_on_a_fast_disk(store, files):
    trust(store)
    first, second = begin(store, frame((16, b"a")), frame((16, b"b")))
    await asyncio.sleep(0)
    assert files.synced_by == [get_ident()]
    assert (await first, await second) == (Appended(0), Appended(frame((16, b"a")).size_bytes))
    assert files.synced_by == [get_ident()]
    assert await bodies(store, 16) == [b"a", b"b"]


async def test_appends_of_one_turn_share_a_sync_of_the_loop(store, files):
    trust(store)
    await asyncio.gather(*begin(store, *(frame((16, b"%d" % n)) for n in range(20))))
    assert files.synced_by == [get_ident()]


async def test_a_settlement_that_nobody_waits_for_takes_no_sync_of_its_own(store, files, monkeypatch):
    monkeypatch.setattr(recorder, "LINGER_S", 3_600)
    trust(store)
    await append(store, frame((16, b"a")))
    await store.leases.take(16, 1, max_count=1)
    files.synced_by.clear()
    settling = store.leases.settle_soon(16, 1, [0])
    assert await store.leases.waiting(16) == 0
    for _ in range(3):
        await asyncio.sleep(0)
    assert (files.synced_by, settling.done()) == ([], False)
    await asyncio.gather(*begin(store, frame((16, b"b"))), settling)
    assert files.synced_by == [get_ident()]
    assert [lease.offset for lease in await store.leases.take(16, 1, max_count=9)] == [1]


async def test_a_settlement_that_nobody_waits_for_is_stored_before_the_store_closes(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "LINGER_S", 3_600)
    async with await LocalStore.open(tmp_path / "data") as store:
        await append(store, frame((16, b"a"), (16, b"b")))
        await store.leases.take(16, 1, max_count=2)
        settling = store.leases.settle_soon(16, 1, [0])
    await settling
    with pytest.raises(StoreClosed):
        await store.leases.settle_soon(16, 1, [1])
    async with await LocalStore.open(tmp_path / "data") as store:
        assert [lease.offset for lease in await store.leases.take(16, 1, max_count=9)] == [1]


async def test_a_disk_that_has_been_fast_is_synced_by_the_loop(store, files, monkeypatch):
    rule = store.core.engine.loop_commits
    for _ in range(FAST_COUNT):
        rule.synced(LOOP_SYNC_S_MAX / 2, time.monotonic())
    rule._rests_until_s = 0.0
    await append(store, frame((16, b"a")))
    assert files.synced_by == [get_ident()]


async def test_the_loop_waits_for_no_slow_disk(store, files):
    files.before_sync = lambda: (time.sleep(2 * LOOP_SYNC_S_MAX), files.synced_by.append(get_ident()))
    for n in range(2 * FAST_COUNT):
        await append(store, frame((16, b"%d" % n)))
    assert len(files.synced_by) == 2 * FAST_COUNT
    assert get_ident() not in files.synced_by


async def test_a_large_append_goes_to_the_commit_thread(store, files):
    trust(store)
    await append(store, frame((16, bytes(LOOP_BYTES_MAX))))
    assert get_ident() not in files.synced_by


async def test_a_disk_that_becomes_slow_in_the_same_turn_is_left_to_the_commit_thread(store, files):
    trust(store)
    (waiting,) = begin(store, frame((16, b"a")))
    trust(store, fast=False)
    assert await asyncio.wait_for(waiting, WAIT_S) == Appended(0)
    assert get_ident() not in files.synced_by


async def test_answers_of_a_batch_of_the_thread_come_before_those_of_the_loops_next(store):
    answered = []
    trust(store, fast=False)
    store.log.append(frame((16, b"by the thread")), lambda _: answered.append("thread"))
    deadline = time.monotonic() + WAIT_S
    while not store.log._reports and time.monotonic() < deadline:  # the loop does not turn meanwhile
        time.sleep(0.001)
    trust(store)
    store.log.append(frame((16, b"by the loop")), lambda _: answered.append("loop"))
    store.log._commit()
    assert answered == ["thread", "loop"]
    assert await bodies(store, 16) == [b"by the thread", b"by the loop"]


async def test_what_a_thread_reports_while_the_loop_tries_in_vain_to_commit_is_answered(store):
    answered = []
    trust(store)
    engine = store.core.engine

    def in_vain():
        engine.wake()
        deadline = time.monotonic() + WAIT_S
        while not store.log._reports and time.monotonic() < deadline:
            time.sleep(0.001)
        return False

    engine.commit_here = in_vain
    store.log.append(frame((16, b"a")), answered.append)
    store.log._commit()
    assert answered == [Appended(0)]
    del engine.commit_here  # the loop comes to it once more


async def test_what_comes_while_the_thread_writes_is_stored_behind_it(store, files):
    trust(store, fast=False)
    futures = begin(store, frame((16, b"0")))
    trust(store)
    for n in range(1, 200):
        futures += begin(store, frame((16, b"%d" % n)))
        if n % 3 == 0:
            await asyncio.sleep(0)
        trust(store, fast=n % 7 > 3)
    places = [outcome.frame for outcome in await asyncio.gather(*futures)]
    assert places == sorted(places)
    assert await bodies(store, 16) == [b"%d" % n for n in range(200)]


async def test_a_sync_of_the_loop_that_fails_is_told_and_stops_the_store(tmp_path, files):
    store = await LocalStore.open(tmp_path / "data", files=files)
    trust(store)
    await append(store, frame((16, b"a")))
    files.sync_error = errno.EIO
    with pytest.raises(AppendOutcomeUnknown):
        await append(store, frame((16, b"b")))
    assert store.error is not None
    await store.close()


async def test_what_was_appended_before_a_close_is_stored(tmp_path, files):
    store = await LocalStore.open(tmp_path / "data", files=files)
    trust(store)
    (last,) = begin(store, frame((16, b"last")))
    await store.close()
    assert await last == Appended(0)


async def test_a_master_with_other_replicas_leaves_every_commit_to_the_threads(tmp_path, files):
    store = await LocalStore.open(tmp_path / "data", files=files, replication=Hooks())
    trust(store)
    files.synced_by.clear()
    (waiting,) = begin(store, frame((16, b"a")))
    while store.replication.flushed < store.replication.end or not store.replication.end:
        await asyncio.sleep(0.001)
    assert not waiting.done()
    store.replication.confirm(store.replication.end)
    assert await waiting == Appended(0)
    assert get_ident() not in files.synced_by
    await store.close()
