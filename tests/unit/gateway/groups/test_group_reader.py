"""Reading several queues at once: shares, damage, ends that moved, groups out of reach, and waiting."""

import asyncio
import random

import pytest

from gateway.groups import reader as group_reader
from gateway.groups.reader import QueueReader, ReadLimits
from store.api.message import Message
from store.base.errors import CorruptFrame, StoreUnreachable
from tests.support.process.waiting import until
from tests.support.store.fake_store import FakeStore

pytestmark = pytest.mark.anyio

WANTED = ReadLimits(limit=100, max_bytes=1 << 20, now_ms=0)


class Troubled(FakeStore):
    """A store whose queues fail as a test says: (queue, offset) -> error."""

    def __init__(self):
        super().__init__()
        self.errors = {}
        self.fetches = 0
        self.arrived = asyncio.Event()

    async def fetch(self, queue, offset, *, max_wait_ms=0, **options):
        self.fetches += 1
        error = self.errors.get((queue, offset)) or self.errors.get(queue)
        if error is not None:
            raise error
        found = await super().fetch(queue, offset, **options)
        if found.next == offset and max_wait_ms:
            await self.arrived.wait()
            found = await super().fetch(queue, offset, **options)
        return found


@pytest.fixture
def store():
    store = Troubled()
    for queue in (1, 2, 3):
        for n in range(10):
            store.log.append([(queue, Message(address=f"t/{n % 2}", body=b"%d" % n))])
    return store


@pytest.fixture
def reader(store):
    return QueueReader(store, random=random.Random(1))


def offsets(found, queue):
    return [at for number, at, _ in found.messages if number == queue]


async def test_every_queue_has_its_share(reader):
    found = await reader.read({1: 0, 2: 5, 3: 10}, WANTED._replace(limit=8))
    assert len(found.messages) == 8
    assert offsets(found, 1) == list(range(len(offsets(found, 1))))
    assert len(offsets(found, 1)) >= 3
    assert len(offsets(found, 2)) >= 3
    assert found.positions == {1: len(offsets(found, 1)), 2: 5 + len(offsets(found, 2)), 3: 10}


async def test_what_may_not_be_read_is_passed_over(reader):
    found = await reader.read({1: 0}, WANTED._replace(reads=lambda address: address == "t/1"))
    assert offsets(found, 1) == [1, 3, 5, 7, 9]
    assert found.positions == {1: 10}


async def test_damage_is_not_passed_over(store, reader):
    """A member is told what is lost, and commits behind it when it has taken note."""
    store.errors[1, 0] = CorruptFrame(0, "why", next_=4)
    found = await reader.read({1: 0, 2: 0}, WANTED)
    assert (offsets(found, 1), len(offsets(found, 2))) == ([], 10)
    assert found.failed == {1: store.errors[1, 0]}
    assert found.positions == {1: 0, 2: 10}
    found = await reader.read({1: 4}, WANTED)
    assert offsets(found, 1) == [4, 5, 6, 7, 8, 9]


async def test_what_retention_has_taken_and_ends_that_moved(store, reader):
    store.first[1] = 7
    found = await reader.read({1: 2, 2: 15}, WANTED)
    assert offsets(found, 1) == [7, 8, 9]
    assert found.beyond == {2: 10}
    assert found.positions == {1: 10, 2: 15}
    assert found.failed == {}


async def test_a_group_out_of_reach_does_not_keep_others_back(store, reader):
    store.errors[2] = StoreUnreachable("away")
    found = await reader.read({1: 0, 2: 0}, WANTED)
    assert len(offsets(found, 1)) == 10
    assert list(found.failed) == [2]


async def test_records_that_are_no_messages_are_passed_over(store, reader, monkeypatch):
    real = group_reader.decode
    monkeypatch.setattr(group_reader, "decode", lambda record: real(record if b"5" not in record else b"\xc1"))
    found = await reader.read({1: 0}, WANTED)
    assert offsets(found, 1) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert found.positions == {1: 10}


async def test_waiting_ends_with_the_first_message(store, reader):
    waiting = asyncio.ensure_future(reader.wait({1: 10, 2: 10}, asyncio.Event(), 60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    store.log.append([(2, Message(address="t/1"))])
    store.arrived.set()
    async with asyncio.timeout(60):
        await waiting


async def test_waiting_ends_when_it_is_woken(reader):
    woken = asyncio.Event()
    waiting = asyncio.ensure_future(reader.wait({1: 10}, woken, 60))
    await asyncio.sleep(0.01)
    woken.set()
    async with asyncio.timeout(60):
        await waiting
        await reader.wait({}, woken, 60)


async def test_what_cannot_be_waited_for_is_not_asked_again_at_once(store, reader):
    store.errors[1] = StoreUnreachable("away")
    for _ in range(3):
        await reader.wait({1: 10}, asyncio.Event(), 0.02)
    assert store.fetches <= 6


async def test_so_many_waits_and_no_more(store, reader, monkeypatch):
    monkeypatch.setattr(group_reader, "WAITS_COUNT_MAX", 3)
    monkeypatch.setattr(group_reader, "WAITED_QUEUES_COUNT_MAX", 2)
    monkeypatch.setattr(group_reader, "LOOK_S", 0.02)
    woken = asyncio.Event()
    waiting = [asyncio.ensure_future(reader.wait({1: 10, 2: 10}, woken, 60)) for _ in range(2)]
    await until(lambda: store.fetches == 3)
    async with asyncio.timeout(60):
        await reader.wait({1: 10}, asyncio.Event(), 60)
    assert store.fetches == 3, "this one only looks again after a while"
    woken.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
