"""Frames in memory."""

import gc

from store.format.frame import FRAME_OBJECTS_BYTES
from store.format.placed import Placed
from store.local.cache import RECORDS_PART, FrameCache
from tests.support.store.store_kit import frame


def placed(start, size=10):
    return at(start, frame((16, b"x" * size)))


def of_queues(start, *queues):
    return at(start, frame(*((queue, b"x") for queue in queues)))


def at(start, unplaced):
    return Placed(start, 0, unplaced.header(log_offset=start, epoch=1, stored_at_ms=0), unplaced)


def test_a_written_frame_is_put_together_once():
    cache = FrameCache()
    cache.put(placed(0))
    first = cache.get(0)
    assert first == placed(0).whole()
    assert cache.get(0) is first
    assert cache.get(64) is None


def test_it_lets_go_of_what_was_used_longest_ago():
    size = placed(0).end + FRAME_OBJECTS_BYTES
    cache = FrameCache(size * 2 * RECORDS_PART // (RECORDS_PART - 1) + 1)
    cache.put(placed(0), placed(1000))
    cache.get(0)
    cache.put(placed(2000))
    assert cache.get(1000) is None
    assert cache.get(0) is not None
    assert cache.size_bytes == size * 2
    cache.put(placed(0), placed(0))
    assert cache.size_bytes == size * 2


def test_frames_are_not_looked_at_by_the_collector():
    assert not gc.is_tracked(placed(0))
    assert not gc.is_tracked(placed(0).frame)
    assert not gc.is_tracked(placed(0).whole())


def test_records_push_out_no_messages():
    size = of_queues(0, 3).size_bytes + FRAME_OBJECTS_BYTES
    cache = FrameCache(2 * RECORDS_PART * size)
    messages = [of_queues(1_000 * n, 16, 3) for n in range(1, 9)]
    records = [of_queues(100_000 + 1_000 * n, *queues) for n, queues in enumerate([(3,)] * 98 + [(1,), ()])]
    cache.put(*messages)
    cache.put(*records)
    assert all(cache.get(one.start) == one.whole() for one in messages)
    assert [cache.get(one.start) is not None for one in records] == [False] * 98 + [True, True]
    assert cache.size_bytes <= 2 * RECORDS_PART * size


def test_a_frame_over_its_size_is_not_kept():
    cache = FrameCache(10)
    cache.put(placed(0))
    assert cache.get(0) is None
    assert cache.size_bytes == 0
