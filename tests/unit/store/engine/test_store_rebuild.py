"""Views made anew from a log that is damaged: nothing that was acknowledged is cut off, and no offset changes."""

import asyncio
import logging

import pytest

from store.base.errors import CorruptFrame, NotRebuildable
from store.engine.repair import StoppedStore
from store.format.frame import HEADER, ROW
from store.local.local import LocalStore
from store.views import Views
from store.views.old import old_path
from tests.support.store.flips import flip
from tests.support.store.store_kit import append, begin, bodies, frame

pytestmark = pytest.mark.anyio

HEAD = HEADER.size + ROW.size


def flip_log(data_dir, at):
    flip(min((data_dir / "log").iterdir()), at)


async def filled(data_dir):
    """Writes single frames, then a group whose frames do not know that those before are on disk; returns where each
    begins.
    """
    async with await LocalStore.open(data_dir) as store:
        places = [(await append(store, frame((16, b"single%d" % i)))).frame for i in range(5)]
        group = await asyncio.gather(*begin(store, *[frame((17, b"group%d" % i)) for i in range(8)]))
        return places, [outcome.frame for outcome in group]


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.mark.parametrize("which", [0, 3, -1])
async def test_a_flipped_bit_at_the_end_is_damage_where_the_views_were(data_dir, which):
    _, group = await filled(data_dir)
    flip_log(data_dir, group[which] + HEAD)
    with StoppedStore(data_dir) as store:
        end = store.end
        found = store.verify()
        assert [damage.start for damage in found.damages] == [group[which]]
        assert found.torn is None
        assert store.rebuild_views() == store.end == end
    assert not old_path(data_dir / "views").exists()
    async with await LocalStore.open(data_dir) as store:
        assert (await store.queues.bounds(17)).next == 8
        await append(store, frame((17, b"later")))
        damaged = which % 8
        assert await bodies(store, 17, damaged + 1) == [
            *[b"group%d" % i for i in range(damaged + 1, 8)],
            b"later",
        ]
        with pytest.raises(CorruptFrame):
            await store.queues.fetch(17, damaged, max_bytes=1)


async def test_what_a_crash_has_left_behind_the_views_is_still_cut(data_dir):
    _, group = await filled(data_dir)
    path = min((data_dir / "log").iterdir())
    with path.open("ab") as file:
        file.write(frame((17, b"torn")).header(log_offset=0, epoch=1, stored_at_ms=1, unsynced=0))
    flip_log(data_dir, group[-1] + HEAD)
    with StoppedStore(data_dir) as store:
        found = store.verify()
        assert [(damage.start, damage.end) for damage in found.damages] == [(group[-1], store.end - HEADER.size)]
        assert (found.torn.start, found.torn.end) == (store.end - HEADER.size, store.end)
        end = store.end
        store.rebuild_views()
        assert store.end == end - HEADER.size


@pytest.mark.parametrize("how", ["command", "format", "lost"])
async def test_offsets_stay_what_they_were(data_dir, how, monkeypatch):
    """Settlements and groups' offsets name them."""
    async with await LocalStore.open(data_dir) as store:
        at = [(await append(store, frame((16, b"m%d" % i), (18, b"n%d" % i)))).frame for i in range(10)]
        leased = await store.leases.take(16, 1, max_count=5)
        await store.leases.settle(16, 1, [one.offset for one in leased])
        await store.groups.commit("g", {16: 5})
    flip_log(data_dir, at[1] + HEADER.size)
    if how == "command":
        with StoppedStore(data_dir) as store:
            store.rebuild_views()
    elif how == "format":
        views = Views(data_dir / "views")
        with views.env.begin(write=True) as txn:
            txn.put(b"format", b"0", db=views.meta.handle)
        views.close()
        with pytest.raises(NotRebuildable, match="other offsets"):
            await LocalStore.open(data_dir)
        return
    else:
        segment = min((data_dir / "log").iterdir())
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - 1)  # the views are ahead of a log without its end
    async with await LocalStore.open(data_dir) as store:
        assert tuple(await store.queues.bounds(16)) == (0, 10)
        taken = await store.leases.take(16, 1, max_count=99)
        assert [one.frame.record(one.row) for one in taken] == [b"m%d" % i for i in range(5, 10)]
        assert await bodies(store, 16, 5) == [b"m%d" % i for i in range(5, 10)]
        assert await bodies(store, 16, 2) == [b"m%d" % i for i in range(2, 10)]
        assert await bodies(store, 18, 2) == [b"n%d" % i for i in range(2, 10)]
        with pytest.raises(CorruptFrame):
            await store.queues.fetch(16, 1, max_bytes=1)


async def test_views_of_a_damaged_log_are_verified_with_what_they_know_of_the_damage(data_dir):
    """They were opened twice at a time, which cannot be, and so differed from all that is behind the damage."""
    async with await LocalStore.open(data_dir) as store:
        at = [(await append(store, frame((16, b"m%d" % i)))).frame for i in range(10)]
    flip_log(data_dir, at[4] + HEADER.size)
    with StoppedStore(data_dir) as store:
        assert store.verify_views().is_sound


async def test_an_interrupted_rebuild_goes_on_with_what_the_old_views_know(data_dir, monkeypatch):
    async with await LocalStore.open(data_dir) as store:
        at = [(await append(store, frame((16, b"m%d" % i)))).frame for i in range(10)]
    flip_log(data_dir, at[4] + HEADER.size)
    apply = Views.apply

    def interrupted(views, runs):
        apply(views, runs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, StoppedStore(data_dir) as store:
        patch.setattr(Views, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.rebuild_views()
    assert old_path(data_dir / "views").exists()
    async with await LocalStore.open(data_dir) as store:
        assert tuple(await store.queues.bounds(16)) == (0, 10)
        assert await bodies(store, 16, 5) == [b"m%d" % i for i in range(5, 10)]
    assert not old_path(data_dir / "views").exists()


async def test_without_old_views_a_damaged_log_makes_new_ones_only_by_force(data_dir):
    async with await LocalStore.open(data_dir) as store:
        at = [(await append(store, frame((16, b"m%d" % i)))).frame for i in range(4)]
    flip_log(data_dir, at[1] + HEADER.size)
    for path in (data_dir / "views").iterdir():
        path.unlink()
    for _ in range(2):
        with pytest.raises(NotRebuildable, match=f"damaged from {at[1]} to {at[2]}"):
            await LocalStore.open(data_dir)
        with StoppedStore(data_dir) as store, pytest.raises(NotRebuildable, match="other offsets"):
            store.rebuild_views()
    with StoppedStore(data_dir) as store:
        assert store.rebuild_views(force=True) == store.end
    async with await LocalStore.open(data_dir) as store:
        assert await bodies(store, 16) == [b"m0", b"m2", b"m3"]


async def test_views_that_know_more_than_a_damaged_log_are_not_thrown_away(data_dir):
    async with await LocalStore.open(data_dir) as store:
        await append(store, frame((16, b"a")))
        at = store.replication.end
        await store.keys.put("key", b"value")
        await append(store, frame((16, b"b")))
    flip_log(data_dir, at + HEADER.size)
    with StoppedStore(data_dir) as store, pytest.raises(NotRebuildable, match="1 changes of keys"):
        store.rebuild_views()
    async with await LocalStore.open(data_dir) as store:
        assert (await store.keys.get("key")).value == b"value"
    with StoppedStore(data_dir) as store:
        store.rebuild_views(force=True)
    async with await LocalStore.open(data_dir) as store:
        assert await store.keys.get("key") is None
        assert await bodies(store, 16) == [b"a", b"b"]


async def test_damage_behind_what_the_views_had_is_as_in_any_recovery(data_dir, caplog):
    """Nobody was told an offset of it that is kept anywhere."""
    async with await LocalStore.open(data_dir, linger_s=0.001) as store:
        await append(store, frame((16, b"a")))
    views = data_dir / "views" / "data.mdb"
    kept = views.read_bytes()
    async with await LocalStore.open(data_dir) as store:
        at = (await append(store, frame((16, b"b")))).frame
        await append(store, frame((16, b"c")))
    views.write_bytes(kept)
    flip_log(data_dir, at + HEADER.size)
    with caplog.at_level(logging.ERROR), StoppedStore(data_dir) as store:
        assert store.rebuild_views() == store.end
    assert "damaged" in caplog.text
    async with await LocalStore.open(data_dir) as store:
        assert await bodies(store, 16) == [b"a", b"c"]
