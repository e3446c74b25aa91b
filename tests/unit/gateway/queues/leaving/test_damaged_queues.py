"""Messages of queues that damage has taken: those behind them leave as always, and each lost one is counted."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.port.streams import StreamRead
from gateway.queues.leaving.upkeep import OWNER
from store.base.clock import now_ms
from tests.support.gateway.queues_rig import opened_queues
from tests.support.store.flips import flip_all

pytestmark = pytest.mark.anyio

LATER_MS = 10_000_000


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path, queues=2, cache_bytes_max=0) as rig:
        rig.log = tmp_path / "store" / "log"
        yield rig


async def queue(rig, **arguments):
    """Declares "q", whose dead letters go to "dead"; returns its head."""
    await rig.declare(rig.conn(), "dead")
    said = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    said |= {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    await rig.declare(rig.conn(), "q", arguments=said)
    return rig.queues.registry.queues["q"].pump.head


async def publish(rig, *bodies, **fields):
    """Publishes each message in a frame of its own, so that each is damaged by itself."""
    for body in bodies:
        await rig.publish("", "q", body, **fields)


def damage(log: Path, *bodies):
    for body in bodies:
        assert sum(flip_all(path, body, within=1) for path in log.iterdir()) == 1


async def there(rig, name):
    """Returns the bodies that wait in a queue, in order."""
    number = rig.queues.registry.queues[name].number
    leases = await rig.store.leases.take(number, 99, max_count=100)
    rig.store.leases.requeue(number, 99, [one.offset for one in leases], delivered=False)
    return [message.body for message in rig.queues.registry.queues[name].pump.head.read(leases).messages]


BODIES = [b"message-%02d" % number for number in range(6)]


@pytest.mark.parametrize("arguments", [{}, {"max_priority": 3}])
async def test_messages_behind_lost_ones_expire_and_are_dead_lettered(rig, arguments):
    """A queue that retries by its time to live stood still for good."""
    head = await queue(rig, message_ttl=1_000, **arguments)
    await publish(rig, *BODIES)
    damage(rig.log, BODIES[0], BODIES[1], BODIES[4])
    rig.now_ms = now_ms() + LATER_MS
    assert await head.trim(OWNER) is None
    assert await head.count() == 0
    assert await there(rig, "dead") == [BODIES[2], BODIES[3], BODIES[5]]
    assert rig.store.messages_lost == 3


async def test_the_first_sound_message_says_when_to_look_again(rig):
    head = await queue(rig, message_ttl=60_000)
    began_ms = rig.now_ms = now_ms()
    await publish(rig, *BODIES[:3])
    damage(rig.log, *BODIES[:2])
    due_ms = await head.trim(OWNER)
    assert due_ms is not None
    assert began_ms + 60_000 <= due_ms <= now_ms() + 60_000
    assert await head.count() == 1
    assert await there(rig, "q") == [BODIES[2]]
    assert rig.store.messages_lost == 2


async def test_a_queue_of_lost_messages_alone_is_empty(rig):
    head = await queue(rig, message_ttl=1_000)
    await publish(rig, *BODIES)
    damage(rig.log, *BODIES)
    assert await head.trim(OWNER) is None
    assert (await head.count(), rig.store.messages_lost) == (0, 6)


@pytest.mark.parametrize("limit", [{"max_length": 3}, {"max_length_bytes": 3 * len(BODIES[0])}])
@pytest.mark.parametrize("lost", [(0, 1, 2, 3), (1, 2), (0, 2, 4), (5,), ()])
async def test_a_queue_is_shortened_by_what_is_too_much_of_the_sound_ones(rig, limit, lost):
    head = await queue(rig, **limit)
    await publish(rig, *BODIES)
    damage(rig.log, *[BODIES[n] for n in lost])
    await head.trim(OWNER)
    await head.trim(OWNER)
    kept, dead = await there(rig, "q"), await there(rig, "dead")
    assert dead + kept == [body for n, body in enumerate(BODIES) if n not in lost]
    assert len(kept) <= 3
    if lost == (0, 1, 2, 3):  # those that wait are no more than the limit: none of them has to go
        assert dead == []


async def test_no_sound_message_goes_where_lost_ones_were_too_much(rig, monkeypatch):
    """The excess was counted before the store had skipped them; a negative one took sound messages."""
    head = await queue(rig, max_length=3)
    await publish(rig, *BODIES)
    damage(rig.log, *BODIES[:4])

    async def nothing(_number):  # the head was damaged a moment after the look for what has expired
        return None

    with monkeypatch.context() as patched:
        patched.setattr(rig.store.leases, "first_waiting", nothing)
        await head.trim(OWNER)
    assert (await there(rig, "q"), await there(rig, "dead")) == (BODIES[4:], [])


# ---- met by the gateway, and not by a lease


def said(logged):
    """Returns the queue, the first offset and the next one of each range that was logged."""
    return [(one["queue"], one["first"], one["next"]) for one in logged if "are lost and" in one["event"]]


@pytest.mark.parametrize("arguments", [{}, {"max_priority": 3}])
async def test_rejecting_lost_messages_counts_and_names_them(rig, arguments):
    await queue(rig, **arguments)
    await publish(rig, *BODIES)
    conn = rig.conn()
    await rig.consume(conn, "q")
    await conn.has(6)
    damage(rig.log, BODIES[1], BODIES[2], BODIES[4])
    with capture_logs() as logged:
        await rig.settle(conn, "q", "reject", *[offset for _, offset, _ in conn.taken])
    assert await there(rig, "dead") == [BODIES[0], BODIES[3], BODIES[5]]
    assert rig.queues.keeper.lost.count == 3
    assert said(logged) == [("q", 1, 2), ("q", 2, 3), ("q", 4, 5)]
    number = rig.queues.registry.queues["q"].number
    assert await rig.store.leases.unsettled(number) == 0


async def test_a_stream_counts_and_names_lost_messages_once_for_all_consumers(rig):
    await rig.declare(rig.conn(), "s", durable=True, arguments={"x-queue-type": "stream"})
    for body in BODIES:
        await rig.publish("", "s", body)
    damage(rig.log, BODIES[1], BODIES[2], BODIES[4])
    with capture_logs() as logged:
        for _ in range(2):
            conn = rig.conn()
            await rig.consume(conn, "s", credit=10, limited=True, stream=StreamRead(place="first"))
            assert await conn.has(3) == [BODIES[0], BODIES[3], BODIES[5]]
    assert rig.queues.keeper.lost.count == 3
    assert said(logged) == [("s", 1, 2), ("s", 2, 3), ("s", 4, 5)]
