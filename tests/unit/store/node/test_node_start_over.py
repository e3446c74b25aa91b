"""Replicas that cannot make good what is damaged of them: they start over, where another one is sound."""

import logging
from types import SimpleNamespace

import pytest

from store.base.errors import NotRebuildable, SnapshotUnusable, StoreClosed
from store.format.frame import origin_of
from store.log.retention import RetentionLimits
from store.node import replacing, snapshots
from store.node.snapshots import SnapshotSender
from store.replication.epoch_file import EPOCH_FILES
from store.replication.epochs import EpochList
from store.rpc.replica_wire import SnapshotRequest
from tests.support.process.waiting import until
from tests.support.store.flips import flip_all
from tests.support.store.node_kit import GROUP, PATIENCE_S, StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

VALUE = b"a value that nobody else has"
SMALL = {
    "segment_size_bytes": 2_000,
    "retention": RetentionLimits(-1, 4_000),
    "retention_interval_s": 0.05,
    "scrub_bytes_per_s": 0,
}


async def filled(group):
    """Returns a client; retention has deleted the front of each replica's log, and the views hold a key that was set
    there.
    """
    store = group.store()
    await store.keys.put("key", VALUE)
    for n in range(100):
        await append(store, frame((16, b"%03d" % n + bytes(100))))
    nodes = group.nodes.values()
    await until(lambda: all(node.disk.store.replication.first > origin_of(GROUP) for node in nodes), PATIENCE_S)
    await group.settled()
    for node in nodes:
        await node.disk.store.core.until_dispatched(node.disk.store.log.confirmed)
    return store


def flip_views(path, what):
    assert flip_all(path, what)


def spoil(path, start=0, size=1 << 20):
    """Overwrites a part of a file."""
    data = bytearray(path.read_bytes())
    data[start : start + size] = b"\xa5" * len(data[start : start + size])
    path.write_bytes(data)


def spoil_epochs(data_dir):
    """Overwrites both files of a replica's epochs."""
    for name in EPOCH_FILES:
        spoil(data_dir / name)


async def is_whole_again(group, name, store):
    """Checks that a replica has the whole log, is in sync, and leads."""
    await until(lambda: group.nodes[name].disk.store and not group.nodes[name].disk.store.is_damaged, PATIENCE_S)
    await append(store, frame((16, b"more")))
    await group.in_sync()
    await group.hand_over(name)
    assert (await store.keys.get("key")).value == VALUE
    bounds = await store.queues.bounds(16)
    assert (await bodies(store, 16, bounds.first))[-1] == b"more"


def a_replica(group, master):
    return next(name for name in group.names if name != master)


@pytest.mark.slow
async def test_a_replica_that_cannot_make_its_views_anew_starts_over_from_the_master(
    tmp_path, controllers, monkeypatch, caplog
):
    installed, real = [], replacing.install_fetched

    async def watched(context, lost_end):
        installed.append(lost_end)
        await real(context, lost_end)

    monkeypatch.setattr(replacing, "install_fetched", watched)
    async with StoreGroup(tmp_path, controllers, **SMALL) as group:
        await group.in_sync()
        store = await filled(group)
        replica = a_replica(group, await group.master())
        end = group.nodes[replica].disk.store.replication.end
        flip_views(tmp_path / replica / "views" / "data.mdb", VALUE)
        group.nodes[replica].disk.store.core.engine.views.walk.step(0)
        await until(lambda: installed, PATIENCE_S)
        await is_whole_again(group, replica, store)
        assert installed[0] >= end  # it is not elected before its log is as long again
        said = [one for one in caplog.records if "starts over from" in one.getMessage()]
        assert [one.levelno for one in said] == [logging.ERROR]


@pytest.mark.slow
async def test_a_replica_whose_views_cannot_be_opened_comes_up_damaged_and_starts_over(tmp_path, controllers, caplog):
    async with StoreGroup(tmp_path, controllers, **SMALL) as group:
        await group.in_sync()
        store = await filled(group)
        replica = a_replica(group, await group.master())
        await group.stop(replica)
        spoil(tmp_path / replica / "views" / "data.mdb")
        await group.start(replica)
        await is_whole_again(group, replica, store)
        assert "starts over from" in caplog.text


@pytest.mark.slow
async def test_a_replica_with_damaged_epochs_and_a_damaged_log_starts_over(tmp_path, controllers, caplog):
    async with StoreGroup(tmp_path, controllers, **SMALL) as group:
        await group.in_sync()
        store = await filled(group)
        replica = a_replica(group, await group.master())
        end = group.nodes[replica].disk.store.replication.end
        await group.stop(replica)
        spoil_epochs(tmp_path / replica)
        spoil(sorted((tmp_path / replica / "log").iterdir())[-2], 500, 20)
        registry = controllers.nodes[1].registry
        await group.start(replica)
        id_ = group.id(replica)
        await is_whole_again(group, replica, store)
        assert registry.last(GROUP, id_).log_end >= end
        assert "starts over from" in caplog.text


@pytest.mark.slow
async def test_a_replica_whose_epochs_the_log_does_not_tell_any_more_starts_over(tmp_path, controllers, caplog):
    async with StoreGroup(tmp_path, controllers, **SMALL) as group:
        await group.in_sync()
        store = await filled(group)
        master = await group.master()
        epoch = group.role(master).core.epoch
        replica = a_replica(group, master)
        await group.stop(replica)
        spoil_epochs(tmp_path / replica)
        await group.start(replica)
        await is_whole_again(group, replica, store)
        elected = group.role(await group.master()).core.epoch > epoch  # then the log tells an epoch after all
        assert elected or "starts over from" in caplog.text


@pytest.mark.slow
async def test_a_replica_that_cannot_be_opened_is_not_electable_while_no_master_serves(tmp_path, controllers):
    """Its log stays as it is: there is nobody to be filled by."""
    async with StoreGroup(tmp_path, controllers, count=2, **SMALL) as group:
        await group.in_sync()
        await filled(group)
        master = await group.master()
        replica = a_replica(group, master)
        await group.stop(replica)
        await group.kill(master)
        spoil_epochs(tmp_path / replica)
        log = tmp_path / replica / "log"
        spoil(sorted(log.iterdir())[-2], 500, 20)
        before = [path.read_bytes() for path in sorted(log.iterdir())[-2:]]  # retention may delete what lies in front
        await group.start(replica)
        id_ = group.id(replica)
        registry = controllers.nodes[1].registry
        await until(lambda: registry.last(GROUP, id_) and registry.last(GROUP, id_).cut_short, PATIENCE_S)
        assert registry.last(GROUP, id_).damaged
        assert "damaged" in group.nodes[replica].repairer.describe()
        assert [path.read_bytes() for path in sorted(log.iterdir())[-2:]] == before
        await group.start(master)
        await group.in_sync()
        await until(lambda: not group.nodes[replica].repairer.needs_repair, PATIENCE_S)


@pytest.mark.slow
async def test_the_only_replica_of_a_group_is_not_started_with_damaged_epochs_and_a_damaged_log(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers, count=1, **SMALL) as group:
        await group.in_sync()
        await filled(group)
        await group.stop("n1")
        spoil_epochs(tmp_path / "n1")
        spoil(sorted((tmp_path / "n1" / "log").iterdir())[-2], 500, 20)
        with pytest.raises(NotRebuildable, match=r"only replica of store group 3.*put a copy"):
            await group.start("n1")
        group.nodes.pop("n1", None)


async def test_nobody_throws_a_log_away_for_a_snapshot_of_a_master_that_is_damaged_too(tmp_path):
    """The log that would go may be the one that the master is repaired from."""
    asked = SnapshotRequest(group=GROUP, replica=1, epoch=1, starts_over=True)
    with pytest.raises(SnapshotUnusable, match="damaged too"):
        await SnapshotSender(tmp_path).send(SimpleNamespace(is_damaged=True), EpochList(), asked, None)


async def test_the_next_snapshot_is_taken_behind_the_removal_of_the_last_one(tmp_path, monkeypatch):
    """The removal took the files of the next one, whose replica had to ask again."""
    busy = []

    async def snapshot(_directory):
        raise StoreClosed("the role ends")

    sender = SnapshotSender(tmp_path)
    monkeypatch.setattr(snapshots.shutil, "rmtree", lambda *_: busy.append(sender._busy))
    store = SimpleNamespace(is_damaged=False, replication=SimpleNamespace(snapshot=snapshot))
    asked = SnapshotRequest(group=GROUP, replica=1, epoch=1, starts_over=False)
    for _ in range(2):
        with pytest.raises(StoreClosed):
            await sender.send(store, EpochList(), asked, None)
    assert busy == [True] * 4
