"""A controller judges its directory while others answer now and then, and its disk fails now and then."""

import asyncio
from types import SimpleNamespace

import pytest

from controller.api.client import ControllerUnreachable, MetadataForgotten
from controller.incarnations import memory_check, operator_texts
from controller.incarnations.memory_check import MemoryCheck
from controller.raft import Membership, RaftMember, StorageFull
from controller.wire.wire import Identification

pytestmark = pytest.mark.anyio

MEMBERS = Membership.of(*(RaftMember(id=n, address=f"n{n}:1", incarnation=f"i{n}") for n in (1, 2, 3)))


class MemoryDriver:
    """Controller 2's driver, as far as its memory goes."""

    def __init__(self, leader=None):
        self.status = SimpleNamespace(
            id=2,
            incarnation="i2",
            fresh=False,
            votes=True,
            leader=leader,
            membership=MEMBERS,
            term=9,
            last_term=9,
            last_index=50,
            commit=50,
        )
        self.proven = None
        self.full = False
        self.legacy = False
        self.committed = 50

    def prove(self, *, proven, term=0, floor=(0, 0)):
        self.proven = proven

    async def renew(self, incarnation):
        if self.full:
            raise StorageFull("no space left on the device")
        self.status.incarnation, self.proven = incarnation, True

    def last_report(self, _id):
        return None


class Addresses:
    def address_of(self, id_):
        return f"n{id_}:1"


@pytest.fixture
def answers(monkeypatch):
    """Returns what the others answer, a round each; an exception fails the round."""
    rounds = []

    async def ask_all(*_args, **_more):
        found = rounds.pop(0) if len(rounds) > 1 else rounds[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def pause(_s):
        await asyncio.sleep(0)

    monkeypatch.setattr(memory_check, "ask_all", ask_all)
    monkeypatch.setattr(memory_check, "pause", pause)
    return rounds


def check(driver, *, copied=False):
    home = SimpleNamespace(
        id=2,
        address="n2:1",
        node="n2",
        cluster="c",
        applied=50,
        leading=None,
        state=SimpleNamespace(generation=0, members={}),
        feed=SimpleNamespace(digest_at=lambda _index: b""),
    )
    return MemoryCheck(home, driver, Addresses(), {1: "n1:1", 2: "n2:1", 3: "n3:1"}, copied=copied, credentials=None)


def answer(id_, **more):
    said = {"incarnation": f"i{id_}", "cluster": "c", "fresh": False, "votes": True, "led": True, "term": 9}
    said |= {"last_term": 9, "last_index": 50, "named": "i2", "witness_term": 0, "witness_index": 0}
    return Identification(id=id_, **said | more)


SILENT = {1: ControllerUnreachable("1"), 3: ControllerUnreachable("3")}


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


async def running(memory):
    task = asyncio.create_task(memory.run())
    await turns()
    return task


async def test_a_recovery_once_heard_of_is_not_forgotten_while_nobody_answers(answers):
    """0.3 s of silence were enough: it voted again, beside the cluster that was recovered."""
    driver = MemoryDriver()
    memory = check(driver)
    answers += [{1: answer(1, generation=1, last_term=1 << 20), 3: SILENT[3]}, SILENT]
    task = await running(memory)
    assert driver.proven is False
    assert memory.reasons == (operator_texts.RECOVERED,)
    task.cancel()


async def test_one_that_has_to_become_another_does_when_its_disk_has_room_again(answers):
    driver = MemoryDriver(leader=1)
    driver.full = True
    memory = check(driver, copied=True)
    answers.append({1: answer(1), 3: answer(3)})
    task = await running(memory)
    assert (driver.proven, driver.status.incarnation) == (False, "i2")
    driver.full = False
    await turns()
    assert driver.proven
    assert driver.status.incarnation != "i2"
    task.cancel()


async def test_a_look_that_fails_is_not_the_last(answers, caplog):
    """An address that could not be encoded ended the task for ever, and without a word."""
    driver = MemoryDriver()
    memory = check(driver)
    answers += [ValueError("label empty or too long"), SILENT]
    task = await running(memory)
    assert driver.proven
    assert not task.done()
    assert "has failed" in caplog.text
    task.cancel()


def test_a_leader_that_has_yet_to_apply_what_is_committed_tells_nobody_that_it_is_forgotten():
    """Its followers apply a commit while its own disk syncs, and their clients know of it before it has applied it."""
    driver = MemoryDriver()
    memory = check(driver)
    memory._home.leading = 9
    driver.committed = 51
    memory.check_history(51, b"digest")
    with pytest.raises(MetadataForgotten):
        memory.check_history(52, b"digest")
