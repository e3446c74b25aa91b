"""Guards in a store: what they cover is stored or not, for readers, after a restart and when it is sent again."""

import pytest

from store.format.frame import FRAME_GUARDED, ROW, Position, UnplacedFrame
from store.format.records import KvPut, encode
from store.guards.rows import FENCES, fence_record, guard_row
from store.local.local import LocalStore
from tests.support.store.store_kit import append, begin, bodies

pytestmark = pytest.mark.anyio

QUEUE = 16
NAME = b"n" * 16


@pytest.fixture
async def opened(tmp_path):
    """Opens the store, again and again."""
    stores = []

    async def open_store():
        if stores:
            await stores.pop().close()
        stores.append(await LocalStore.open(tmp_path))
        return stores[-1]

    yield open_store
    await stores.pop().close()


def raised(epoch):
    record = fence_record(NAME, epoch)
    row = guard_row(0, len(record), NAME, covers=0, epoch=epoch)
    return UnplacedFrame.build(row, record, flags=FRAME_GUARDED)


def guarded(*parts, **options):
    """Returns a frame of (body, epoch): messages, each with a mark that an owner has written."""
    rows, payload = b"", b""
    for body, epoch in parts:
        rows += ROW.pack(QUEUE, len(payload), len(body), 0, 0, 0, 0, 0)
        payload += body
        mark = encode(KvPut(f"mark/{body.decode()}", body))
        rows += guard_row(len(payload), len(mark), NAME, covers=1, epoch=epoch)
        payload += mark
    return UnplacedFrame.build(rows, payload, flags=FRAME_GUARDED, **options)


async def test_a_late_owners_messages_and_marks_are_not_there_and_all_others_are(opened):
    store = await opened()
    await append(store, raised(9))
    placed = await append(store, guarded((b"a", 9), (b"late", 5), (b"b", 9)))
    assert placed.failed == (3,)
    assert await bodies(store, QUEUE) == [b"a", b"b"]
    assert await store.log.read(Position(placed.frame, 4)) == b"b"
    assert await store.log.read(Position(placed.frame, 2)) == b""
    assert [entry.key for entry in await store.keys.prefix("mark/")] == ["mark/a", "mark/b"]


async def test_the_order_of_the_log_decides(opened):
    store = await opened()
    results = begin(store, guarded((b"in time", 5)), raised(9), guarded((b"late", 5)), guarded((b"next", 9)))
    assert [(await result).failed for result in results] == [(), (), (1,), ()]
    assert await bodies(store, QUEUE) == [b"in time", b"next"]


@pytest.mark.parametrize("compress", [0, 1])
async def test_a_store_that_was_opened_again_knows_its_fences(opened, compress):
    store = await opened()
    await append(store, raised(9))
    store = await opened()
    placed = await append(store, guarded((b"late" * 50, 5), (b"next", 9), compress_bytes_min=compress))
    assert placed.failed == (1,)
    assert await bodies(store, QUEUE) == [b"next"]
    store = await opened()
    assert await bodies(store, QUEUE) == [b"next"]


async def test_a_fence_is_not_lowered_by_who_is_late(opened):
    store = await opened()
    await append(store, raised(9))
    assert (await append(store, raised(5))).failed == (0,)
    (entry,) = await store.keys.prefix("", namespace=FENCES)
    assert int.from_bytes(entry.value, "big") == 9


async def test_a_frame_that_is_sent_again_after_a_takeover_is_not_acknowledged(opened):
    """It may have been stored before: its session's next owner finds it by its marks."""
    store = await opened()
    sent = guarded((b"m", 5), producer_id=7, sequence=1)
    first = await append(store, sent)
    again = await append(store, sent)
    assert (again.frame, again.duplicate, again.failed) == (first.frame, True, ())
    await append(store, raised(9))
    again = await append(store, sent)
    assert (again.frame, again.duplicate, again.failed) == (first.frame, True, (1,))
    assert await bodies(store, QUEUE) == [b"m"]
