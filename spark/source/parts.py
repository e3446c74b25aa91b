"""Chunks of the log in parts, so that one part's records fit into memory when they are decoded.

A chunk has a limit in bytes as they are stored. Decompressed they may be a thousand times as many, and decoded a
hundred times as many again.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from store.api.queues import Fetched
from store.format.frame import Frame, QueueOffset

PART_BYTES: Final = 1 << 20  # of records, decompressed


def parts(chunk: Fetched) -> Iterator[Fetched]:
    """Yields the records of a chunk, `PART_BYTES` of them at a time, but at least one.

    The whole chunk, as mostly, or frames of their own: those of the chunk would keep what was decompressed.
    """
    if sum(frame.plain_size for frame in chunk.frames) <= PART_BYTES:
        yield chunk
        return
    sums = np.cumsum(
        np.concatenate([f.rows["len"][np.asarray(r)] for f, r in zip(chunk.frames, chunk.rows, strict=True)]),
        dtype=np.int64,
    )
    ends = np.cumsum([len(rows) for rows in chunk.rows])
    frames: dict[int, Frame] = {}
    at = 0
    while at < len(sums):
        before = int(sums[at - 1]) if at else 0
        upto = max(at + 1, int(np.searchsorted(sums, before + PART_BYTES, "right")))
        taken = range(int(np.searchsorted(ends, at, "right")), int(np.searchsorted(ends, upto, "left")) + 1)
        frames = {n: frames.get(n) or Frame(chunk.frames[n].header, chunk.frames[n].data) for n in taken}
        begins = [int(ends[n]) - len(chunk.rows[n]) for n in taken]
        rows = [chunk.rows[n][max(at - begin, 0) : upto - begin] for n, begin in zip(taken, begins, strict=True)]
        yield Fetched([*frames.values()], rows, QueueOffset(chunk.offset + at), QueueOffset(chunk.offset + upto))
        at = upto
