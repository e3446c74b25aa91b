"""Reports of executors to the driver: names and sizes of files, and small counters. No row of any table."""

from typing import Any

import msgspec

from spark.tables.files import Location
from spark.tables.manifest import TrafficRow
from spark.telemetry.forgetting import Capacity


class PassPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's message to every bucket: the number of this pass, and the version that it continues."""

    place: Location
    pass_: int
    attempt: str  # a part of file names: of two attempts at a pass no file of one is ever changed by the other
    settled_ms: int  # the watermark
    read_to_ms: int  # the time up to which every queue has been read: now, for silence and sessions
    newest_ms: int  # when the newest record before this pass was stored
    watermark_ms: int
    late_ms: int
    session_ms: int  # a longer pause ends a session
    capacity: Capacity
    samples: bool  # kept, each as a row
    states: dict[int, str]
    versions: dict[str, int]  # table -> the version that this pass continues
    expired_ms: int = 0  # windows that end at or before it are opened no more
    merges: dict[int, dict[str, list[list[str]]]] = {}  # bucket -> table -> runs of small files, each to become one


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file that an executor wrote for a table, to be added to it."""

    table: str
    path: str  # below the table
    day: str | None
    size: int
    stats: str  # as the Delta protocol has them, JSON


class QueueCount(msgspec.Struct, frozen=True, array_like=True):
    """The part of one queue that a bucket saw."""

    queue: int
    records: int
    next_offset: int
    stored_at_ms: int


class BucketReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one bucket's work."""

    bucket: int
    state: str | None  # None: as before
    files: list[NewFile]
    replaced: list[str]  # tables whose open file of this bucket is replaced by `files`
    removed: dict[str, list[str]]  # table -> settled files that are replaced by `files`
    queues: list[QueueCount]
    traffic: list[TrafficRow]
    corrected: int = 0
    forgotten: tuple[int, int] = (0, 0)  # devices and series
    restless: bool = False  # time alone may change something: windows are open, or devices may fall silent

    def encode(self) -> bytes:
        """Returns the report as bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: Any) -> "BucketReport":
        """Returns the inverse of `encode`."""
        return _decode(bytes(data))


_decode = msgspec.msgpack.Decoder(BucketReport).decode
