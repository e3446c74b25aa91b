"""The part that the store's tests share: frames, a disk that fails when told to, and answers to appends."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from store.api.log import Appended
from store.base.errors import StoreError
from store.disk.files import File, OsFiles
from store.format.frame import ROW, ROW_EXTRA, Frame, UnplacedFrame
from store.format.records import encode, queue_of


def frame(*records, **options):
    """Returns a frame of (queue, body), (queue, body, address hash) or (queue, body, address hash, flags)."""
    rows, payload = b"", b""
    for record in records:
        queue, body, address, flags = (*record, 0, 0)[:4] if len(record) < 4 else record
        rows += ROW.pack(queue, len(payload), len(body), flags, 0, address, 0, 0)
        payload += body
    return UnplacedFrame.build(rows, payload, **options)


def fanout(body, *queues):
    """Returns the frame of one record in several queues."""
    rows = b"".join(ROW.pack(q, 0, len(body), ROW_EXTRA if i else 0, 0, 0, 0, 0) for i, q in enumerate(queues))
    return UnplacedFrame.build(rows, body)


def records_frame(*records):
    """Returns a frame of the store's own records."""
    rows, payload = b"", b""
    for record in records:
        body = encode(record)
        rows += ROW.pack(queue_of(record), len(payload), len(body), 0, 0, 0, 0, 0)
        payload += body
    return UnplacedFrame.build(rows, payload)


def placed(unplaced, at, *, epoch=1, stored_at_ms=0):
    """Returns the `Frame` that a log which ends at `at` makes of a frame without a place."""
    header = unplaced.header(log_offset=at, epoch=epoch, stored_at_ms=stored_at_ms)
    return Frame.parse(header + unplaced.rows + unplaced.payload, log_offset=at)


def behind(store):
    """Returns the `LocalStore` that answers, where tests of one run over the network too."""
    return getattr(store, "local", store)


async def append(store, unplaced):
    """Appends a frame, and waits; returns the outcome, or raises it when it is an error."""
    outcome = await asyncio.gather(*begin(store, unplaced))
    return outcome[0]


def begin(store, *frames):
    """Appends frames without waiting, and returns a future for each."""
    futures = []
    for unplaced in frames:
        future = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StoreError, future=future) -> None:
            if isinstance(outcome, StoreError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        store.log.append(unplaced, done)
        futures.append(future)
    return futures


async def bodies(store, queue, offset=0):
    """Returns the body of every record of a queue from an offset on."""
    found = []
    while True:
        fetched = await store.queues.fetch(queue, offset, max_bytes=1 << 20)
        if fetched.next == offset:
            return found
        for one, rows in zip(fetched.frames, fetched.rows, strict=True):
            found += [one.record(row) for row in rows]
        offset = fetched.next


class FaultyFile:
    def __init__(self, inner: File, faults: "FaultyFiles") -> None:
        self._inner, self._faults = inner, faults

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        faults = self._faults
        if faults.write_error and faults.room <= 0:
            raise OSError(faults.write_error, os.strerror(faults.write_error))
        data = b"".join(parts)[: min(faults.write_bytes_max, faults.room if faults.write_error else 1 << 62)]
        faults.room -= len(data)
        faults.writes += 1
        return self._inner.pwritev([data], offset)

    def sync(self) -> None:
        self._faults.before_sync()
        if self._faults.sync_error:
            raise OSError(self._faults.sync_error, os.strerror(self._faults.sync_error))
        self._faults.syncs += 1
        self._inner.sync()

    def pread(self, size: int, offset: int) -> bytes:
        if self._faults.unreadable:
            self._faults.unreadable -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._inner.pread(size, offset)

    def truncate(self, size: int) -> None:
        if self._faults.truncate_error:
            raise OSError(self._faults.truncate_error, os.strerror(self._faults.truncate_error))
        self._inner.truncate(size)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class FaultyFiles(OsFiles):
    """The file system, but: writes of at most `write_bytes_max`; after `room` bytes `write_error`; `sync_error`."""

    def __init__(self) -> None:
        self.write_bytes_max = 1 << 62
        self.write_error = 0
        self.room = 0
        self.sync_error = 0
        self.syncs = self.writes = 0
        self.before_sync = lambda: None
        self.truncate_error = 0
        self.unreadable = 0  # reads that fail
        self.free: int | None = None  # the answer of free_bytes; None: the truth

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self.free is None else self.free

    def open(self, path: Path, *, create: bool = False) -> File:
        return FaultyFile(super().open(path, create=create), self)

    def fill(self, room: int) -> None:
        """Gives the disk this much room."""
        self.write_error, self.room = errno.ENOSPC, room
