"""A log begins at its group's origin, and everything that counts in log offsets counts from there."""

import shutil

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from store.api.log import IndexKind
from store.base.errors import NotRebuildable, RevisionCompacted, WrongGroup
from store.engine.repair import StoppedStore
from store.format.frame import ROW, ROW_INDEX_KEY, Position, UnplacedFrame, group_of, origin_of
from store.format.queue_config import QueueConfig
from store.format.records import TIMERS_QUEUE, TimerSet, encode
from store.local.local import LocalStore
from store.log.retention import RetentionLimits
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

GROUPS = [0, 5, (1 << 15) - 1]


def indexed(body, key):
    return UnplacedFrame.build(ROW.pack(16, 0, len(body), ROW_INDEX_KEY, key, 7, 9, 0), body)


def timer(due_ms, body):
    rows = ROW.pack(17, 0, len(body), 0, 0, 0, 0, 0)
    data = encode(TimerSet(due_ms, rows, body))
    return UnplacedFrame.build(ROW.pack(TIMERS_QUEUE, 0, len(data), 0, 0, 0, 0, 0), data)


@pytest.mark.parametrize("group", GROUPS)
async def test_everything_works_in_a_log_that_begins_elsewhere(tmp_path, group):
    origin = origin_of(group)
    for reopened in (False, True):
        async with await LocalStore.open(tmp_path, group=group, linger_s=0.001) as store:
            assert (store.group, list(store.logs), store.replication.first) == (group, [group], origin)
            if not reopened:
                assert store.log.confirmed == origin
                assert (await append(store, indexed(b"a", 3))).frame == origin
                await append(store, indexed(b"b", 3))
                await append(store, timer(1, b"fired"))
                await store.tick()
                assert await store.keys.put("k", b"v") > origin
                await store.leases.take(16, 1, max_count=1)
                await store.leases.settle(16, 1, [0])
            await store.core.until_dispatched(store.log.confirmed)
            assert group_of(store.log.confirmed) == group
            assert await bodies(store, 16) == [b"a", b"b"]
            assert await bodies(store, 17) == [b"fired"]
            at = await store.log.last(7)
            assert await store.log.read(at) == b"b"
            assert Position.parse(str(at)) == at
            found = await store.log.find(IndexKind.KEY, 3)
            assert [await store.log.read(one) for one in found] == [b"b", b"a"]
            assert await store.log.find(IndexKind.KEY, 3, below=found[0]) == found[1:]
            frames, end = await store.log.scan(Position(0, 0), None, max_bytes=1 << 20)
            assert (frames[0].start, end) == (origin, store.log.confirmed)
            assert (await store.log.scan(Position(0, 0), [16], max_bytes=1 << 20))[0] == frames[:2]
            assert (await store.keys.get("k")).value == b"v"
            watch = store.keys.watch(from_revision=1)
            assert [change.key for change in (await anext(watch)).changes] == ["k"]
            await watch.aclose()
            assert await store.leases.waiting(16) == 1
            lease = (await store.leases.take(16, 2, max_count=1, invisible_ms=60_000))[0]
            if reopened:
                assert await store.leases.settle_handles([lease.handle()]) == [None]


@pytest.mark.parametrize("group", GROUPS)
async def test_retention_and_compaction(tmp_path, group):
    options = {"group": group, "linger_s": 0.001, "segment_size_bytes": 2_000}
    async with await LocalStore.open(tmp_path, retention=RetentionLimits(size_bytes=1_000), **options) as store:
        await store.queues.configure([QueueConfig(18, compact=True)])
        await append(store, UnplacedFrame.build(ROW.pack(18, 0, 4, 0, 5, 6, 0, 0), b"kept"))
        for n in range(50):
            await append(store, frame((16, b"%03d" % n + bytes(100)), (17, b"x", 3)))
        await store.core.until_dispatched(store.log.confirmed)
        await store.core.loop.run_in_executor(None, store.core.engine.trimmer.run)
        assert origin_of(group) < store.replication.first < store.log.confirmed
        assert len(await bodies(store, 18, (await store.queues.bounds(18)).first)) == 1
        assert (await bodies(store, 16, (await store.queues.bounds(16)).first))[-1].startswith(b"049")
        with pytest.raises(RevisionCompacted):
            store.keys.watch(from_revision=1)
    async with await LocalStore.open(tmp_path, **options) as store:
        assert (await bodies(store, 18, (await store.queues.bounds(18)).first)) == [b"kept"]
    shutil.rmtree(tmp_path / "views")
    with pytest.raises(NotRebuildable):
        await LocalStore.open(tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
async def test_tools_for_a_stopped_store(tmp_path, group):
    async with await LocalStore.open(tmp_path, group=group) as store:
        await append(store, frame((16, b"a")))
        await store.keys.put("k", b"v")
    with StoppedStore(tmp_path) as stopped:
        assert stopped.first == origin_of(group)
        assert stopped.verify().frames == 2
        assert stopped.verify_views().different == {}
        assert stopped.stats().dispatched == stopped.end
        assert stopped.rebuild_views() == stopped.end
    shutil.rmtree(tmp_path / "views")
    with StoppedStore(tmp_path) as stopped:
        assert stopped.stats().dispatched == origin_of(group)
    for command in (["dump", "--json"], ["rebuild-views"], ["verify", "--views"], ["stats"]):
        done = CliRunner().invoke(app, ["store", command[0], str(tmp_path), *command[1:]])
        assert done.exit_code == 0, done.output
    async with await LocalStore.open(tmp_path, group=group) as store:
        assert await bodies(store, 16) == [b"a"]


async def test_a_directory_remembers_its_group(tmp_path):
    await (await LocalStore.open(tmp_path, group=5)).close()
    with pytest.raises(WrongGroup, match="belongs to store group 5, and is opened as that of store group 0"):
        await LocalStore.open(tmp_path)
    (tmp_path / "group").unlink()  # as older versions left it
    with pytest.raises(WrongGroup, match="store group 5"):
        await LocalStore.open(tmp_path, group=4)
    await (await LocalStore.open(tmp_path, group=5)).close()
    assert (tmp_path / "group").exists()


async def test_a_damaged_file_is_made_anew_where_the_log_tells(tmp_path, caplog):
    await (await LocalStore.open(tmp_path, group=5)).close()
    text = (tmp_path / "group").read_bytes()
    for hurt in (b"", text[:-3], text.replace(b"5", b"6", 1), b"junk\n"):
        (tmp_path / "group").write_bytes(hurt)
        with pytest.raises(WrongGroup):
            await LocalStore.open(tmp_path, group=6)
        await (await LocalStore.open(tmp_path, group=5)).close()
        assert (tmp_path / "group").read_bytes().startswith(b'{"group":5,"log":')  # and an id, another one
        assert "a file is damaged" in caplog.text
        caplog.clear()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "group").write_bytes(b"junk")
    with pytest.raises(WrongGroup, match="damaged"):
        await LocalStore.open(tmp_path, group=5)


async def test_one_of_an_older_version_is_group_0s(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        await append(store, frame((16, b"a")))
    (tmp_path / "group").unlink()
    async with await LocalStore.open(tmp_path) as store:
        assert await bodies(store, 16) == [b"a"]
