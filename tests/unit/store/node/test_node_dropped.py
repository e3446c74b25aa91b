"""A client that does not know yet that a queue was dropped cannot write to it: nobody would read the message."""

import pytest

from controller.api.commands import CloseQueue, CreateTopic, DropQueue
from store.base.errors import QueueDropped
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, PATIENCE_S, StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("rows", [1, 20])
async def test_a_client_with_an_old_picture_of_a_topic_is_refused(tmp_path, rows):
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers, count=2) as group,
    ):
        await group.in_sync()
        topic = await group.client.do(CreateTopic(name="t", queues=2))
        kept, gone = topic.queues
        store = group.store()
        await append(store, frame(*[(gone, b"before")] * rows))
        await group.client.do(CloseQueue(number=gone))
        await append(store, frame((gone, b"closed"), (kept, b"a")))  # closing waits until all proxies know
        await group.client.do(DropQueue(number=gone))
        master = group.nodes[await group.master()]
        await until(lambda: gone in master.service.dropped, PATIENCE_S)
        with pytest.raises(QueueDropped, match=str(gone)):
            await append(store, frame(*[(kept, b"x"), (gone, b"late")] * rows))
        await append(store, frame(*[(kept, b"b")] * rows))
        epoch = group.group.master_epoch
        await master.switch_over()
        await group.master(after=epoch)
        with pytest.raises(QueueDropped):
            await append(store, frame((gone, b"late")))
        assert await bodies(store, kept) == [b"a"] + [b"b"] * rows
        assert await bodies(store, gone) == [b"before"] * rows + [b"closed"]


async def test_what_was_dropped_is_known_at_a_restart(tmp_path):
    async with (
        Controllers(tmp_path / "controllers", count=1) as controllers,
        StoreGroup(tmp_path, controllers, count=1) as group,
    ):
        kept, gone = (await group.client.do(CreateTopic(name="t", queues=2))).queues
        await group.client.do(CloseQueue(number=gone))
        await group.client.do(DropQueue(number=gone))
        await group.client.do(DropQueue(number=gone))  # again
        name = await group.master()
        await group.kill(name)
        await controllers.stop(1)
        await controllers.start(1)
        await group.start(name)
        assert group.nodes[name].service.dropped == {gone}
        assert group.client.dropped(GROUP) == {gone}
        assert group.client.dropped(GROUP + 1) == frozenset()
        assert kept not in group.client.dropped(GROUP)
