"""Places for connections: a limit, and no address that takes another's."""

import asyncio
import random
import resource
import socket

import pytest

from store.base.listening.places import ConnectionSlots, below_files, of_files, origin_of
from tests.support.process.cancelled_task import CancelledTask


def test_beyond_the_limit_the_oldest_of_whoever_has_most_makes_way():
    places, mine, theirs = ConnectionSlots(), CancelledTask(), [CancelledTask() for _ in range(10)]
    places.take(mine, b"me", 4)
    for task in theirs:
        places.take(task, b"them", 4)
    assert len(places) == 4
    assert not mine.cancelled
    assert [task.cancelled for task in theirs] == [True] * 7 + [False] * 3


def test_a_place_is_given_back_once():
    places, tasks = ConnectionSlots(), [CancelledTask() for _ in range(3)]
    for task in tasks:
        places.take(task, b"", 3)
    for _ in range(2):
        places.leave(tasks[0])
    assert len(places) == 2
    places.take(CancelledTask(), b"", 3)
    assert not any(task.cancelled for task in tasks)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_kept_of_what_has_left(seed):
    chance, places, here = random.Random(seed), ConnectionSlots(), []
    for _ in range(500):
        if here and chance.random() < 0.5:
            places.leave(here.pop(chance.randrange(len(here))))
        else:
            task = CancelledTask()
            places.take(task, b"%d" % chance.randrange(5), 8)
            here.append(task)
        here = [task for task in here if not task.cancelled]
        assert len(here) == len(places) <= 8
    for task in here:
        places.leave(task)
    assert (places._held, places._origins) == ({}, {})


@pytest.mark.parametrize(
    ("family", "one", "other", "same"),
    [
        (socket.AF_INET, "10.0.0.1", "10.0.0.2", False),
        (socket.AF_INET6, "2001:db8::1", "2001:db8::ffff:2", True),
        (socket.AF_INET6, "2001:db8::1", "2001:db8:0:1::1", False),
        (socket.AF_INET6, "::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        (socket.AF_INET6, "fe80::1%lo", "fe80::2%lo", True),
    ],
)
def test_whose_a_connection_is(family, one, other, same):
    assert (origin_of(family, (one, 1)) == origin_of(family, (other, 2))) is same


def test_an_ipv4_address_is_the_same_by_either_family():
    assert origin_of(socket.AF_INET, ("10.0.0.1", 1)) == origin_of(socket.AF_INET6, ("::ffff:10.0.0.1", 1))
    assert origin_of(socket.AF_UNIX, "") == b""


def test_places_fit_the_files_that_may_be_open(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert (of_files(4096, 4), of_files(100, 4)) == (256, 100)
    assert (below_files(50_000, 1_024), below_files(50_000, 100), below_files(100, 100)) == (512, 924, 100)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert (of_files(4096, 4), below_files(4096, 4)) == (4096, 4096)


def test_a_task_is_given_up():
    async def wait():
        places = ConnectionSlots()
        tasks = [asyncio.ensure_future(asyncio.Event().wait()) for _ in range(3)]
        for task in tasks:
            places.take(task, b"", 1)
        assert await asyncio.gather(*tasks[:2], return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        tasks[2].cancel()

    asyncio.run(wait())
