"""The sub-databases of the views' environment, and the metadata of the views, in every format there has been.

Format 5 seals every value (`store.views.sealed`); format 4 did not. In the sub-database `meta`:

    format        which format it is; while format 4 is being made format 5, and in format 4, without a checksum
    dispatched    log offset u64 that the views have followed the log to
    stored_at_ms  when the last frame before it was stored, u64
    first         log offset u64 from which on the log is kept; missing: from its beginning
    passed        the damaged ranges that no view has followed, start u64 | end u64 of each; missing: none
    sums          of each table of `TABLES`, in that order: number of entries u64 | sum of their checksums u64,
                  which is 0 for those that are not summed
    sealing       while format 4 is being made format 5: which table of `TABLES` u8 | the key that is sealed last

All numbers are big-endian.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb
from google_crc32c import value

from store.base.errors import ViewsDamaged
from store.disk.lmdb_file import is_cut_short, leads_astray
from store.format.frame import LogOffset
from store.format.ranges import Range, RangeSet
from store.integrity.ledger import DAMAGES_KEPT_COUNT_MAX
from store.integrity.tables import Table, unseal
from store.views.sealed import ReadTxn

logger = logging.getLogger(__name__)

FORMAT: Final = b"5"  # of all views together
UNSEALED: Final = b"4"  # the one before: without checksums
SEALING: Final = b"4>5"  # in between
META: Final = "meta"
PASSED: Final = b"passed"
TABLES: Final = (
    "addresses",
    "compact",
    "configs",
    "groups",
    "index",
    "kv",
    "kv_expiry",
    "kv_spaces",
    "kv_void",
    "last",
    "producers",
    "queue_ends",
    "queues",
    "settled",
    "timers",
)
UNSUMMED: Final = frozenset({"last"})  # its entries are replaced all the time, in batches, without looking at them
UNGUARDED: Final = frozenset({"index", "last"})  # an entry for each record: looking at new ones took longer than all
DBS_MAX: Final = 64
MAP_BYTES_MAX = 1 << 40  # address space: as large as any views are
PAGES_CHECK_S_MAX = 1.0  # that opening may look at pages; a gigabyte takes 0.2 s, or 1 s where nothing is cached
_META_SALT = value(META.encode())
_OFFSET_BYTES = 8
_PASSED = Struct(">QQ")

Entry: TypeAlias = tuple[bytes, bytes, bytes]  # view, key, value as it lies there


class ViewMarks(NamedTuple):
    """The marks of views: how far they have followed the log, and from where on they know it to be kept."""

    dispatched: LogOffset
    first: LogOffset
    format: bytes

    @property
    def is_current(self) -> bool:
        """Returns whether they are of this format."""
        return self.format == FORMAT


def check_pages(file: Path) -> None:
    """Checks that LMDB stays in the pages of a file: it would find out by a signal that kills the process.

    Raises `lmdb.CorruptedError`, OSError.
    """
    if is_cut_short(file):
        raise lmdb.CorruptedError(f"{file} has lost its end")
    if leads_astray(file, within_s=PAGES_CHECK_S_MAX):
        raise lmdb.CorruptedError(f"{file} has pages that lead nowhere: bits of them were flipped or lost")


@contextmanager
def opened_to_read(path: Path, *, subdir: bool = True) -> Iterator[Any]:
    """Opens an environment that no process writes, without changing anything. Raises `lmdb.Error`."""
    file = path / "data.mdb" if subdir else path
    check_pages(file)
    options: dict[str, Any] = {"map_size": MAP_BYTES_MAX, "max_dbs": DBS_MAX, "readonly": True, "create": False}
    with closing(lmdb.open(str(path), subdir=subdir, lock=False, **options)) as env:
        yield env


def entries(env: Any) -> Iterator[Entry]:
    """Yields every entry of every view, in the order of view and key."""
    with env.begin() as txn:
        for name in [key for key, _ in txn.cursor()]:
            for key, held in txn.cursor(db=env.open_db(name, txn=txn, create=False)):
                yield name, key, held


def load_passed(data: bytes) -> RangeSet:
    """Returns the ranges in a value of `passed`."""
    return RangeSet(_PASSED.iter_unpack(data))


def notes(meta: Any) -> Table:
    """Returns a table by the handle of `meta` for `passed`: as that only informs, its damage is not the views'."""
    return Table(META, meta, _damaged, guarded=False)


def passed_in(txn: ReadTxn, notes: Table, end: LogOffset) -> RangeSet:
    """Returns the ranges that views have passed over; all up to `end` where they are damaged. Raises `lmdb.Error`."""
    try:
        return load_passed(txn.get(PASSED, db=notes) or b"")
    except ViewsDamaged as error:
        logger.warning("any range may be one that the views have passed over", extra={"error": str(error)})
        return RangeSet([(0, end)])


def save_passed(passed: RangeSet) -> bytes:
    """Returns the value of `passed`."""
    return b"".join([_PASSED.pack(*one) for one in passed])


def with_gaps(passed: RangeSet, gaps: Sequence[Range]) -> RangeSet:
    """Returns passed ranges with new ones. The oldest two become one as long as there are too many."""
    found = RangeSet((*passed, *gaps))
    while len(found) > DAMAGES_KEPT_COUNT_MAX:
        (start, _), (_, end) = islice(found, 2)
        found.add(start, end)
    return found


def marks_in(env: Any, txn: Any) -> ViewMarks | None:
    """Returns the marks of an environment; None where there are none, or none that can be read. Raises `lmdb.Error`."""
    meta = env.open_db(META.encode(), txn=txn, create=False)
    found = {name: txn.get(name, b"", db=meta) for name in (b"format", b"dispatched", b"first")}
    marks = {name: unseal(_META_SALT, name, held) for name, held in found.items()}
    if marks[b"format"] is None:  # of a format without checksums
        marks = {
            name: data or (found[name] if len(found[name]) == _OFFSET_BYTES else b"") for name, data in marks.items()
        }
    dispatched, first = marks[b"dispatched"], marks[b"first"]
    if not dispatched or (first is None and found[b"first"]):
        return None
    return ViewMarks(
        LogOffset(int.from_bytes(dispatched, "big")),
        LogOffset(int.from_bytes(first or b"", "big")),
        marks[b"format"] or found[b"format"],
    )


def read_marks(path: Path, *, subdir: bool = True) -> ViewMarks | None:
    """Returns the marks of the views in a directory or a file; None where there are none, or none can be read."""
    try:
        with opened_to_read(path, subdir=subdir) as env, env.begin() as txn:
            return marks_in(env, txn)
    except lmdb.Error:
        return None


def plain_table(env: Any, txn: Any, name: str, format_: bytes) -> tuple[Any, Any]:
    """Returns a transaction and a table to read a view of an older format, or of this one, by the same methods."""
    handle = env.open_db(name.encode(), txn=txn, create=False)
    if format_ == FORMAT:
        return ReadTxn(txn), Table(name, handle, _damaged)
    return txn, handle


def _damaged(view: str, why: str, _found_by: str = "") -> ViewsDamaged:
    return ViewsDamaged(f"the view {view!r} is damaged: {why}")
