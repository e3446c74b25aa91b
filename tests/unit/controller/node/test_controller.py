import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.client import ControllerError, ControllerUnreachable, TopicExists, TopicLimit, UnknownTopic
from controller.api.commands import (
    ClusterLimits,
    CreateTopic,
    DeleteTopic,
    ForgetQueue,
    NameQueue,
    decode_command,
    encode_command,
)
from controller.metadata.state import MetadataState
from controller.node.local import LocalController
from controller.raft import StorageFailed, StorageFull

pytestmark = pytest.mark.anyio

NAMES = st.sampled_from(["a", "b", "c", "", "x" * 300])
COMMANDS = st.one_of(
    st.builds(
        CreateTopic,
        name=NAMES,
        queues=st.integers(0, 3),
        config=st.just({}) | st.just({"retention_ms": 1}),
        topics_max=st.just(2),
        queues_max=st.just(6),
        time_ms=st.just(0),
    ),
    st.builds(DeleteTopic, name=NAMES, time_ms=st.just(0)),
    st.builds(NameQueue, name=NAMES, queues_max=st.just(6), time_ms=st.just(0)),
    st.builds(ForgetQueue, name=NAMES, time_ms=st.just(0)),
)


def run(state, commands):
    answers = []
    for command in commands:
        try:
            answers.append(state.apply(command))
        except ControllerError as refused:
            answers.append(repr(refused))
    return answers


@given(st.lists(COMMANDS, max_size=30), st.integers(0, 30))
def test_a_restored_snapshot_goes_on_as_the_original(commands, cut):
    state = MetadataState()
    run(state, commands[:cut])
    restored = MetadataState.restore(state.snapshot())
    assert run(restored, commands[cut:]) == run(state, commands[cut:])
    assert restored.snapshot() == state.snapshot()


@given(st.lists(COMMANDS, max_size=30))
def test_no_queue_number_is_ever_given_twice(commands):
    state, given_numbers = MetadataState(), {}
    for answer in run(state, commands):
        if hasattr(answer, "queues"):
            for number in answer.queues:
                assert given_numbers.setdefault(number, answer.name) == answer.name
        elif hasattr(answer, "number"):
            assert given_numbers.setdefault(answer.number, answer.name) == answer.name


@given(COMMANDS)
def test_a_command_repeated_answers_the_same_and_changes_nothing(command):
    state = MetadataState()
    run(state, [CreateTopic(name="a", queues=2, topics_max=2, queues_max=6, time_ms=0)])
    first = run(state, [command])
    snapshot = state.snapshot()
    if not isinstance(command, DeleteTopic):
        assert run(state, [command]) == first
    assert MetadataState.restore(snapshot).snapshot() == snapshot


@given(COMMANDS)
def test_commands_survive_their_encoding(command):
    assert decode_command(encode_command(command)) == command


async def test_a_restart_knows_its_topics(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    topic = await controller.do(CreateTopic(name="telemetry"))
    queue = await controller.do(NameQueue(name="orders"))
    await controller.close()
    again = LocalController.open(tmp_path, now_ms=lambda: 2)
    try:
        assert again.topic("telemetry") == topic
        assert await again.do(NameQueue(name="orders")) == queue
        assert again.topic_of_queue(topic.queues[3]) == "telemetry"
    finally:
        await again.close()


async def test_a_restart_replays_behind_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.node.local.COMPACT_BYTES", 500)
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    for n in range(10):
        await controller.do(CreateTopic(name=f"t{n}", queues=1))
    with pytest.raises(UnknownTopic):
        await controller.do(DeleteTopic(name="none"))
    await controller.close()
    again = LocalController.open(tmp_path, now_ms=lambda: 2)
    try:
        assert [topic.name for topic in again.topics()] == [f"t{n}" for n in range(10)]
        assert len({number for topic in again.topics() for number in topic.queues}) == 10
    finally:
        await again.close()


async def test_what_is_refused_is_not_written(tmp_path, monkeypatch):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(topics_max=0), now_ms=lambda: 1)
    monkeypatch.setattr(controller.storage, "save", pytest.fail)
    try:
        for name in ("a", "x" * 300):
            with pytest.raises(ControllerError):
                await controller.do(CreateTopic(name=name))
    finally:
        await controller.close()


@pytest.mark.parametrize("value", [object(), 1 << 70, "\ud800"])
async def test_a_configuration_that_cannot_be_written_is_refused_and_holds_nobody_up(tmp_path, value):
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    try:
        with pytest.raises(ControllerError, match="cannot be encoded"):
            await controller.do(CreateTopic(name="a", config={"note": value}))
        assert (await controller.do(CreateTopic(name="a"))).name == "a"
    finally:
        await controller.close()


async def test_limits_and_disagreements_are_refused_by_name(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(topics_max=1), now_ms=lambda: 1)
    changes = []
    stop = controller.watch(lambda: changes.append(1))
    try:
        await controller.do(CreateTopic(name="a", queues=2))
        assert await controller.do(CreateTopic(name="a")) == controller.topic("a")
        with pytest.raises(TopicExists):
            await controller.do(CreateTopic(name="a", queues=3))
        with pytest.raises(TopicLimit):
            await controller.do(CreateTopic(name="b"))
        stop()
        await controller.do(DeleteTopic(name="a"))
        assert controller.topic("a") is None
        assert len(changes) == 1
    finally:
        await controller.close()


async def test_commands_asked_together_are_written_together_and_answered_in_order(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(queues_max=300), now_ms=lambda: 1)
    written, save = [], controller.storage.save

    def counting(ready):
        if ready.must_sync:
            written.append(len(ready.entries))
        save(ready)

    controller.storage.save = counting
    heard = []
    controller.watch(lambda: heard.append(len(controller.state.named)))
    asked = [controller.do(NameQueue(name=f"q{n}")) for n in range(200)]
    asked += [
        controller.do(CreateTopic(name="a", queues=1000)),
        controller.do(CreateTopic(name="", queues=1)),
        controller.do(NameQueue(name="q0")),
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    numbers = [answer.number for answer in answers[:200]]
    assert numbers == sorted(numbers)
    assert isinstance(answers[200], TopicLimit)
    assert isinstance(answers[201], ControllerError)
    assert answers[202] == answers[0]
    assert len(written) <= 3
    assert len(heard) == len(written)
    await controller.close()
    again = LocalController.open(tmp_path, limits=ClusterLimits(queues_max=300), now_ms=lambda: 1)
    assert [(await again.do(NameQueue(name=f"q{n}"))).number for n in range(200)] == numbers
    await again.close()


async def test_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.disk.driver.FULL_AGAIN_S", 0.01)
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    room, save = [], controller.storage.save

    def full(ready):
        if ready.must_sync and not room:
            raise StorageFull("no space left on device")
        save(ready)

    controller.storage.save = full
    first, second = (
        asyncio.ensure_future(controller.do(NameQueue(name="a"))),
        asyncio.ensure_future(controller.do(NameQueue(name="b"))),
    )
    for asked in (first, second):
        with pytest.raises(ControllerUnreachable, match="no space left"):
            await asked
    with pytest.raises(StorageFull):
        await controller.do(NameQueue(name="c"))
    assert "no space left" in controller.trouble
    room.append(1)
    async with asyncio.timeout(60):
        while controller.trouble is not None:
            await asyncio.sleep(0.001)
    number = (await controller.do(NameQueue(name="c"))).number
    await controller.close()
    again = LocalController.open(tmp_path, now_ms=lambda: 1)
    assert (await again.do(NameQueue(name="c"))).number == number
    assert again.group_of_queue((await again.do(NameQueue(name="a"))).number) == 0  # it happened, as it may
    await again.close()


async def test_a_disk_that_fails_refuses_everything_from_then_on_and_says_why(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    topic = await controller.do(CreateTopic(name="a"))

    def failing(_ready):
        raise StorageFailed("input/output error")

    controller.storage.save = failing
    for _ in range(2):
        with pytest.raises(StorageFailed, match="input/output error"):
            await controller.do(CreateTopic(name="b"))
    assert controller.topics() == [topic]
    assert "input/output error" in controller.trouble
    await controller.close()


async def test_a_caller_that_goes_away_and_a_listener_that_fails_hold_nobody_up(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)

    def fails():
        raise ValueError

    controller.watch(fails)
    gone = asyncio.ensure_future(controller.do(NameQueue(name="a")))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await controller.do(NameQueue(name="b"))).name == "b"
    await controller.close()


async def test_snapshots_come_less_often_the_more_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.node.local.COMPACT_BYTES", 1000)
    controller = LocalController.open(tmp_path, now_ms=lambda: 1)
    made, compact = [], controller.driver.raft.compact

    def counting(index, data, *, keep):
        made.append(len(data))
        compact(index, data, keep=keep)

    controller.driver.raft.compact = counting
    for n in range(200):
        await controller.do(NameQueue(name=f"q{n}"))
    assert made[0] < 1000
    assert 4 < len(made) < 15
    await controller.close()
    again = LocalController.open(tmp_path, now_ms=lambda: 1)
    assert len(again.state.named) == 200
    await again.close()
