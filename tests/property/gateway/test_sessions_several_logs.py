"""Durable sessions over logs that join and go out of reach, and gateways that crash: nothing is missed.

A client acknowledges in any order what it was handed; its gateway is killed, or stops in order, at any moment. Whatever
was written after the session began is acknowledged in the end, and what comes a second time is no older than what the
session had not settled when its cursor was committed last.
"""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.delivery.fanout import Fanout
from gateway.delivery.lanes import Subscriber
from gateway.domain.cursor import by_log, cursor_of
from gateway.port.adapter import SubscriptionId
from gateway.port.sessions import OpenSession, SaveSession
from gateway.sessions.sessions import Sessions
from gateway.sessions.wills import Wills
from store.api.message import Message
from store.format.frame import group_of
from tests.support.gateway.memory_log import MemoryLog
from tests.support.process.examples import examples


class SessionsLog(MemoryLog):
    """One group's log. Home keeps the sessions, too, and a log out of reach leaves a gap in its tail."""

    def __init__(self, group):
        super().__init__(group)
        self.values, self.cursors = {}, {}

    def write(self, bodies):
        super().write(*(Message("t", body) for body in bodies))
        self.unheard.clear()

    async def delete_group(self, group):
        self.cursors.pop(group, None)


class CursorKeys:
    group = 0

    def __init__(self):
        self.logs = {0: SessionsLog(0)}
        self.keys = self.groups = self

    async def get(self, key):
        value = self.logs[0].values.get(key)
        return None if value is None else SimpleNamespace(key=key, value=value, revision=1)

    async def put(self, key, value):
        self.logs[0].values[key] = value

    async def delete(self, key):
        self.logs[0].values.pop(key, None)

    async def commit(self, group, offsets):
        self.logs[0].cursors.setdefault(group, {}).update(offsets)

    async def offsets(self, group):
        return dict(self.logs[0].cursors.get(group, {}))


class SlowHolder:
    """Takes what there is room for, and acknowledges when it likes."""

    protocol = "mqtt"
    gone = False

    def __init__(self, room):
        self.subscriber = Subscriber(self)
        self.room = room
        self.held = []  # positions and bodies handed over and not acknowledged
        self.handed = []

    def deliver(self, deliveries):
        taken = min(len(deliveries.picks), self.room - len(self.held))
        for index in deliveries.picks[:taken]:
            self.held.append((deliveries.batch.position(index), deliveries.batch.messages[index].body))
        self.handed += self.held[len(self.held) - taken :] if taken else []
        return taken

    def oldest(self):
        first = {}
        for position, _ in self.held:
            first.setdefault(group_of(position.frame), position)
        return cursor_of(first)

    def supersede(self):
        pass


class SessionsProcess:
    """One process. When it is killed, its tasks and what it knew are gone."""

    def __init__(self, store):
        self.store = store
        self.tasks = []
        self.fanout = Fanout(store, queues_of=lambda _: None, group_of=lambda _: 0, spawn=self.spawn)
        wills = Wills(store, lambda *_: None, now_ms=lambda: 0)
        self.sessions = Sessions(store, self.fanout, wills, now_ms=lambda: 0)

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))

    async def connect(self, room):
        client = self.client = SlowHolder(room)
        opened = await self.sessions.open(client, OpenSession(session_id="c", clean=False, expiry_s=None))
        start = opened.cursor if opened.present else None
        self.fanout.subscribe(client.subscriber, SubscriptionId(1), "t", start)
        await self.sessions.save(client, SaveSession(expiry_s=None))
        return start

    def acknowledge(self, picks):
        client = self.client
        done = [client.held.pop(pick % len(client.held))[1] for pick in picks if client.held]
        self.report()
        return done

    def report(self):
        """Reports the cursor, as adapters do within the interval of commits and when a connection ends."""
        self.sessions.settled(self.client, self.client.oldest())
        self.fanout.wake(self.client.subscriber)

    async def commit(self):
        self.report()
        await self.sessions.commit()

    async def kill(self):
        for log in self.store.logs.values():
            log.listeners.clear()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def stop(self):
        self.report()
        await self.sessions.close(self.client)
        self.fanout.leave(self.client.subscriber)
        await self.kill()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("acknowledge"), st.lists(st.integers(0, 9), max_size=4), st.none()),
        st.tuples(st.just("commit"), st.none(), st.none()),
        st.tuples(st.just("turn"), st.integers(0, 4), st.none()),
        st.tuples(st.just("down"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("join"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("kill"), st.integers(1, 9), st.none()),
        st.tuples(st.just("stop"), st.integers(1, 9), st.none()),
    ),
    max_size=50,
)


class SessionHistory:
    """A record of what was written and acknowledged, and what the session may see again."""

    def __init__(self):
        self.store = CursorKeys()
        self.written, self.acknowledged = {group: [] for group in range(3)}, set()

    async def run(self, steps):
        self.gateway = SessionsProcess(self.store)
        await self.gateway.connect(5)
        for what, value, more in steps:
            await self.step(what, value, more)
        for log in self.store.logs.values():
            log.down = log.unknown = False
        for _ in range(300):
            self.acknowledged.update(self.gateway.acknowledge([0] * 9))
            for log in self.store.logs.values():
                log.write([])  # the next frame shows those that the tail has left out
            await asyncio.sleep(0)
        for group in self.store.logs:
            assert set(self.written[group]) <= self.acknowledged

    async def step(self, what, value, more):
        logs = self.store.logs
        match what:
            case "write" if value in logs:
                bodies = [b"%d.%d" % (value, len(self.written[value]) + n) for n in range(more)]
                self.written[value] += bodies
                logs[value].write(bodies)
            case "acknowledge":
                self.acknowledged.update(self.gateway.acknowledge(value))
            case "commit":
                await self.gateway.commit()
            case "turn":
                for _ in range(value):
                    await asyncio.sleep(0)
            case "down" if value in logs:
                logs[value].down = more
            case "join" if value not in logs:
                logs[value] = SessionsLog(value)
                logs[value].unknown = logs[value].down = more
                self.gateway.fanout.changed()
            case "kill":
                await self.gateway.kill()
                await self.again(value)
            case "stop":
                before = self.gateway.client
                settled = by_log(self.gateway.fanout.reached(before.subscriber)) | by_log(before.oldest())
                await self.gateway.stop()
                start = by_log(await self.again(value))
                assert all(start[group] == at for group, at in settled.items())  # no message comes again

    async def again(self, room):
        for log in self.store.logs.values():
            log.unknown = log.down  # a process that begins has reached nothing that is down
        self.gateway = SessionsProcess(self.store)
        return await self.gateway.connect(room)


@pytest.fixture(autouse=True, scope="module")
def soon():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gateway.delivery.catch_up", "gateway.delivery.fanout"):
            patch.setattr(f"{name}.RETRY_MIN_S", 0)
            patch.setattr(f"{name}.RETRY_MAX_S", 0)
        yield


@settings(deadline=None, max_examples=examples(60))
@given(steps=STEPS)
def test_nothing_is_missed(steps):
    asyncio.run(SessionHistory().run(steps))
