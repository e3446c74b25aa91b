"""A node whose metadata is lost, or older than its log, does not give numbers of queues again."""

import shutil
from contextlib import asynccontextmanager

import pytest

from controller.api.client import ControllerError
from controller.api.commands import CreateTopic
from controller.incarnations.recovery import StoppedController
from controller.remote.remote import RemoteController
from gateway.config.config import load
from gateway.process.backend import local_backend
from gateway.process.shared_store import shared_store
from store.base.clock import now_ms
from store.base.errors import ForeignCluster, MetadataWentBack
from store.cluster.cluster import ClusterStore, connect_remote
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(tmp_path):
    return load(environ={}, overrides={"store": {"data_dir": str(tmp_path / "data")}})


@asynccontextmanager
async def worker(config):
    """Opens store and metadata as a worker does."""
    async with shared_store(config) as base:
        controller = RemoteController([base.controller_address], now_ms=now_ms)
        await controller.ready()
        try:
            async with await ClusterStore.open(controller, connect_remote(controller)) as store:
                yield controller, store
        finally:
            await controller.close()


def metadata(config):
    return config.store.data_dir / "controller"


async def topics_with_records(config, *names):
    """Makes topics of two queues with a record in each; returns the queues, ascending."""
    async with local_backend(config) as alone:
        for name in names:
            topic = await alone.controller.do(CreateTopic(name=name, queues=2))
            await append(alone.store, frame(*[(queue, name.encode()) for queue in topic.queues]))
        return sorted(queue for topic in alone.controller.topics() for queue in topic.queues)


async def refused(config):
    """Returns the sentence with which the data directory is refused, by one process and by the one beside workers."""
    sentences = set()
    for backend in (local_backend, shared_store):
        with pytest.raises(MetadataWentBack) as error:
            async with backend(config):
                pass
        sentences.add(str(error.value))
    (sentence,) = sentences
    return sentence


@pytest.mark.slow
async def test_records_of_queues_that_the_metadata_does_not_know_are_not_given_to_another_topic(config):
    queues = await topics_with_records(config, "a")
    shutil.rmtree(metadata(config))
    sentence = await refused(config)
    assert f"queue {queues[-1]} has records" in sentence
    assert f"headgate controller recover --dir {metadata(config)}" in sentence


@pytest.mark.slow
async def test_an_older_copy_of_the_metadata_is_refused_until_it_is_recovered_as_the_sentence_says(config):
    await topics_with_records(config, "a")
    copy = config.store.data_dir.with_name("copy")
    shutil.copytree(metadata(config), copy)
    given = await topics_with_records(config, "b")
    shutil.rmtree(metadata(config))
    shutil.copytree(copy, metadata(config))
    await refused(config)

    stopped = StoppedController(metadata(config), 1)
    stopped.recover("localhost:8082", "n1")
    stopped.close()
    now = await topics_with_records(config, "b")
    assert not set(now[2:]) & set(given)
    async with worker(config) as (controller, store):
        assert [topic.name for topic in controller.topics()] == ["a", "b"]
        for queue in now:
            assert (await store.queues.bounds(queue)).next == 1


async def test_a_queue_that_the_views_do_not_have_yet_is_known(config):
    async with local_backend(config) as alone:
        topic = await alone.controller.do(CreateTopic(name="a", queues=2))
        await append(alone.store, frame((topic.queues[-1], b"1")))
        assert alone.store.core.recent.newest_queue() == topic.queues[-1]
        assert await alone.store.queues.newest() == topic.queues[-1]


def contents(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
async def test_the_directory_of_a_store_node_is_refused_and_left_as_it_is(config):
    async with shared_store(config) as base:
        cluster = base.controller.cluster
    shutil.rmtree(metadata(config))  # a store node has none
    before = contents(config.store.data_dir)
    for backend in (local_backend, shared_store):
        with pytest.raises(
            ForeignCluster, match=f"is of replica 1 of store group 0 of cluster {cluster}: start headgate"
        ):
            async with backend(config):
                pass
        assert contents(config.store.data_dir) == before


@pytest.mark.slow
async def test_a_node_with_workers_whose_metadata_is_lost_goes_on_as_the_sentences_say(config):
    async with worker(config) as (controller, store):
        lost = await controller.do(CreateTopic(name="a", queues=2))
        await store.keys.put("k", b"1")
        await append(store, frame((lost.queues[0], b"1")))
    shutil.rmtree(metadata(config))
    with pytest.raises(ForeignCluster, match=r"remove the files replica, replica\.copy and replica\.asked"):
        async with shared_store(config):
            pass
    for name in ("replica", "replica.copy", "replica.asked"):
        (config.store.data_dir / name).unlink(missing_ok=True)
    await refused(config)
    stopped = StoppedController(metadata(config), 1)
    stopped.recover("localhost:8082", "n1")
    stopped.close()
    async with worker(config) as (controller, store):
        assert (await store.keys.get("k")).value == b"1"
        topic = await controller.do(CreateTopic(name="a", queues=2))
        assert not set(topic.queues) & set(lost.queues)


@pytest.mark.slow
async def test_a_node_that_has_a_controller_and_a_store_is_refused_and_left_as_it_is(config):
    async with shared_store(config):
        pass
    before = contents(config.store.data_dir)
    controllers = {"1": "n1:8082", "2": "n2:8082", "3": "n3:8082"}
    of_cluster = load(
        environ={},
        overrides={"store": {"data_dir": str(config.store.data_dir)}, "cluster": {"controllers": controllers}},
    )
    for backend in (local_backend, shared_store):
        with pytest.raises(ForeignCluster, match="controllers out of its configuration"):
            async with backend(of_cluster):
                pass
        assert contents(config.store.data_dir) == before


async def test_no_topic_is_made_in_a_directory_that_was_removed_and_the_node_says_so(config):
    """Topics were made, acknowledged, and gone after a restart."""
    async with local_backend(config) as alone:
        await alone.controller.do(CreateTopic(name="a", queues=1))
        assert not alone.troubles()
        shutil.rmtree(metadata(config))
        (trouble,) = alone.troubles()
        assert "was removed or replaced" in trouble
        with pytest.raises(ControllerError):
            await alone.controller.do(CreateTopic(name="b", queues=1))
        assert not alone.alive  # only a restart helps


@pytest.mark.slow
async def test_workers_make_no_topic_in_a_directory_that_was_removed(config):
    async with worker(config) as (controller, _store):
        await controller.do(CreateTopic(name="a", queues=1))
        shutil.rmtree(metadata(config))
        with pytest.raises(ControllerError):
            await controller.do(CreateTopic(name="b", queues=1))


async def test_workers_are_not_ready_over_a_directory_that_was_removed_though_nothing_is_written(config):
    async with shared_store(config) as base:
        assert not base.troubles()
        away = metadata(config).rename(config.store.data_dir / "away")
        (trouble,) = base.troubles()
        assert "was removed or replaced" in trouble
        away.rename(metadata(config))
        assert not base.troubles()
