"""Store and metadata for workers: those of a gateway in one process, there and back."""

import asyncio
import errno
import threading

import pytest

from controller.api.client import ControllerError, GroupConfig
from controller.api.commands import AddGroup, CreateTopic
from controller.api.requests import AskService
from controller.node.local import LocalController
from controller.remote.remote import RemoteController
from gateway.config.config import load
from gateway.process.backend import local_backend
from gateway.process.shared_store import shared_store
from store.api.keys import Put
from store.base.clock import now_ms
from store.base.errors import StoreError
from store.cluster.cluster import ClusterStore, connect_remote

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(tmp_path):
    return load(environ={}, overrides={"store": {"data_dir": str(tmp_path / "data")}})


async def test_workers_go_on_with_what_one_process_has_left_and_the_other_way_round(config):
    async with local_backend(config) as alone:
        await alone.controller.do(CreateTopic(name="a", queues=2))
        await alone.store.keys.put("k", b"1")
    for _ in range(2):
        async with shared_store(config) as base:
            controller = RemoteController([base.controller_address], now_ms=now_ms)
            await controller.ready()
            async with await ClusterStore.open(controller, connect_remote(controller)) as store:
                assert controller.topic("a") is not None
                assert (await store.keys.get("k")).value == b"1"
                await controller.do(CreateTopic(name="b", queues=3))
                await store.keys.transact({}, [Put("l", b"2")])
            await controller.close()
            assert not base.troubles()
            assert base.alive
    async with local_backend(config) as alone:
        assert [topic.name for topic in alone.controller.topics()] == ["a", "b"]
        assert (await alone.store.keys.get("l")).value == b"2"
        await alone.controller.do(CreateTopic(name="c", queues=1))


async def test_the_replica_stays_the_same_one(config):
    ids = []
    for _ in range(2):
        async with shared_store(config) as base:
            group = base.controller.group(0)
            ids.append([one.id for one in group.replicas])
            assert group.master == group.replicas[0].id
            assert group.master_epoch == 1
    assert ids == [[1], [1]]


@pytest.mark.slow
async def test_what_a_full_disk_keeps_from_being_written_is_said_in_heartbeats(config, monkeypatch):
    monkeypatch.setattr("store.disk.space.Space.look", lambda _: None)
    async with shared_store(config) as base:
        master = base.controller.routes(0)[0].master
        served = await base.controller.do(AskService(group=0))
        assert (served.served, served.room) == (True, (master,))
        base.store.core.engine.space.ran_out("on purpose")
        async with asyncio.timeout(20):
            while (await base.controller.do(AskService(group=0))).served:
                await asyncio.sleep(0.01)
        served = await base.controller.do(AskService(group=0))
        assert (served.served, served.room) == (False, ())


async def heartbeat(base, fits):
    """Returns the first heartbeat of the only replica that fits."""
    async with asyncio.timeout(20):
        while not fits(found := base.controller.registry.last(0, 1)):
            await asyncio.sleep(0.01)
    return found


@pytest.mark.slow
async def test_a_sync_that_hangs_is_said_in_heartbeats_until_it_ends(config, monkeypatch):
    monkeypatch.setattr("store.node.syncs.HANGS_MS", 100)
    monkeypatch.setattr("store.engine.loop_commits.LoopCommits.allows", lambda *_: False)  # else the loop hangs, too
    ends = threading.Event()
    async with shared_store(config) as base:
        assert not (await heartbeat(base, bool)).stalled
        monkeypatch.setattr("store.disk.files.os.fdatasync", lambda _: ends.wait(60))
        put = asyncio.ensure_future(base.store.keys.put("k", b"1"))
        try:
            found = await heartbeat(base, lambda one: one.stalled)
            assert (found.slow, found.full, found.failed) == (True, False, False)
            served = await base.controller.do(AskService(group=0))
            assert (served.served, served.room) == (False, ())
        finally:
            ends.set()
        await put
        assert not (await heartbeat(base, lambda one: not one.stalled)).slow


@pytest.mark.slow
async def test_a_failed_sync_is_said_in_heartbeats(config, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "on purpose")

    async with shared_store(config) as base:
        with monkeypatch.context() as disk:
            disk.setattr("store.disk.files.os.fdatasync", fail)
            with pytest.raises(StoreError):
                await base.store.keys.put("k", b"1")
        found = await heartbeat(base, lambda one: one.failed)
        assert (found.stalled, found.full) == (True, False)


@pytest.mark.slow
async def test_damage_of_the_log_is_said_in_heartbeats(config):
    async with shared_store(config) as base:
        await base.store.keys.put("k", b"a value")
    (path,) = (config.store.data_dir / "log").iterdir()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a value", b"A value"))
    async with shared_store(config) as base, asyncio.timeout(20):
        while not (replica := base.controller.routes(0)[0].replicas[0]).damages:
            await asyncio.sleep(0.01)
        assert (replica.damages, replica.lost_bytes) == (1, replica.damaged_bytes)
        assert replica.lost_bytes > len(b"a value")


async def test_sockets_are_for_this_user_alone_and_are_taken_away(config):
    async with shared_store(config) as base:
        assert (base.sockets / "controller.sock").is_socket()
        assert base.sockets.stat().st_mode & 0o077 == 0
        sockets = base.sockets
    assert not sockets.exists()


async def test_a_long_path_has_its_sockets_elsewhere(tmp_path):
    data_dir = tmp_path / ("d" * 100)
    async with shared_store(load(environ={}, overrides={"store": {"data_dir": str(data_dir)}})) as base:
        assert not base.sockets.is_relative_to(data_dir)
        assert base.sockets.stat().st_mode & 0o077 == 0


async def test_the_data_directory_of_a_clusters_node_is_refused(config):
    controller = LocalController.open(config.store.data_dir / "controller", now_ms=now_ms)
    await controller.do(AddGroup(number=0, config=GroupConfig(replicas=3, min_in_sync=2)))
    await controller.close()
    with pytest.raises(ControllerError, match="a cluster's node"):
        async with shared_store(config):
            pass
