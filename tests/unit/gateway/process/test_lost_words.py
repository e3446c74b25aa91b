"""The words of a gateway with a log of its own for messages that damage has taken."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.ops.status import LogStatus, ScrubStatus
from gateway.process.app import Gateway
from gateway.process.store_figures import StoreFigures
from store.api.lost import LostMessages, LostOffsets
from store.api.lost_status import LostList, LostStatus
from store.api.lost_words import LOST_SHOWN
from store.base.admin import ReadyState
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class DamagedStore:
    """The part of a store that counts here; `fails` says how often a look fails."""

    def __init__(self, found, *, more=0, fails=0):
        self.damages, self.view_damages = [SimpleNamespace(start=100, end=150)], []
        self.fails = fails
        self._found, self._known = LostMessages(ranges=tuple(found), more=more), None

    def lost_known(self):
        return self._known

    async def lost(self):
        if self.fails:
            self.fails -= 1
            raise OSError("no views")
        self._known = self._found
        return self._found


def figures(store):
    return StoreFigures(store, lambda: [SimpleNamespace(name="plant", queues=(16, 17))])


async def said(one):
    """Returns the warning once it is complete."""
    await until(lambda: "/status lists" not in one.warnings()[0])
    return one.warnings()[0]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([LostOffsets(17, 7, 9)], "plant, queue 17, offsets 7 to 8"),
        (
            [LostOffsets(16, 0, 1), LostOffsets(99, 3, 4)],
            "plant, queue 16, offsets 0 to 0; no topic, queue 99, offsets 3 to 3",
        ),
        ([], "no message of a queue is in them"),
    ],
)
async def test_topics_and_offsets_are_said_without_a_look_at_the_status(found, words):
    """`/readyz` said how many bytes were lost, and not which messages."""
    one = figures(DamagedStore(found))
    assert one.warnings() == ["the log is damaged: 50 bytes in 1 ranges are lost; /status lists topics and offsets"]
    assert await said(one) == f"the log is damaged: 50 bytes in 1 ranges are lost; {words}"


async def test_very_many_are_left_to_the_status():
    found = [LostOffsets(17, n, n + 1) for n in range(0, 2 * LOST_SHOWN + 6, 2)]
    assert (await said(figures(DamagedStore(found)))).endswith(
        f"queue 17, offsets {2 * LOST_SHOWN - 2} to {2 * LOST_SHOWN - 2}; 3 more in /status"
    )


async def test_those_that_no_list_has_are_counted():
    found = [LostOffsets(17, n, n + 1) for n in range(0, 2 * LOST_SHOWN + 6, 2)]
    one = figures(DamagedStore(found, more=7))
    assert (await said(one)).endswith("; 10 more, 3 of them in /status")
    listed = await one.lost()
    assert (len(listed.ranges), listed.more) == (LOST_SHOWN + 3, 7)
    assert {lost.topic for lost in listed.ranges} == {"plant"}


async def test_they_are_looked_up_again_where_that_failed():
    store = DamagedStore([LostOffsets(17, 7, 9)], fails=1)
    assert (await said(figures(store))).endswith("offsets 7 to 8")
    assert store.fails == 0


async def test_they_are_looked_up_again_as_they_may_change():
    store = DamagedStore([LostOffsets(17, 7, 9)])
    one = figures(store)
    await said(one)
    store._found = LostMessages()
    one.warnings()
    await until(lambda: one.warnings()[0].endswith("no message of a queue is in them"))


@pytest.mark.parametrize(("worker", "listed"), [(None, 1), (Path("pages"), 0)])
async def test_a_worker_leaves_them_to_the_process_beside_it(worker, listed):
    """Each one looked them up once a second, and nobody read that."""
    asked = []

    async def lost():
        asked.append(None)
        return LostList([LostStatus(topic="plant", queue=17, first=7, next=9)])

    backend = SimpleNamespace(lost=lost, groups=tuple, damages=tuple, damaged_views=tuple, where="", scrub=ScrubStatus)
    backend.log = lambda: LogStatus(end=0, confirmed=0)
    gateway = SimpleNamespace(backend=backend, store=None, listening=(), _worker=worker, _bridges=None, _started=0.0)
    gateway.ready = lambda: ReadyState(ready=True)
    gateway.hub = SimpleNamespace(connections={}, owners=SimpleNamespace(id="proxy"))
    gateway.controller = SimpleNamespace(topics=tuple)
    gateway.metrics = SimpleNamespace(stored_by_protocol=dict)
    status = await Gateway.status(gateway)
    assert (len(status.lost), len(asked)) == (listed, listed)
