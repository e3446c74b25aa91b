"""Damage in the log: readers are told where to go on behind it."""

import asyncio

import pytest

from store.base.errors import CorruptFrame, RevisionCompacted
from store.format.frame import HEADER
from store.local.local import LocalStore
from tests.support.store.flips import flip
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio


def flip_bodies(data_dir, *places):
    flip(min((data_dir / "log").iterdir()), *[at + HEADER.size for at in places])


async def test_a_reader_of_a_queue_goes_on_behind_the_damage(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        at = [(await append(store, frame((16, b"a%d" % n), (16, b"b%d" % n)))).frame for n in range(6)]
    flip_bodies(tmp_path, at[1], at[2], at[5])
    async with await LocalStore.open(tmp_path) as store:
        found, damaged, offset = [], [], 0
        while offset < (await store.queues.bounds(16)).next:
            try:
                found += (more := await bodies(store, 16, offset))
                offset += len(more)
            except CorruptFrame as error:
                damaged.append((error.log_offset, error.end))
                fetched = await store.queues.fetch(16, offset, max_bytes=1 << 20) if error.next is None else None
                assert fetched is None
                sound = error.log_offset // (at[1] - at[0]) * 2
                found += [b"%c%d" % (b"ab"[n % 2], n // 2) for n in range(offset, sound)]
                offset = error.next
        assert damaged == [(at[1], at[2]), (at[2], at[3]), (at[5], store.replication.end)]
        assert found == [b"%c%d" % (side, n) for n in (0, 3, 4) for side in b"ab"]


async def changes_from(store, revision, count):
    """Returns this many changes from a revision on."""
    watch, found = store.keys.watch(from_revision=revision), []
    try:
        while len(found) < count:
            found += (await asyncio.wait_for(anext(watch), 10)).changes
    finally:
        await watch.aclose()
    return found


@pytest.mark.parametrize("last", [False, True])
async def test_a_watch_that_meets_damage_says_what_is_left(tmp_path, last):
    async with await LocalStore.open(tmp_path) as store:
        revisions = [await store.keys.put(f"k{n}", b"v") for n in range(5)]
        await append(store, frame((16, b"x")))
    hurt = 4 if last else 2
    flip_bodies(tmp_path, revisions[hurt] - 1)
    async with await LocalStore.open(tmp_path) as store:
        assert [change.key for change in await changes_from(store, 1, hurt)] == [f"k{n}" for n in range(hurt)]
        with pytest.raises(RevisionCompacted) as compacted:
            await changes_from(store, 1, 5)
        assert revisions[hurt] < compacted.value.earliest
        with pytest.raises(RevisionCompacted):
            await changes_from(store, revisions[hurt], 1)
        added = await store.keys.put("later", b"v")
        assert added
        left = await changes_from(store, compacted.value.earliest, 5 - hurt)
        assert [change.key for change in left] == [*(f"k{n}" for n in range(hurt + 1, 5)), "later"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
async def test_takes_skip_what_is_lost_and_count_it_once(tmp_path, count):
    async with await LocalStore.open(tmp_path) as store:
        at = [(await append(store, frame((16, b"%d" % n)))).frame for n in range(12)]
    hurt = (3, 4, 7, 11)
    flip_bodies(tmp_path, *[at[n] for n in hurt])
    async with await LocalStore.open(tmp_path) as store:
        taken = []
        while leases := await store.leases.take(16, 1, max_count=count):
            assert len(leases) <= count
            taken += [lease.offset for lease in leases]
        assert taken == [n for n in range(12) if n not in hurt]
        assert store.messages_lost == len(hurt)


async def test_a_take_ends_where_its_bytes_end(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        for _ in range(12):
            await append(store, frame((16, b"x")))
    async with await LocalStore.open(tmp_path) as store:
        first = await store.leases.take(16, 1, max_count=2)
        size = sum(int(lease.frame.rows["len"][lease.row]) for lease in first)
        rest = [await store.leases.take(16, 1, max_count=4, max_bytes=size) for _ in range(5)]
        assert [lease.offset for leases in (first, *rest) for lease in leases] == list(range(12))
        assert [len(leases) for leases in rest] == [2] * 5
