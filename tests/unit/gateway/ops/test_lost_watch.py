"""A proxy knows which messages groups have lost, or says that it does not; it asks once, and nobody waits for it."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.api.client import Group, GroupConfig
from controller.elections.health import GroupHealth
from controller.elections.registry import GroupRoute, RouteReplica
from gateway.ops import lost_watch
from gateway.ops.health_figures import GroupFigures
from gateway.ops.lost_watch import ASKED, FAILED, LESS, NO_MASTER, NOT_REACHED, OLDER, LostWatch
from store.api.lost import LOST_RANGES_COUNT_MAX, NOTHING_LOST, LostMessages, LostOffsets
from store.api.lost_words import LOST_SHOWN
from store.base.errors import StoreUnreachable
from store.rpc.wire import BadRequest
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

LOST = LostMessages(1, 120, 2, (LostOffsets(16, 7, 9),), 0)
WORDS = "store group 0: 120 bytes of its log in 1 ranges are lost; plant, queue 16, offsets 7 to 8"
UNKNOWN = "store group 0: which messages are lost is not known: "


class Master:
    """A master that says what is lost when it is let go; `answer` may be an error."""

    def __init__(self, answer=LOST):
        self.answer, self.asked = answer, 0
        self.going = asyncio.Event()
        self.going.set()
        self.queues = self

    async def lost(self, limit):
        assert limit == LOST_RANGES_COUNT_MAX
        self.asked += 1
        await self.going.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def replica(id_, lost_bytes, damages=1):
    heard = {"alive": True, "in_sync": True, "learner": False, "confirmed": 9, "zone": "", "address": f"n{id_}:1"}
    return RouteReplica(
        id=id_, node=f"n{id_}", damages=damages, damaged_bytes=lost_bytes, lost_bytes=lost_bytes, **heard
    )


class Cluster:
    """One group with two replicas, as controllers and heartbeats tell of it, and what a proxy knows of its losses."""

    def __init__(self, master=None):
        self.group = Group(number=0, config=GroupConfig(), master=1, master_epoch=3)
        self.routes = {}
        self.damage(120)
        self.clients = {0: master or Master()}
        self.now_s = 100.0
        self.watch = LostWatch(
            lambda: [self.group],
            lambda: self.routes,
            lambda: self.clients,
            lambda: {16: "plant"},
            now_s=lambda: self.now_s,
        )

    def damage(self, lost_bytes, damages=1):
        replicas = tuple(replica(id_, lost_bytes, damages) for id_ in (1, 2))
        self.routes = {0: GroupRoute(group=0, master=1, master_epoch=3, replicas=replicas)}

    def elect(self, master, epoch):
        self.group = Group(number=0, config=GroupConfig(), master=master, master_epoch=epoch)

    @property
    def master(self):
        return self.clients[0]

    async def said(self):
        """Returns the words once all looks are over."""
        self.watch.words()
        await until(lambda: not any(one.is_under_way for one in self.watch._looks.values()))
        return list(self.watch.words())

    def metrics(self):
        registry = CollectorRegistry()
        registry.register(GroupFigures(lambda: [GroupHealth(number=0), GroupHealth(number=1)], self.watch.losses))
        text = generate_latest(registry).decode()
        return [line for line in text.splitlines() if line.startswith("headgate_group_lost")]


async def test_what_a_master_says_is_said_in_all_places():
    cluster = Cluster()
    assert await cluster.said() == [WORDS]
    (lost,) = cluster.watch.list().ranges
    assert (lost.topic, lost.queue, lost.first, lost.next) == ("plant", 16, 7, 9)
    (group,) = cluster.watch.losses()
    assert (group.group, group.messages, group.unknown) == (0, 2, "")
    assert cluster.metrics() == [
        'headgate_group_lost_messages{group="0"} 2.0',
        'headgate_group_lost_messages{group="1"} 0.0',
        'headgate_group_lost_unknown{group="0"} 0.0',
        'headgate_group_lost_unknown{group="1"} 0.0',
    ]


async def test_a_group_without_damage_is_not_asked():
    cluster = Cluster()
    cluster.damage(0)
    assert await cluster.said() == []
    assert not cluster.watch.list().ranges
    assert cluster.master.asked == 0


async def test_nobody_waits_for_a_look_and_all_share_it():
    cluster = Cluster()
    cluster.master.going.clear()
    for _ in range(20):
        assert cluster.watch.words() == [UNKNOWN + ASKED]
        asking = asyncio.create_task(cluster.watch.settle())
        await until(lambda: cluster.master.asked)
        asking.cancel()  # by whoever asked for a page and has gone
        await asyncio.gather(asking, return_exceptions=True)
    assert cluster.metrics()[-2:] == [
        'headgate_group_lost_unknown{group="0"} 1.0',
        'headgate_group_lost_unknown{group="1"} 0.0',
    ]
    assert not any('lost_messages{group="0"}' in line for line in cluster.metrics())
    cluster.master.going.set()
    await cluster.watch.settle()
    assert cluster.watch.words() == [WORDS]
    assert cluster.master.asked == 1


async def test_a_page_waits_a_moment_and_no_longer(monkeypatch):
    monkeypatch.setattr(lost_watch, "WAIT_S", 0.01)
    cluster = Cluster()
    cluster.master.going.clear()
    await cluster.watch.settle()
    assert cluster.watch.words() == [UNKNOWN + ASKED]
    assert cluster.master.asked == 1


async def test_an_unchanged_group_is_not_asked_again():
    cluster = Cluster()
    for _ in range(5):
        assert await cluster.said() == [WORDS]
        cluster.now_s += 1_000
    assert cluster.master.asked == 1


async def test_other_damage_is_asked_for_and_the_newest_answer_stays_until_then():
    cluster = Cluster()
    await cluster.said()
    cluster.damage(300, damages=2)
    cluster.master.answer = LostMessages(2, 300, 3, (LostOffsets(16, 7, 10),), 0)
    cluster.master.going.clear()
    assert cluster.watch.words() == [f"{WORDS}; whether that still holds is not known: {ASKED}"]
    assert cluster.watch.list().ranges
    cluster.master.going.set()
    (words,) = await cluster.said()
    assert words.endswith("in 2 ranges are lost; plant, queue 16, offsets 7 to 9")
    assert cluster.master.asked == 2


async def test_a_new_master_is_asked_though_its_damage_has_the_same_size():
    cluster = Cluster()
    await cluster.said()
    cluster.elect(2, 4)
    cluster.clients[0] = Master(LostMessages(1, 120, 1, (LostOffsets(17, 0, 1),), 0))
    (words,) = await cluster.said()
    assert words.endswith("no topic, queue 17, offsets 0 to 0")


async def test_an_answer_of_before_an_election_does_not_count_after_it():
    cluster = Cluster()
    old = cluster.master
    old.going.clear()
    cluster.watch.words()
    await until(lambda: old.asked)
    cluster.elect(2, 4)
    cluster.clients[0] = Master(LostMessages(1, 120, 1, (LostOffsets(17, 0, 1),), 0))
    old.going.set()
    assert await cluster.said() == [f"{WORDS}; whether that still holds is not known: {ASKED}"]
    (words,) = await cluster.said()
    assert words.endswith("no topic, queue 17, offsets 0 to 0")


def without_master(cluster):
    cluster.elect(None, 4)


def without_client(cluster):
    cluster.clients.clear()


@pytest.mark.parametrize(("hurt", "why"), [(without_master, NO_MASTER), (without_client, NOT_REACHED)])
async def test_a_group_that_cannot_be_asked_is_not_called_sound(hurt, why):
    cluster = Cluster()
    hurt(cluster)
    assert await cluster.said() == [UNKNOWN + why]
    (group,) = cluster.watch.losses()
    assert (group.messages, group.unknown) == (None, why)
    assert 'headgate_group_lost_unknown{group="0"} 1.0' in cluster.metrics()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (StoreUnreachable("no master within reach"), "its master does not say: no master within reach"),
        (RuntimeError("a bug"), FAILED),
    ],
)
async def test_a_look_that_fails_is_said_and_repeated_after_a_time(error, why):
    cluster = Cluster(Master(error))
    for _ in range(5):
        assert await cluster.said() == [UNKNOWN + why]
    assert cluster.master.asked == 1
    cluster.master.answer = LOST
    cluster.now_s += lost_watch.AGAIN_S
    assert await cluster.said() == [WORDS]


async def test_a_master_that_says_less_than_its_heartbeat_is_asked_again():
    cluster = Cluster(Master(NOTHING_LOST))
    for _ in range(5):
        assert await cluster.said() == [UNKNOWN + LESS]
    assert cluster.master.asked == 1
    cluster.master.answer = LOST
    cluster.now_s += lost_watch.AGAIN_S
    assert await cluster.said() == [WORDS]


async def test_a_master_of_an_older_version_is_asked_once():
    cluster = Cluster(Master(BadRequest("there is no method 'lost'")))
    for _ in range(5):
        assert await cluster.said() == [UNKNOWN + OLDER]
        cluster.now_s += 1_000
    assert cluster.master.asked == 1
    cluster.elect(1, 4)  # it was started again, with the version that knows the call
    cluster.master.answer = LOST
    assert await cluster.said() == [WORDS]


async def test_a_group_of_which_no_controller_has_said_anything_is_asked_itself():
    cluster = Cluster()
    cluster.routes = {}
    cluster.master.going.clear()
    assert cluster.watch.words() == []  # as after each start, for a moment
    assert [one.unknown for one in cluster.watch.losses()] == [ASKED]
    cluster.master.going.set()
    assert await cluster.said() == [WORDS]
    sound = Cluster(Master(NOTHING_LOST))
    sound.routes = {}
    assert await sound.said() == []
    assert sound.watch.losses() == []


async def test_what_is_repaired_or_deleted_is_said_no_more():
    cluster = Cluster()
    await cluster.said()
    cluster.damage(0)
    assert await cluster.said() == []
    cluster.damage(120)
    assert await cluster.said() == [WORDS]
    assert cluster.master.asked == 2


async def test_very_many_are_counted():
    ranges = tuple(LostOffsets(16, n, n + 1) for n in range(0, 2 * LOST_SHOWN + 6, 2))
    cluster = Cluster(Master(LostMessages(1, 120, 99, ranges, 50)))
    (words,) = await cluster.said()
    assert words.endswith(f"; {50 + 3} more, 3 of them in /status")
    found = cluster.watch.list()
    assert (len(found.ranges), found.more) == (LOST_SHOWN + 3, 50)


async def test_the_list_of_all_groups_has_a_bound(monkeypatch):
    ranges = tuple(LostOffsets(16, n, n + 1) for n in range(0, 20, 2))
    cluster = Cluster(Master(LostMessages(1, 120, 10, ranges, 3)))
    await cluster.said()
    monkeypatch.setattr(lost_watch, "LOST_RANGES_COUNT_MAX", 4)
    found = cluster.watch.list()
    assert ([one.first for one in found.ranges], found.more) == ([0, 2, 4, 6], 9)


async def test_looks_end_with_the_proxy():
    cluster = Cluster()
    cluster.master.going.clear()
    cluster.watch.words()
    await until(lambda: cluster.master.asked)
    task = cluster.watch._looks[0].task
    await cluster.watch.close()
    assert task.cancelled()
