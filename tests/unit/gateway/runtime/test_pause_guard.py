"""A process that was stopped: what its connections have read waits until it has renewed its presence."""

import asyncio

import pytest

from gateway.base import pause_guard
from gateway.base.pause_guard import SLEPT_S, PauseGuard
from gateway.runtime.endpoint import ListenerContext
from tests.support.gateway.connection_rig import ConnectionHub, ConnectionTransport, Shown
from tests.support.gateway.connection_rig import Factory as ConnectionFactory

pytestmark = pytest.mark.anyio


class PauseGuardRig:
    def __init__(self):
        self.now_s = 100.0
        self.asked = asyncio.Event()
        self.heard = asyncio.Event()
        self.woken = []
        self.pauses = PauseGuard(self._confirm, clock=lambda: self.now_s)
        self.task = asyncio.ensure_future(self.pauses.run())

    async def _confirm(self):
        self.asked.set()
        await self.heard.wait()

    def wake(self, data):
        self.woken.append(data)


@pytest.fixture
async def rig(monkeypatch):
    monkeypatch.setattr(pause_guard, "LOOK_S", 0.001)
    rig = PauseGuardRig()
    await asyncio.sleep(0)
    yield rig
    rig.task.cancel()
    await asyncio.wait([rig.task])


async def test_who_is_awake_holds_nothing(rig):
    rig.now_s += SLEPT_S
    assert not rig.pauses.slept
    assert not rig.pauses.holds(rig, b"a")


async def test_a_process_alone_holds_nothing():
    guard = PauseGuard(asyncio.Event().wait, clock=iter([0.0, 1e9]).__next__)
    assert not guard.slept


async def test_input_waits_from_the_pause_until_the_others_have_heard(rig):
    rig.now_s += SLEPT_S + 1
    assert rig.pauses.holds(rig, b"a")  # before anybody has looked at the clock
    await rig.asked.wait()
    assert rig.pauses.holds(rig, b"b")
    assert rig.woken == []
    rig.heard.set()
    while not rig.woken:
        await asyncio.sleep(0)
    assert rig.woken == [b"ab"]
    assert not rig.pauses.slept
    assert not rig.pauses.holds(rig, b"c")


async def test_what_is_held_is_bounded_and_given_back(rig, monkeypatch):
    monkeypatch.setattr(pause_guard, "HELD_BYTES_MAX", 3)
    rig.now_s += SLEPT_S + 1
    assert rig.pauses.holds(rig, b"abc")
    assert not rig.pauses.holds(PauseGuardRig, b"d")
    assert rig.pauses.give_back(rig) == b"abc"
    assert rig.pauses.give_back(rig) == b""
    assert rig.pauses.holds(rig, b"e")


@pytest.fixture
def connection(rig):
    hub = ConnectionHub()
    hub.pauses = rig.pauses
    connection = Shown(hub, ListenerContext("test", "test", ConnectionFactory(), None))
    connection.shown = ConnectionTransport()
    connection.connection_made(connection.shown)
    connection.has_session = True
    return connection


async def test_a_connection_reads_no_more_until_the_process_was_heard_of(rig, connection):
    rig.now_s += SLEPT_S + 1
    connection.data_received(b"late")
    assert connection.hub.published == []
    assert not connection.shown.reading
    rig.heard.set()
    while not connection.hub.published:
        await asyncio.sleep(0)
    [(effect, _)] = connection.hub.published
    assert effect.messages[0].body == b"late"
    assert connection.shown.reading


async def test_what_a_connection_has_said_last_is_heard_when_it_ends(rig, connection):
    rig.now_s += SLEPT_S + 1
    connection.data_received(b"good-bye")
    connection.connection_lost(None)
    assert [effect.messages[0].body for effect, _ in connection.hub.published] == [b"good-bye", b"will"]


async def test_connections_without_a_session_go_on(rig, connection):
    connection.has_session = False
    rig.now_s += SLEPT_S + 1
    connection.data_received(b"now")
    assert connection.hub.published
