"""Controllers as real processes: killed, stopped for a while, restarted, added and removed, under commands."""

import asyncio
import signal

import pytest

from controller.api.client import ControllerUnreachable
from controller.api.commands import ClusterLimits, CreateTopic
from controller.api.requests import RemoveMember
from controller.remote.remote import RemoteController
from tests.support.controller.controllers import ControllerProcess, ControllerProcesses, now_ms
from tests.support.process.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
PATIENCE_S = 60.0
ONE_QUEUE = ClusterLimits(default_queues=1)


@pytest.fixture(scope="module")
def controllers(tmp_path_factory):
    """Yields three controllers for all tests here; each test leaves them running."""
    processes = ControllerProcesses(tmp_path_factory.mktemp("controllers"))
    try:
        yield processes.start()
    finally:
        processes.close()


@pytest.fixture
async def client(controllers):
    remote = RemoteController(list(controllers.addresses.values()), now_ms=now_ms, limits=ONE_QUEUE, budget_s=60)
    await remote.ready()
    yield remote
    await remote.close()


class Load:
    """Creates topics all the time; `done` are those acknowledged."""

    def __init__(self, client, prefix, tasks=8):
        self.client, self.prefix = client, prefix
        self.done = {}
        self._tasks = [asyncio.ensure_future(self._work(n)) for n in range(tasks)]

    async def _work(self, number):
        count = 0
        while True:
            topic = await self.client.do(CreateTopic(name=f"{self.prefix}.{number}.{count}"))
            self.done[topic.name] = topic
            count += 1
            await asyncio.sleep(0.01)  # so that the number of topics stays within reason

    async def more(self, count=20):
        aim = len(self.done) + count
        await until(lambda: len(self.done) >= aim or any(task.done() for task in self._tasks), PATIENCE_S)

    async def stop(self):
        for task in self._tasks:
            task.cancel()
        for found in await asyncio.gather(*self._tasks, return_exceptions=True):
            if not isinstance(found, asyncio.CancelledError):
                raise found
        return self.done


async def in_thread(function, *arguments):
    return await asyncio.to_thread(function, *arguments)


async def seen_by_all(controllers, topics):
    """Waits until every controller that runs shows these topics, and checks that each number is that of one queue."""
    for id_, one in controllers.all.items():
        if one.process.poll() is not None:
            continue
        direct = RemoteController([controllers.addresses[id_]], now_ms=now_ms, limits=ONE_QUEUE)
        await direct.ready()
        await until(lambda direct=direct: all(direct.topic(name) == topic for name, topic in topics.items()))
        await direct.close()
    numbers = [number for topic in topics.values() for number in topic.queues]
    assert len(set(numbers)) == len(numbers)


async def test_killing_the_leader_loses_nothing_that_was_acknowledged(controllers, client):
    load = Load(client, "killed")
    await load.more()
    leader = await in_thread(controllers.leader)
    await in_thread(leader.kill)
    await load.more()
    await in_thread(controllers.start, leader.id)
    await load.more()
    done = await load.stop()
    await seen_by_all(controllers, done)
    for name, topic in list(done.items())[:5]:
        again = await client.do(CreateTopic(name=name, queues=1, config={}))
        assert again == topic


async def test_a_leader_that_sleeps_is_replaced_and_cannot_harm_when_it_wakes(controllers, client):
    load = Load(client, "asleep")
    await load.more()
    leader = await in_thread(controllers.leader)
    leader.signal(signal.SIGSTOP)
    try:
        await load.more()
        other = await in_thread(controllers.leader)
        assert other is not leader
    finally:
        leader.signal(signal.SIGCONT)
    await load.more()
    await until(lambda: "headgate_controller_leading 0.0" in (leader.page("/metrics") or ""))
    await seen_by_all(controllers, await load.stop())


async def test_a_minority_takes_no_commands_and_answers_everything_else(controllers, client):
    await client.barrier()
    leader = await in_thread(controllers.leader)
    others = [one for one in controllers.all.values() if one is not leader]
    for one in others:
        one.signal(signal.SIGSTOP)
    try:
        alone = RemoteController([controllers.addresses[leader.id]], now_ms=now_ms, limits=ONE_QUEUE, budget_s=1.5)
        await alone.ready()
        assert alone.topics() == client.topics()
        with pytest.raises(ControllerUnreachable):
            await alone.do(CreateTopic(name="minority"))
        assert await alone.routes() == []
        assert await in_thread(leader.page, "/readyz") is None
        assert await in_thread(leader.page, "/healthz") is not None
        await alone.close()
    finally:
        for one in others:
            one.signal(signal.SIGCONT)
    await client.do(CreateTopic(name="majority"))


async def test_members_are_replaced_while_commands_go_on(controllers, client):
    load = Load(client, "replaced", tasks=4)
    await load.more()
    gone = await in_thread(controllers.leader)
    await in_thread(gone.kill)
    await client.do(RemoveMember(id=gone.id))
    new = controllers.join(4)
    await in_thread(new.wait)
    expected = {1, 2, 3, 4} - {gone.id}
    await until(
        lambda: [one["id"] for one in new.status()["members"] if not one["learner"]] == sorted(expected), PATIENCE_S
    )
    await load.more()
    del controllers.all[gone.id], controllers.addresses[gone.id]
    await seen_by_all(controllers, await load.stop())
    await until(lambda: {member.id for member in client.members()} == expected)


async def test_everything_is_there_after_all_were_killed_at_once(controllers, client):
    load = Load(client, "restart")
    await load.more()
    for one in controllers.all.values():
        one.signal(signal.SIGKILL)
    for one in controllers.all.values():
        await in_thread(one.process.wait, 20)
    before = dict(load.done)
    await in_thread(controllers.start)
    await load.more()
    after = await load.stop()
    assert before.items() <= after.items()
    await seen_by_all(controllers, after)


async def test_it_says_what_is_wrong_and_ends_cleanly(controllers, tmp_path):
    one = await in_thread(controllers.leader)
    twin = ControllerProcess(tmp_path, one.id, one.addresses)
    twin.data_dir = one.data_dir
    twin.spawn()
    assert await in_thread(twin.process.wait, 90) == 1
    (line,) = twin.log.read_text().splitlines()
    assert "in use by another process" in line
    for one in controllers.all.values():
        assert await in_thread(one.stop) == 0
        assert '"ready"' in one.log.read_text()
        assert "Traceback" not in one.log.read_text()
