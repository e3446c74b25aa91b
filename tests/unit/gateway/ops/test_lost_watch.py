"""A proxy knows which messages groups have lost, or says that it does not; it asks once, and nobody waits for it."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from controller.api.client import Group, GroupConfig, Replica
from controller.elections.health import GroupHealth
from controller.elections.registry import GroupRoute, Registry, RouteReplica
from gateway.ops import lost_watch
from gateway.ops.health_figures import GroupFigures
from gateway.ops.lost_watch import (
    AGAIN_S,
    ASKED,
    FAILED,
    LESS,
    NO_MASTER,
    NOT_REACHED,
    OLDER,
    UNHEARD,
    UNNAMED,
    LostWatch,
)
from store.api.lost import LOST_RANGES_COUNT_MAX, NOTHING_LOST, LostMessages, LostOffsets
from store.api.lost_words import LOST_SHOWN
from store.base.errors import StoreUnreachable
from store.rpc.wire import BadRequest
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

LOST = LostMessages(1, 120, 2, (LostOffsets(16, 7, 9),), 0)
WORDS = "store group 0: 120 bytes of its log in 1 ranges are lost; plant, queue 16, offsets 7 to 8"
UNKNOWN = "store group 0: which messages are lost is not known: "
SOUND = ['headgate_group_lost_messages{group="0"} 0.0', 'headgate_group_lost_unknown{group="0"} 0.0']


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


def replica(id_, lost_bytes):
    heard = {"alive": True, "in_sync": True, "learner": False, "confirmed": 9, "zone": "", "address": f"n{id_}:1"}
    return RouteReplica(
        id=id_, node=f"n{id_}", damages=2, damaged_bytes=1_000, lost_bytes=lost_bytes, silent_ms=300, **heard
    )


class Cluster:
    """One group with two replicas, as controllers and heartbeats tell of it, and what a proxy knows of its losses.

    The second replica is the master.
    """

    def __init__(self, master=None):
        self.group = Group(number=0, config=GroupConfig(), master=2, master_epoch=3)
        self.damage(0, 120)
        self.clients = {0: master or Master()}
        self.now_s = 100.0
        self.watch = LostWatch(
            lambda: [self.group],
            lambda: self.routes,
            lambda: self.clients,
            lambda: {16: "plant"},
            now_s=lambda: self.now_s,
        )

    def damage(self, first, second):
        """Says how many bytes each replica calls lost."""
        replicas = replica(1, first), replica(2, second)
        self.routes = {0: GroupRoute(group=0, master=2, master_epoch=3, replicas=replicas)}

    def start_controllers(self):
        """Says what controllers do that have just been started, and have heard no heartbeat."""
        replicas = tuple(Replica(id=n, node=f"n{n}", address=f"n{n}:1", zone="") for n in (1, 2))
        known = Group(number=0, config=GroupConfig(), master=2, master_epoch=3, sync_set=(1, 2), replicas=replicas)
        self.routes = {0: Registry(0).route(0, known, 10)}

    def elect(self, master, epoch):
        self.group = Group(number=0, config=GroupConfig(), master=master, master_epoch=epoch)

    @property
    def master(self):
        return self.clients[0]

    async def said_later(self):
        """Returns the words once the next look may have begun, and is over."""
        self.now_s += AGAIN_S
        return await self.said()

    async def said(self):
        """Returns the words once all looks are over."""
        self.watch.words()
        await until(lambda: not any(one.is_under_way for one in self.watch._looks.values()))
        return list(self.watch.words())

    def metrics(self):
        registry = CollectorRegistry()
        registry.register(GroupFigures(lambda: [GroupHealth(number=0)], self.watch.losses))
        text = generate_latest(registry).decode()
        return [line for line in text.splitlines() if line.startswith("headgate_group_lost")]


def without_master(cluster):
    cluster.elect(None, 4)


def without_client(cluster):
    cluster.clients.clear()


def older(cluster):
    cluster.clients[0] = Master(BadRequest("there is no method 'lost'"))


async def test_what_a_master_says_is_said_in_all_places():
    cluster = Cluster()
    assert await cluster.said() == [WORDS]
    (lost,) = cluster.watch.list().ranges
    assert (lost.topic, lost.queue, lost.first, lost.next) == ("plant", 16, 7, 9)
    (group,) = cluster.watch.losses()
    assert (group.group, group.messages, group.unknown) == (0, 2, "")
    assert cluster.metrics() == [
        'headgate_group_lost_messages{group="0"} 2.0',
        'headgate_group_lost_unknown{group="0"} 0.0',
    ]


async def test_a_group_without_damage_is_not_asked():
    cluster = Cluster()
    cluster.damage(0, 0)
    assert (await cluster.said(), cluster.watch.list().ranges, cluster.metrics()) == ([], [], SOUND)
    assert cluster.master.asked == 0


@pytest.mark.parametrize(("master", "lost_bytes"), [(1, (0, 120)), (2, (120, 0))])
async def test_a_group_is_asked_when_any_replica_has_lost_something(master, lost_bytes):
    """Its master may be about to find that out."""
    cluster = Cluster(Master(NOTHING_LOST))
    cluster.elect(master, 3)
    cluster.damage(*lost_bytes)
    assert cluster.watch.words() == [UNKNOWN + ASKED]
    assert (await cluster.said(), cluster.metrics(), cluster.master.asked) == ([], SOUND, 1)


async def test_the_answer_is_compared_with_the_heartbeat_of_the_master():
    cluster = Cluster()
    cluster.damage(999, 120)
    assert await cluster.said() == [WORDS]


async def test_nobody_waits_for_a_look_and_all_share_it():
    cluster = Cluster()
    cluster.master.going.clear()
    for _ in range(20):
        assert cluster.watch.words() == [UNKNOWN + ASKED]
        asking = asyncio.create_task(cluster.watch.settle())
        await until(lambda: cluster.master.asked)
        asking.cancel()  # by whoever asked for a page and has gone
        await asyncio.gather(asking, return_exceptions=True)
    assert cluster.metrics() == ['headgate_group_lost_unknown{group="0"} 1.0']
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


async def test_a_group_is_asked_again_after_a_time_as_its_answer_may_change_meanwhile():
    """An answer stayed until the damage changed: queues that were deleted since then kept their messages."""
    cluster = Cluster()
    for _ in range(5):
        assert await cluster.said() == [WORDS]
    assert cluster.master.asked == 1
    cluster.master.answer = LostMessages(1, 120, 1, (LostOffsets(16, 8, 9),), 0)
    cluster.now_s += AGAIN_S
    cluster.master.going.clear()
    assert cluster.watch.words() == [WORDS]
    cluster.master.going.set()
    (words,) = await cluster.said()
    assert words.endswith("offsets 8 to 8")
    assert cluster.master.asked == 2


async def test_more_damage_is_asked_for_and_the_newest_answer_stays_until_then():
    cluster = Cluster()
    await cluster.said()
    cluster.damage(0, 300)
    cluster.master.answer = LostMessages(2, 300, 3, (LostOffsets(16, 7, 10),), 0)
    assert await cluster.said() == [f"{WORDS}; whether that still holds is not known: {LESS}"]
    assert cluster.watch.list().ranges
    (words,) = await cluster.said_later()
    assert words.endswith("in 2 ranges are lost; plant, queue 16, offsets 7 to 9")
    assert cluster.master.asked == 2


async def test_an_answer_of_more_damage_than_there_is_does_not_stay():
    """The other range was repaired between the master's heartbeat and its answer."""
    cluster = Cluster(Master(LostMessages(2, 300, 3, (LostOffsets(16, 7, 10),), 0)))
    (words,) = await cluster.said()
    assert "300 bytes" in words
    cluster.master.answer = LOST
    assert await cluster.said_later() == [WORDS]


@pytest.mark.parametrize("answer", [StoreUnreachable("no master within reach"), LOST])
async def test_what_is_known_is_known_again_when_other_damage_has_come_and_gone(answer):
    """A look that failed meanwhile left it unknown for good."""
    cluster = Cluster()
    await cluster.said()
    cluster.damage(0, 300)
    cluster.master.answer = answer
    (words,) = await cluster.said_later()
    assert words.startswith(f"{WORDS}; whether that still holds is not known: ")
    cluster.damage(0, 120)
    assert await cluster.said() == [WORDS]
    cluster.master.answer = LOST
    assert await cluster.said_later() == [WORDS]
    assert cluster.metrics()[-1] == 'headgate_group_lost_unknown{group="0"} 0.0'


@pytest.mark.parametrize("hurt", [without_client, older, None])
async def test_an_answer_of_more_damage_than_there_is_is_not_known_to_hold_while_no_look_succeeds(hurt):
    """It stayed for as long as the looks failed."""
    cluster = Cluster(Master(LostMessages(2, 300, 3, (LostOffsets(16, 7, 10),), 0)))
    cluster.damage(0, 300)
    (known,) = await cluster.said()
    cluster.damage(0, 120)
    assert await cluster.said() == [known]  # until the next look
    cluster.master.answer = StoreUnreachable("no master within reach")
    if hurt is not None:
        hurt(cluster)
    (words,) = await cluster.said_later()
    assert words.startswith(f"{known}; whether that still holds is not known: ")
    assert cluster.metrics() == ['headgate_group_lost_unknown{group="0"} 1.0']
    cluster.damage(0, 300)
    assert await cluster.said() == [known]


async def test_messages_that_no_queue_names_are_not_counted_as_none():
    cluster = Cluster(Master(LostMessages(2, 120, 0, unfollowed_bytes=120)))
    (words,) = await cluster.said()
    assert words.endswith("in 2 ranges are lost; which messages are in 120 bytes of them no queue knows")
    (group,) = cluster.watch.losses()
    assert (group.messages, group.uncounted) == (None, UNNAMED)
    assert cluster.metrics() == ['headgate_group_lost_unknown{group="0"} 1.0']


async def test_a_new_master_is_asked_though_its_damage_has_the_same_size():
    cluster = Cluster()
    await cluster.said()
    cluster.elect(1, 4)
    cluster.damage(120, 120)
    cluster.clients[0] = Master(LostMessages(1, 120, 1, (LostOffsets(17, 0, 1),), 0))
    assert await cluster.said() == [f"{WORDS}; whether that still holds is not known: {ASKED}"]
    (words,) = await cluster.said_later()
    assert words.endswith("no topic, queue 17, offsets 0 to 0")


async def test_an_answer_of_before_an_election_does_not_count_after_it():
    cluster = Cluster()
    old = cluster.master
    old.going.clear()
    cluster.watch.words()
    await until(lambda: old.asked)
    cluster.elect(1, 4)
    cluster.damage(120, 120)
    cluster.clients[0] = Master(LostMessages(1, 120, 1, (LostOffsets(17, 0, 1),), 0))
    old.going.set()
    assert await cluster.said() == [f"{WORDS}; whether that still holds is not known: {ASKED}"]
    (words,) = await cluster.said_later()
    assert words.endswith("no topic, queue 17, offsets 0 to 0")


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
    assert await cluster.said_later() == [WORDS]


async def test_a_master_that_says_less_than_its_heartbeat_is_asked_again():
    cluster = Cluster(Master(NOTHING_LOST))
    for _ in range(5):
        assert await cluster.said() == [UNKNOWN + LESS]
    assert cluster.master.asked == 1
    cluster.master.answer = LOST
    assert await cluster.said_later() == [WORDS]


async def test_a_master_of_an_older_version_does_not_say():
    cluster = Cluster(Master(BadRequest("there is no method 'lost'")))
    for _ in range(5):
        assert await cluster.said() == [UNKNOWN + OLDER]
    assert cluster.master.asked == 1
    cluster.elect(2, 4)  # it was started again, with the version that knows the call
    cluster.master.answer = LOST
    assert await cluster.said_later() == [WORDS]
    cluster.elect(2, 5)  # and with the one before
    cluster.master.answer = BadRequest("there is no method 'lost'")
    assert await cluster.said_later() == [f"{WORDS}; whether that still holds is not known: {OLDER}"]
    assert cluster.metrics() == ['headgate_group_lost_unknown{group="0"} 1.0']


async def test_a_group_of_which_no_controller_has_said_anything_is_asked_itself():
    cluster = Cluster()
    cluster.routes = {}
    cluster.master.going.clear()
    assert cluster.watch.words() == []  # as after each start, for a moment
    assert [(one.messages, one.unknown) for one in cluster.watch.losses()] == [(None, UNHEARD)]
    assert cluster.metrics() == []
    cluster.master.going.set()
    assert await cluster.said() == [WORDS]
    sound = Cluster(Master(NOTHING_LOST))
    sound.routes = {}
    assert await sound.said() == []
    assert sound.metrics() == SOUND


@pytest.mark.parametrize("hurt", [older, without_client, without_master])
async def test_a_start_says_nothing_of_groups_that_controllers_have_not_told_of(hurt):
    """Each start warned of lost messages, and exported them as unknown, where nothing was lost."""
    cluster = Cluster()
    cluster.routes = {}
    hurt(cluster)
    assert await cluster.said() == []
    assert cluster.metrics() == []
    cluster.damage(0, 0)
    assert cluster.metrics() == SOUND


async def test_controllers_that_have_heard_no_heartbeat_do_not_end_a_loss():
    """Nothing was said to be lost once the controllers were started again."""
    cluster = Cluster()
    await cluster.said()
    cluster.master.answer = StoreUnreachable("no master within reach")
    await cluster.said_later()
    cluster.master.answer = LOST
    await cluster.said_later()
    cluster.start_controllers()
    assert await cluster.said() == [WORDS]
    assert cluster.watch.list().ranges
    assert await cluster.said_later() == [WORDS]
    assert cluster.master.asked == 4
    cluster.clients.clear()
    assert await cluster.said() == [f"{WORDS}; whether that still holds is not known: {NOT_REACHED}"]


async def test_a_sound_group_of_which_nothing_more_is_heard_is_not_called_sound():
    cluster = Cluster(Master(NOTHING_LOST))
    cluster.start_controllers()
    assert await cluster.said() == []
    cluster.clients.clear()
    assert await cluster.said() == [UNKNOWN + NOT_REACHED]


@pytest.mark.parametrize("hurt", [without_client, without_master])
async def test_a_group_of_which_nothing_is_heard_is_not_called_sound(hurt):
    cluster = Cluster()
    cluster.start_controllers()
    hurt(cluster)
    (words,) = await cluster.said()
    assert words.startswith(UNKNOWN)
    assert cluster.metrics() == ['headgate_group_lost_unknown{group="0"} 1.0']


async def test_what_is_repaired_or_deleted_is_said_no_more():
    cluster = Cluster()
    await cluster.said()
    cluster.damage(0, 0)
    assert await cluster.said() == []
    cluster.damage(0, 120)
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
    assert cluster.watch.words() == [UNKNOWN + ASKED]  # pages may still be asked for
    await cluster.watch.settle()
    assert not cluster.watch._looks[0].is_under_way
    assert cluster.master.asked == 1


async def test_the_names_of_topics_are_gathered_once_for_all_groups():
    """That took as long as all topics take for each damaged group."""
    groups = [Group(number=n, config=GroupConfig(), master=1, master_epoch=3) for n in range(5)]
    routes = {n: GroupRoute(group=n, master=1, master_epoch=3, replicas=(replica(1, 120),)) for n in range(5)}
    gathered, clients = [], {n: Master() for n in range(5)}

    def topics():
        gathered.append(None)
        return {16: "plant"}

    watch = LostWatch(lambda: groups, lambda: routes, lambda: clients, topics)
    await watch.settle()
    assert len(watch.words()) == 5
    assert len(gathered) == 1
    assert {one.topic for one in watch.list().ranges} == {"plant"}
    assert len(gathered) == 2
