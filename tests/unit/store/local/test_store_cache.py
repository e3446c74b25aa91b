"""Frames in memory."""

import gc

from store.format.frame import FRAME_OBJECTS_BYTES
from store.format.placed import Placed
from store.local.cache import FrameCache
from tests.support.store.store_kit import frame


def placed(start, size=10):
    unplaced = frame((16, b"x" * size))
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
    cache = FrameCache(size * 2)
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


def test_a_frame_over_its_size_is_not_kept():
    cache = FrameCache(10)
    cache.put(placed(0))
    assert cache.get(0) is None
    assert cache.size_bytes == 0
