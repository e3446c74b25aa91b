"""The index of records by key, address and id: an entry for each frame that has some, not for each record.

    part u32 | kind u8 | hash u64 | ~(the frame's place in its part) u32  ->  stored at u64 | rows u32, newest first
    part u32 | 0 u8                                                       ->  stored at u64 of its first entry

All big-endian. A part is `PART_BYTES` of the log, counted from where its store group's begins: new entries go to the
end of the environment's key space, so that their cost does not grow with the log, and retention removes one stretch of
keys. Within a part the newest entry of a hash comes first. Time and log offset grow together, so a time is found by
binary search. Hashes collide: the asker compares the records themselves.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from store.api.log import IndexKind
from store.format.frame import FIRST_QUEUE, ROW_EXTRA, ROW_INDEX_ADDRESS, ROW_INDEX_KEY, LogOffset, Position
from store.format.records import LogTrimmed
from store.log.run import FrameRun
from store.views.columns import Columns
from store.views.sealed import PUTS

PART_BITS = 28
PART_BYTES = 1 << PART_BITS
_LOW = PART_BYTES - 1
_WITHIN_MAX = 0xFFFF_FFFF

_KEY = struct.Struct(">IBQI")
_KEY_DTYPE = np.dtype([("part", ">u4"), ("kind", "u1"), ("hash", ">u8"), ("within", ">u4")])
_PREFIX = struct.Struct(">IBQ")
_HEAD = struct.Struct(">IB")
_STORED = struct.Struct(">Q")
_SINGLE_WORDS = 3  # of a value that names one row
_SINGLE_DTYPE = np.dtype(f"V{4 * _SINGLE_WORDS}")
assert _KEY.size == _KEY_DTYPE.itemsize == 17


_COLUMN = {IndexKind.KEY: "key_hash", IndexKind.ADDRESS: "address_hash", IndexKind.ID: "id_hash"}
_FLAG = {IndexKind.KEY: ROW_INDEX_KEY, IndexKind.ADDRESS: ROW_INDEX_ADDRESS, IndexKind.ID: 0}  # 0: every record


class IndexQuery(NamedTuple):
    """A question to the index: records stored at `from_ms` or later, before `until_ms`, and in front of `below`."""

    kind: IndexKind
    hash: int
    from_ms: int = 0
    until_ms: int = 1 << 63
    below: Position = Position(LogOffset(1 << 63), 0)

    @classmethod
    def of(cls, kind: IndexKind, hash_: int, *, from_ms: int, until_ms: int, below: Position | None) -> "IndexQuery":
        """Returns the query; without `below`, for the newest."""
        wanted = cls(kind, hash_, from_ms, until_ms)
        return wanted if below is None else wanted._replace(below=below)

    def in_front_of(self, frame: LogOffset) -> "IndexQuery":
        """Returns the same for all entries before a frame."""
        return self._replace(below=min(self.below, Position(frame, 0)))


def _indexed(rows: npt.NDArray[np.void], kind: IndexKind) -> npt.NDArray[np.bool_]:
    """Returns which rows are in the index: no secondary rows, no internal records."""
    flags = rows["flags"]
    mask: npt.NDArray[np.bool_] = (rows["queue"] >= FIRST_QUEUE) & (rows[_COLUMN[kind]] != 0) & (flags & ROW_EXTRA == 0)
    flag = _FLAG[kind]
    return mask & (flags & flag != 0) if flag else mask


def find_in_run(run: FrameRun, wanted: IndexQuery) -> Iterator[Position]:
    """Yields the positions in a run that the view may lack, newest first."""
    rows = run.rows
    hit = rows[_COLUMN[wanted.kind]] == wanted.hash
    if not hit.any():
        return
    for row in reversed(np.flatnonzero(hit & _indexed(rows, wanted.kind)).tolist()):
        at = run.position(row)
        if at < wanted.below and wanted.from_ms <= run.stored_at_ms(row) < wanted.until_ms:
            yield at


class IndexView:
    """Records by key, address and id."""

    def __init__(self, db: Any, origin: LogOffset) -> None:
        self._db = db
        self._origin = origin  # places are counted from here, so that they fit

    # ---- writing

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Adds the rows of some runs that are to be found. Costs a put for each frame and hash.

        Where the log is trimmed the parts that lie wholly before its beginning are removed; of the part that does not,
        readers skip the entries of removed frames.
        """
        self._add(txn, runs)
        trimmed = [record.first for run in runs for _, record in run.records if isinstance(record, LogTrimmed)]
        if trimmed:
            self._drop_below(txn, (max(trimmed) - self._origin) >> PART_BITS)

    def _add(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        found = [run for run in runs if _concerned(run)]
        if not found:
            return
        placed = [p for run in found for p in run.placed]
        counts = np.array([p.frame.row_count for p in placed])
        columns = _Columns(
            starts=np.array([p.start - self._origin for p in placed], np.uint64),
            stored=np.array([p.stored_at_ms for p in placed], np.uint64),
            frame=np.repeat(np.arange(len(placed)), counts),
            begins=np.cumsum(counts) - counts,
        )
        heads: dict[int, int] = {}
        for kind in IndexKind:
            kept = np.flatnonzero(np.concatenate([_indexed(run.rows, kind) for run in found]))
            if len(kept):
                hashes = np.concatenate([run.rows[_COLUMN[kind]] for run in found])[kept]
                self._put(txn, kind, kept, hashes, columns)
                for part, stored in columns.heads(kept).items():
                    heads[part] = min(stored, heads.get(part, stored))
        for part, stored in heads.items():
            txn.put(_HEAD.pack(part, 0), _STORED.pack(stored), overwrite=False, db=self._db)

    def _put(
        self,
        txn: Any,
        kind: IndexKind,
        kept: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.uint64],
        columns: "_Columns",
    ) -> None:
        # Newest first within a hash, hashes ascending within a part: the order of the keys.
        kept, hashes = kept[::-1], hashes[::-1]
        frame = columns.frame[kept]
        order = np.lexsort((hashes, columns.starts[frame] >> np.uint64(PART_BITS)))
        kept, hashes, frame = kept[order], hashes[order], frame[order]
        first = np.flatnonzero(
            np.concatenate(([True], (hashes[1:] != hashes[:-1]) | (frame[1:] != frame[:-1])))
        )  # of each entry
        starts = columns.starts[frame[first]]
        keys = np.empty(len(first), _KEY_DTYPE)
        keys["part"] = starts >> np.uint64(PART_BITS)
        keys["kind"] = kind
        keys["hash"] = hashes[first]
        keys["within"] = _WITHIN_MAX - (starts & np.uint64(_LOW))
        stored = columns.stored[frame[first]]
        words = np.empty(len(kept) + 2 * len(first), ">u4")  # of all values, one behind the other
        at = first + 2 * np.arange(len(first))
        words[at], words[at + 1] = stored >> np.uint64(32), stored & np.uint64(0xFFFF_FFFF)
        entry = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(kept))))
        words[np.arange(len(kept)) + 2 * entry + 2] = kept - columns.begins[frame]
        ends = np.append(at, len(words))
        single = np.diff(ends) == _SINGLE_WORDS  # most: they have one size and are sealed together
        values = words[at[single][:, np.newaxis] + np.arange(_SINGLE_WORDS)].view(_SINGLE_DTYPE)[:, 0]
        with txn.cursor(db=self._db) as cursor:
            cursor.putnew_columns(Columns.of(keys[single], values))
            several = np.flatnonzero(~single)
            key, value = keys[several].tolist(), words.tobytes()
            spans = list(zip((4 * at[several]).tolist(), (4 * ends[several + 1]).tolist(), strict=True))
            for i in range(0, len(spans), PUTS):
                some = zip(key[i : i + PUTS], spans[i : i + PUTS], strict=True)
                cursor.putnew([(_KEY.pack(*k), value[start:end]) for k, (start, end) in some])

    def _drop_below(self, txn: Any, part: int) -> None:
        with txn.cursor(db=self._db) as cursor:
            found = cursor.first()
            while found and int.from_bytes(cursor.key()[:4], "big") < part:
                found = cursor.delete()

    # ---- reading

    def find(self, txn: Any, wanted: IndexQuery, first: LogOffset) -> Iterator[Position]:
        """Yields positions from `first` on, newest first. Costs two searches for each part that is passed."""
        with txn.cursor(db=self._db) as cursor:
            newest = max(wanted.below.frame - self._origin, 0) >> PART_BITS
            part: int | None = newest
            if not cursor.set_range(_HEAD.pack(min(newest, _WITHIN_MAX), 0)):
                part = int.from_bytes(cursor.key()[:4], "big") if cursor.last() else None
            while part is not None and part >= (first - self._origin) >> PART_BITS:
                head = txn.get(_HEAD.pack(part, 0), db=self._db)
                begun = 0 if head is None else _STORED.unpack(head)[0]
                if head is not None and begun < wanted.until_ms:
                    yield from self._in_part(cursor, part, wanted, first)
                if head is not None and begun < wanted.from_ms:
                    return
                found = cursor.prev() if cursor.set_range(_HEAD.pack(part, 0)) else cursor.last()
                part = int.from_bytes(cursor.key()[:4], "big") if found else None

    def _in_part(self, cursor: Any, part: int, wanted: IndexQuery, first: LogOffset) -> Iterator[Position]:
        prefix = _PREFIX.pack(part, wanted.kind, wanted.hash)
        begin = self._origin + (part << PART_BITS)
        most = min(max(wanted.below.frame - begin, 0), _LOW)
        found = _seek(cursor, prefix, most)
        if found is not None and found[1] >= wanted.until_ms:
            found = _stored_before(cursor, prefix, found[0] - 1, wanted.until_ms)
        while found is not None:
            within, stored = found
            frame = LogOffset(begin + within)
            if stored < wanted.from_ms or frame < first:
                return
            rows = np.frombuffer(cursor.value(), ">u4", offset=_STORED.size).tolist()
            for row in rows:
                at = Position(frame, row)
                if at < wanted.below:
                    yield at
            found = _seek(cursor, prefix, within - 1)

    def entries(self, txn: Any) -> int:
        """Returns how many entries there are."""
        count: int = txn.entries(self._db)
        return count


class _Columns(NamedTuple):
    """The columns of some frames.

    Of each frame: where it begins, from the origin on, when it was stored, and its first row. Of each row: its frame.
    """

    starts: npt.NDArray[np.uint64]
    stored: npt.NDArray[np.uint64]
    frame: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]

    def heads(self, kept: npt.NDArray[np.int64]) -> dict[int, int]:
        """Returns when the first of some rows, which ascend, was stored in each part."""
        frames = self.frame[kept]
        parts, first = np.unique(self.starts[frames] >> np.uint64(PART_BITS), return_index=True)
        return dict(zip(parts.tolist(), self.stored[frames[first]].tolist(), strict=True))


def _concerned(run: FrameRun) -> bool:
    """Returns whether a run has anything to index, at a glance."""
    rows = run.rows
    return bool(len(rows) and ((rows["flags"] & (ROW_INDEX_KEY | ROW_INDEX_ADDRESS)).any() or rows["id_hash"].any()))


def _seek(cursor: Any, prefix: bytes, within: int) -> tuple[int, int] | None:
    """Returns the newest entry at or before a place in the part: place and time of storage; leaves the cursor there."""
    if within < 0 or not cursor.set_range(prefix + (_WITHIN_MAX - within).to_bytes(4, "big")):
        return None
    key = cursor.key()
    if not key.startswith(prefix):
        return None
    return _WITHIN_MAX - int.from_bytes(key[-4:], "big"), _STORED.unpack_from(cursor.value())[0]


def _stored_before(cursor: Any, prefix: bytes, most: int, until_ms: int) -> tuple[int, int] | None:
    """Returns the newest entry at or before a place that was stored before a time; the cursor is left on it."""
    low, high, best = 0, most, -1
    while low <= high:
        middle = (low + high) // 2
        found = _seek(cursor, prefix, middle)
        if found is None:
            low = middle + 1
        elif found[1] < until_ms:
            best, low = found[0], middle + 1
        else:
            high = found[0] - 1
    return _seek(cursor, prefix, best)
