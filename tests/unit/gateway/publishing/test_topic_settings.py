"""The settings of a topic, and what follows from them in the router, in ingest, and in the store."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from controller.api.client import Topic, TopicLimit, UnknownTopic
from controller.api.commands import CloseQueue, ClusterLimits, ConfigureTopic, CreateTopic, MoveQueue
from controller.node.local import LocalController
from gateway.config.config import Config, TopicsConfig, load
from gateway.domain.batch import Batch
from gateway.ops.metrics import Metrics
from gateway.port.adapter import Publish, Token
from gateway.publishing.ingest import Ingest
from gateway.publishing.routing.router import Router, TopicRule
from gateway.publishing.routing.topic_settings import TopicSettings, queue_configs, summary
from gateway.runtime.hub import ProcessHub
from store.api.message import Message
from store.base.process_errors import ConfigError
from store.format.frame import FRAME_ASYNC, FRAME_ZSTD, ROW, ROW_COPY, ROW_TOMBSTONE, Frame, UnplacedFrame
from store.format.queue_config import FOREVER, QueueConfig
from store.local.local import LocalStore
from tests.support.gateway.ingest_rig import Publisher
from tests.support.store.store_kit import FaultyFiles
from tests.support.store.two_logs import Machine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def controller(tmp_path):
    opened = LocalController.open(tmp_path / "controller", limits=ClusterLimits(default_queues=2), now_ms=lambda: 0)
    yield opened
    await opened.close()


# ---- what is said


def test_only_what_is_said_is_kept():
    assert TopicSettings(name="t").config() == {}
    assert TopicSettings(name="t", queues=4, flush="sync").config() == {}
    said = TopicSettings(
        name="t", retention_ms=1, retention_bytes=FOREVER, flush="async", compact=True, index=("key",)
    ).config()
    assert said == {"retention_ms": 1, "retention_bytes": FOREVER, "flush": "async", "compact": True, "index": ["key"]}
    assert summary(said) == "compact=true flush=async index=key retention_bytes=-1 retention_ms=1"
    assert summary({}) == ""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, QueueConfig(16)),
        ({"retention_ms": 5}, QueueConfig(16, 5)),
        ({"retention_bytes": 7}, QueueConfig(16, None, 3)),  # in three equal shares, rounded up
        ({"retention_bytes": FOREVER, "compact": True}, QueueConfig(16, None, FOREVER, compact=True)),
    ],
)
def test_each_queue_of_a_topic_is_told(config, expected):
    found = queue_configs(Topic(name="t", queues=(16, 17, 18), config=config))
    assert found == [msgspec.structs.replace(expected, queue=queue) for queue in (16, 17, 18)]


def test_topics_are_configured_in_the_file(tmp_path):
    file = tmp_path / "headgate.toml"
    file.write_text(
        '[[topics.configure]]\nname = "telemetry"\nretention_ms = 1000\nflush = "async"\n'
        '[[topics.configure]]\nname = "state"\ncompact = true\n'
    )
    found = load(file, {}).topics.configure
    assert [one.name for one in found] == ["telemetry", "state"]
    assert found[0].config() == {"retention_ms": 1000, "flush": "async"}


@pytest.mark.parametrize(
    "text",
    [
        'name = "a b"',
        'name = "t"\nretention_ms = -2',
        'name = "t"\nflush = "never"',
        'name = "t"\nqueues = 0',
        'name = "t"\nretain = 1',
        'name = "t"\n[[topics.configure]]\nname = "t"',
        "compact = true",
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text):
    file = tmp_path / "headgate.toml"
    file.write_text(f"[[topics.configure]]\n{text}\n")
    with pytest.raises(ConfigError, match=r"topics\.configure"):
        load(file, {})


# ---- the controller


async def test_a_topic_is_configured_anew_and_stays_so(controller, tmp_path):
    topic = await controller.do(CreateTopic(name="t"))
    changes = []
    controller.watch(lambda: changes.append(True))
    changed = await controller.do(ConfigureTopic(name="t", config={"retention_ms": 5}))
    assert changed == Topic(name="t", queues=topic.queues, config={"retention_ms": 5}) == controller.topic("t")
    assert changes == [True]
    await controller.do(ConfigureTopic(name="t", config={"retention_ms": 5}))
    assert changes == [True]
    with pytest.raises(UnknownTopic):
        await controller.do(ConfigureTopic(name="other", config={}))
    await controller.close()
    again = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    assert again.topic("t") == changed
    await again.close()


# ---- ingest


class FramesKept:
    def __init__(self):
        self.frames = []
        self.group, self.logs, self.log = 0, {0: self}, self

    def append(self, frame, done):
        self.frames.append(frame)


@pytest.fixture
async def publish(controller):
    """Returns a function that publishes messages in one turn, and returns their frame."""
    store, turns = FramesKept(), []
    ingest = Ingest(
        store,
        Router(controller),
        Metrics(process=False),
        new_producer=lambda: 1,
        message_bytes_max=1 << 20,
        soon=turns.append,
        clock=lambda: 0.0,
        create_topic=pytest.fail,
        appended_to=lambda _: None,
        drained=lambda: None,
        acknowledged=lambda _: None,
        compress_bytes_min=2000,
    )
    await controller.do(CreateTopic(name="fast", config={"flush": "async"}))
    await controller.do(CreateTopic(name="safe"))
    await controller.do(CreateTopic(name="state", config={"compact": True}))

    def publish(*messages):
        for message in messages:
            ingest.publish(Publisher(), Publish((message,), Token(1)), 0)
        while turns:
            turns.pop()()
        return store.frames[-1]

    return publish


async def test_a_frame_is_async_only_when_all_its_topics_are(publish):
    assert publish(Message("fast/1", b"x"), Message("fast/2", b"y")).flags == FRAME_ASYNC
    assert publish(Message("safe/1", b"x")).flags == 0
    for order in (("fast/1", "safe/1"), ("safe/1", "fast/1"), ("fast/1", "safe/1", "fast/2")):
        assert publish(*(Message(address, b"x") for address in order)).flags == 0


async def test_large_payloads_are_compressed(publish):
    frame = publish(*(Message("safe/1", b"temperature=21.5;" * 20) for _ in range(20)))
    assert frame.flags == FRAME_ZSTD
    assert frame.size_bytes < 2500
    placed = Frame.parse(frame.header(log_offset=0, epoch=1, stored_at_ms=1) + frame.rows + frame.payload, log_offset=0)
    assert [message.body for message in Batch.of(placed).messages] == [b"temperature=21.5;" * 20] * 20


async def test_a_message_without_a_body_ends_its_key_in_a_compacted_topic(publish):
    frame = publish(Message("state/1", b""), Message("state/1", b"x"), Message("safe/1", b""))
    assert [row[3] for row in ROW.iter_unpack(frame.rows)] == [ROW_TOMBSTONE, 0, 0]


async def test_followers_of_the_log_do_not_get_copies_again(publish):
    frame = publish(Message("state/1", b"x"), Message("state/2", b"y"))
    rows = [list(row) for row in ROW.iter_unpack(frame.rows)]
    rows[0][3] |= ROW_COPY
    again = UnplacedFrame.build(b"".join(ROW.pack(*row) for row in rows), frame.payload)
    data = again.header(log_offset=0, epoch=1, stored_at_ms=1) + again.rows + again.payload
    assert [message.body for message in Batch.of(Frame.parse(data, log_offset=0)).messages] == [b"y"]


# ---- the hub


class Running:
    """Hubs over one data directory, one after the other."""

    def __init__(self, directory: Path, controller: LocalController):
        self.directory = directory
        self.controller = controller

    async def start(self, *said: TopicSettings, **options):
        """Returns what the store knows of the topics' queues once a hub with this configuration has started."""
        config = Config(topics=TopicsConfig(configure=said))
        async with await LocalStore.open(self.directory / "data", **options) as store, asyncio.TaskGroup() as tasks:
            hub = ProcessHub(config, store, self.controller, Metrics(process=False), tasks)
            await hub.start()
            end = store.replication.end
            found = {
                topic.name: [store.queues.config(queue) for queue in topic.queues] for topic in self.controller.topics()
            }
            hub.cancel_tasks()
        return found, end


@pytest.fixture
def running(tmp_path, controller):
    return Running(tmp_path, controller)


async def test_topics_are_made_and_configured_at_the_start(running, controller):
    found, _ = await running.start(TopicSettings(name="t", queues=3, retention_ms=1000, compact=True))
    queues = controller.topic("t").queues
    assert found["t"] == [QueueConfig(queue, 1000, None, compact=True) for queue in queues]
    assert len(queues) == 3
    found, end = await running.start(TopicSettings(name="t", queues=3, retention_ms=1000, compact=True))
    _, again = await running.start(TopicSettings(name="t", queues=3, retention_ms=1000, compact=True))
    assert again == end  # no setting is stored twice
    found, _ = await running.start(TopicSettings(name="t", retention_bytes=30))
    assert found["t"] == [QueueConfig(queue, None, 10) for queue in queues]


async def test_a_topic_without_a_word_in_the_file_stays_as_it_is(running, controller):
    await running.start(TopicSettings(name="t", retention_ms=1000))
    found, _ = await running.start()
    assert [one.retention_ms for one in found["t"]] == [1000, 1000]


async def test_what_a_crash_left_unsaid_is_said_at_the_next_start(running, controller):
    await controller.do(CreateTopic(name="t", config={"retention_ms": 7}))
    await controller.do(CreateTopic(name="plain"))
    found, _ = await running.start()
    assert [one.retention_ms for one in found["t"]] == [7, 7]
    assert found["plain"] == [None, None]
    await controller.do(ConfigureTopic(name="t", config={}))
    found, _ = await running.start()
    assert [(one.retention_ms, one.compact) for one in found["t"]] == [(None, False)] * 2


async def test_queues_that_a_topic_gets_later_are_configured_too(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.runtime.hub.TOPICS_INTERVAL_MS", 1)
    async with Machine(tmp_path) as machine, asyncio.TaskGroup() as tasks:
        hub = ProcessHub(Config(), machine.store, machine.controller, Metrics(process=False), tasks)
        await hub.start()
        topic = await machine.controller.do(CreateTopic(name="t", config={"retention_ms": 7}))
        moved = await machine.controller.do(MoveQueue(number=topic.open[0], group=1))
        queue = moved.open[0]
        machine.reaches[1].down = True
        while (said := machine.store.queues.config(queue)) is None or said.retention_ms != 7:
            await asyncio.sleep(0.01)
            machine.reaches[1].down = False
        hub.cancel_tasks()


async def test_a_full_disk_stops_no_start(running, controller, tmp_path):
    files = FaultyFiles()
    files.free = 10
    found, _ = await running.start(TopicSettings(name="t", retention_ms=1), files=files)
    assert found["t"] == [None, None]
    found, _ = await running.start(TopicSettings(name="t", retention_ms=1))
    assert [one.retention_ms for one in found["t"]] == [1, 1]


async def test_a_topic_too_many_is_a_mistake_in_the_configuration(running, controller, monkeypatch):
    async def refuse(*_, **__):
        raise TopicLimit("full")

    monkeypatch.setattr(controller, "do", refuse)
    with pytest.raises(ExceptionGroup) as raised:
        await running.start(TopicSettings(name="t"))
    assert raised.group_contains(ConfigError, match=r"topics\.configure: t: full")


async def test_queues_stay_as_many_as_they_are(running, controller, caplog):
    await controller.do(CreateTopic(name="t", queues=2))
    await running.start(TopicSettings(name="t", queues=5, retention_ms=1))
    assert len(controller.topic("t").queues) == 2


async def test_messages_of_an_address_can_be_in_the_queues_of_its_topic(controller):
    router = Router(controller, [])
    assert router.queues_at("plant/1/temperature") is None
    plant = await controller.do(CreateTopic(name="plant"))
    assert list(router.queues_at("plant/1/temperature")) == list(plant.queues)
    ruled = Router(controller, [TopicRule("plant/+/alarm", "alarms")])
    assert ruled.queues_at("plant/1/temperature") is None, "another rule may have been there when it was stored"
    moved = await controller.do(CloseQueue(number=plant.queues[0]))
    assert sorted(moved.queues) == sorted(router.queues_at("plant/1"))
    assert router.queues_at("other/1") is None
