"""A queue with priorities, whatever is done to it and however often its process begins again, against a sorted list."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.port.queues import DeclareQueue, GetMessage, PurgeQueue
from store.local.local import LocalStore
from tests.support.gateway.queues_rig import QueuesRig
from tests.support.process.examples import examples

HIGHEST = 3
STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, HIGHEST + 2)),
    st.tuples(st.just("publish"), st.integers(0, HIGHEST + 2)),
    st.tuples(st.just("get")),
    st.tuples(st.just("get")),
    st.tuples(st.sampled_from(["ack", "requeue"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["lose", "restart", "purge"])),
)


class PrioritiesModel:
    """A queue: its waiting messages and those that are held, both by (less priority, number)."""

    def __init__(self, rig: QueuesRig) -> None:
        self.rig = rig
        self.conn = rig.conn()
        self.waiting: list[tuple[int, int]] = []
        self.held: dict[int, tuple[int, int]] = {}  # by offset
        self.published = 0

    async def publish(self, priority: int) -> None:
        self.published += 1
        await self.rig.publish("", "q", b"%d" % self.published, native={"amqp": {"priority": priority}})
        self.waiting.append((-min(priority, HIGHEST), self.published))

    async def get(self) -> None:
        got = await self.rig.request(self.conn, GetMessage(queue="q"))
        if got is None:
            assert not self.waiting
            return
        first = min(self.waiting)
        assert int(got.leased.messages[0].body) == first[1], self.waiting
        self.waiting.remove(first)
        self.held[got.leased.offsets[0]] = first
        assert got.remaining == len(self.waiting)

    async def settle(self, how: str, which: int) -> None:
        if self.held:
            offset = sorted(self.held)[which % len(self.held)]
            one = self.held.pop(offset)
            self.waiting += [one] if how == "requeue" else []
            await self.rig.settle(self.conn, "q", how, offset)

    async def lose(self) -> None:
        self.waiting += self.held.values()
        self.held.clear()
        await self.rig.lose(self.conn)
        self.conn = self.rig.conn()

    async def restart(self) -> None:
        await self.lose()
        await self.rig.restart()

    async def purge(self) -> None:
        assert await self.rig.request(self.conn, PurgeQueue(name="q")) == len(self.waiting)
        self.waiting.clear()

    async def ends(self) -> None:
        """Checks that all that waits is delivered, and nothing else."""
        info = await self.rig.request(self.conn, DeclareQueue(name="q", passive=True))
        assert info.messages == len(self.waiting)
        while self.waiting:
            await self.get()
        await self.get()


async def live(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        store = await LocalStore.open(Path(home) / "store")
        controller = LocalController.open(Path(home) / "controller", now_ms=lambda: 0)
        await controller.do(CreateTopic(name="$amqp", queues=1))
        rig = QueuesRig(store, controller)
        try:
            await rig.queues.load()
            await rig.declare(rig.conn(), "q", durable=True, arguments={"x-max-priority": HIGHEST})
            model = PrioritiesModel(rig)
            for step, *arguments in steps:
                if step in ("ack", "requeue"):
                    await model.settle(step, *arguments)
                else:
                    await getattr(model, step)(*arguments)
            await model.ends()
        finally:
            await rig.queues.close()
            await controller.close()
            await store.close()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEP, max_size=30))
def test_what_comes_is_what_is_most_urgent_and_oldest(steps):
    asyncio.run(live(steps))
