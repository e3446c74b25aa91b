"""The key-value store's own upkeep: keys that expire while the view is behind, history let go."""

import pytest

from store.format.chunks import QueueEnd
from store.format.placed import Placed
from store.format.records import KvPut, KvTransaction, LogTrimmed
from store.local.local import LocalStore
from store.log.run import RunBuilder
from store.views import Views
from tests.support.store.store_kit import append, records_frame

pytestmark = pytest.mark.anyio


async def test_a_key_that_the_view_does_not_have_yet_is_swept_in_time(tmp_path, monkeypatch):
    async with await LocalStore.open(tmp_path, now_ms=lambda: 1_000) as store:
        behind = []
        with monkeypatch.context() as patch:
            patch.setattr(store.core.engine, "dispatch", behind.append)
            await store.keys.put("a", b"1", namespace="n", ttl_ms=500)
            assert await store.keys.tick(1_000) == 1_500
        for run in behind:
            store.core.engine.dispatch(run)
        await store.core.until_dispatched(store.log.confirmed)
        assert await store.keys.tick(1_000) == 1_500


@pytest.mark.slow
async def test_a_transaction_of_more_operations_than_the_view_can_number_has_no_effect(tmp_path):
    async def write(count):
        operations = tuple((f"{i:x}", b"", 0) for i in range(count))
        await append(store, records_frame(KvTransaction("n", (), operations)))

    async with await LocalStore.open(tmp_path) as store:
        await write(65_537)
        assert await store.keys.count("", None, namespace="n") == 0
    async with await LocalStore.open(tmp_path) as store:
        await store.keys.put("a", b"1", namespace="n")
        assert await store.keys.count("", None, namespace="n") == 1
        await write(65_536)
    async with await LocalStore.open(tmp_path) as store:
        assert await store.keys.count("", None, namespace="n") == 65_536


async def test_what_changed_nothing_is_forgotten_with_the_log_however_runs_are_cut(tmp_path):
    frames, at = [], 0
    trims = {3: LogTrimmed(150, 1), 5: LogTrimmed(1 << 40, 1)}  # the last one counts up to its own frame
    for i in range(7):
        one = records_frame(trims.get(i) or KvPut("a", b"", expected=77))
        frames.append(Placed(at, i, one.header(log_offset=at, epoch=1, stored_at_ms=i), one))
        at = frames[-1].end
    found = []
    for size in (1, 2, 7):
        views = Views(tmp_path / str(size))
        builder = RunBuilder(lambda _: QueueEnd())
        for first in range(0, 7, size):
            views.apply([builder.build(frames[first : first + size])])
        with views.reading() as txn:
            found.append([number for number, _ in views.kv.voids(txn, 0, 1 << 60)])
        views.close()
    assert found == [[frames[6].start + 1]] * 3
