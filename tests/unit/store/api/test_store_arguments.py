"""Frames that the store cannot hold, or that say what is not so, are refused in the store's own terms."""

import msgspec
import pytest

from store.api.log import IndexKind
from store.base.errors import BadArgument, OffsetOutOfRange
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig
from store.local.local import LocalStore
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        await append(store, frame((16, b"a"), (16, b"b")))
        yield store


CALLS = {
    "a back-off that is too long": lambda store: store.leases.set_policy(16, LeasePolicy(backoff_ms=10**12)),
    "a policy of the store's own queue": lambda store: store.leases.set_policy(3, LeasePolicy()),
    "a limit below none": lambda store: store.queues.configure([QueueConfig(16, -5)]),
    "a queue without 32 bits": lambda store: store.groups.commit("g", {1 << 33: 7}),
    "deleting a queue that cannot be": lambda store: store.queues.delete(1 << 33),
    "deleting the store's own queue": lambda store: store.queues.delete(1),
    "leasing from the store's own queue": lambda store: store.leases.take(1, 1, max_count=1),
    "a limit of keys below none": lambda store: store.keys.limit("n", keys_max=-1),
    "fetching from no queue": lambda store: store.queues.fetch(-1, 0, max_bytes=1),
    "fetching beyond all queues": lambda store: store.queues.fetch(1 << 32, 0, max_bytes=1),
    "bounds of no queue": lambda store: store.queues.bounds(1 << 40),
    "a hash without 64 bits": lambda store: store.log.find(IndexKind.KEY, 1 << 64),
    "the last of such a hash": lambda store: store.log.last(-1),
}


@pytest.mark.parametrize("name", CALLS)
async def test_it_is_refused(store, name):
    end = store.replication.end
    with pytest.raises(BadArgument):
        await CALLS[name](store)
    assert store.replication.end == end
    assert await bodies(store, 16) == [b"a", b"b"]


@pytest.mark.parametrize("offset", [-1, 1 << 63, 1 << 64])
async def test_an_offset_that_cannot_be_is_out_of_range(store, offset):
    with pytest.raises(OffsetOutOfRange) as refused:
        await store.queues.fetch(16, offset, max_bytes=1)
    assert (refused.value.first, refused.value.next) == (0, 2)


async def test_a_frame_with_another_number_of_rows_stops_nobody(store):
    wrong = msgspec.structs.replace(frame((16, b"c")), row_count=2)
    with pytest.raises(BadArgument, match="are not 2 rows"):
        await append(store, wrong)
    await append(store, frame((16, b"d")))
    assert await bodies(store, 16) == [b"a", b"b", b"d"]


async def test_what_is_not_asked_for_is_not_found(store):
    assert await store.log.find(IndexKind.KEY, 1, limit=-1) == []
