"""The frame: the unit of write, checksum and replication, and the batch of records inside it.

Layout, little-endian, so that NumPy reads it in place:

    header  64 B  magic u32 | header_crc32c u32 | log_offset u64 | epoch u32 | flags u32 | row_count u32
                  | payload_len u32 | body_crc32c u32 | unsynced u32 | stored_at_ms u64 | producer_id u64 | sequence u64
    rows          row_count x 48 B: queue u32 | pos u32 | len u32 | flags u32 | key_hash u64 | address_hash u64
                  | id_hash u64 | time_ms u64
    payload       the records, back to back

`pos` and `len` point into the payload, before compression where there was one. `header_crc32c` covers the header from
`log_offset` on. `body_crc32c` covers rows and payload and is computed by the process that builds the frame, so that
integrity is end to end; the store fills in `log_offset`, `epoch`, `stored_at_ms` and `header_crc32c`. A row with
`ROW_EXTRA` set indexes a record that another row of the same frame has already placed in its topic's queue.

`unsynced` is how many bytes in front of the frame were not on disk when it was given its place: all bytes before them
were. So recovery can tell a page that a crash has kept from being written from one that was damaged later.

With `FRAME_ZSTD` the payload is one zstd frame that announces its content's size; `payload_len` and `body_crc32c` are
those of the stored bytes, so a frame is verified, kept and replicated without being decompressed. With `FRAME_ASYNC`
the store may acknowledge the frame when it is written and not yet synced; where there are other replicas it does not.
"""

import struct
from typing import NamedTuple, NewType, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from google_crc32c import extend, value
from msgspec.structs import force_setattr

from store.base.errors import CorruptFrame
from store.format.compression import compress, decompress, plain_size

LogOffset = NewType("LogOffset", int)  # a byte position in the commit log, always the start or end of a frame
QueueOffset = NewType("QueueOffset", int)  # the n-th record of a queue
QueueNumber = NewType("QueueNumber", int)  # unique in the cluster
Buffer: TypeAlias = bytes | memoryview  # bytes that do not change: their own, or a part of a message's

GROUP_SHIFT = 48  # the log of store group g begins at g << 48: an offset says by itself which log it is in


def origin_of(group: int) -> LogOffset:
    """Returns where the log of a store group begins."""
    return LogOffset(group << GROUP_SHIFT)


def group_of(at: LogOffset) -> int:
    """Returns the store group whose log an offset is in."""
    return at >> GROUP_SHIFT


class Position(NamedTuple):
    """The place of one record: its frame's log offset and its row in the frame. Ordered as the log is."""

    frame: LogOffset
    row: int

    def __str__(self) -> str:
        return f"{self.prefix()}{self.row:x}"

    def prefix(self) -> str:
        """Returns the part of the text that all positions of a frame begin with; the row follows in hexadecimal."""
        return f"{self.frame:x}."

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Returns the position that `str` wrote; raises ValueError for any other text."""
        frame, _, row = text.partition(".")
        at = cls(LogOffset(int(frame, 16)), int(row, 16))
        if str(at) != text or not 0 <= at.frame < 1 << 63 or not 0 <= at.row < 1 << 32:
            raise ValueError(f"not a position: {text!r}")
        return at


MAGIC = 0x31464748  # "HGF1"
HEADER = struct.Struct("<IIQIIIIIIQQQ")
ROW = struct.Struct("<IIIIQQQQ")
ROWS_DTYPE = np.dtype(
    [
        ("queue", "<u4"),
        ("pos", "<u4"),
        ("len", "<u4"),
        ("flags", "<u4"),
        ("key_hash", "<u8"),
        ("address_hash", "<u8"),
        ("id_hash", "<u8"),
        ("time_ms", "<u8"),
    ]
)
assert HEADER.size == 64
assert ROW.size == 48 == ROWS_DTYPE.itemsize

_U32_MAX = (1 << 32) - 1
_CRC_START = 8  # the header's checksum covers the bytes behind magic and itself
ROW_EXTRA = 1  # row flag: this record already has a row in its topic's queue
ROW_DEAD = 2  # row flag: a dead letter; the frame says why (store.format.dead_letters)
ROW_INDEX_KEY = 0x10  # row flag: the record is to be found by its key
ROW_INDEX_ADDRESS = 0x20  # row flag: the record is to be found by its address
ROW_TOMBSTONE = 4  # row flag: in a compacted queue, nothing is kept of this record's key any more
ROW_COPY = 8  # row flag: an older record that compaction has stored again, with a new offset
ROW_OLD = 0x40  # row flag: of copies, that the record's address has a newer one
ROW_FENCE = 0x80  # row flag: a guard, by who owns a name (store.guards)
ROW_ONCE = 0x100  # row flag: a guard, by the key of a request
FIRST_QUEUE = 16  # queue numbers below are the store's own records: KV operations, offsets, settlements
FEW_ROWS = 8  # up to here plain Python is cheaper than NumPy's fixed cost (3 us here)
FRAME_BYTES_MAX = 64 << 20  # no frame is larger, decompressed or not; a header that claims more is corrupt
FRAME_OBJECTS_BYTES = 768  # of the objects of a frame in memory, besides its bytes: most of a frame of one small record
FRAME_ASYNC = 1  # frame flag: to be acknowledged when it is written; set only when every record allows it
FRAME_ZSTD = 2  # frame flag: the payload is compressed
FRAME_GUARDED = 4  # frame flag: some of its rows are guards
FRAME_PART = 8  # frame flag: a part of a body, which is read once: no cache keeps it
ONCE_PRODUCER = 1 << 63  # in the id of a producer that has a single frame, and is remembered apart from the others


class UnplacedFrame(msgspec.Struct, frozen=True, kw_only=True, gc=False, eq=False):
    """A frame as its producer builds it: everything but its place in the log.

    Frames are kept by the hundred thousand. They name nothing that names them, and so no search for rings walks them.
    """

    rows: Buffer
    payload: Buffer
    row_count: int
    body_crc32c: int
    producer_id: int = 0  # 0: not idempotent
    sequence: int = 0
    flags: int = 0
    plain: bytes | None = None  # the payload before compression, if at hand

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnplacedFrame) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    @property
    def _fields(self) -> tuple[object, ...]:
        return self.rows, self.payload, self.row_count, self.body_crc32c, self.producer_id, self.sequence, self.flags

    @classmethod
    def build(
        cls,
        rows: bytes,
        payload: bytes,
        *,
        producer_id: int = 0,
        sequence: int = 0,
        flags: int = 0,
        compress_bytes_min: int = 0,
    ) -> "UnplacedFrame":
        """Returns a frame of packed rows and the records they point into, with its checksum.

        A payload of `compress_bytes_min` bytes or more (0: none) is compressed when that makes it smaller.
        """
        assert len(rows) % ROW.size == 0
        plain = None
        if 0 < compress_bytes_min <= len(payload):
            packed = compress(payload)
            if len(packed) < len(payload):
                payload, plain, flags = packed, payload, flags | FRAME_ZSTD
        return cls(
            rows=rows,
            payload=payload,
            row_count=len(rows) // ROW.size,
            body_crc32c=extend(value(rows), payload),
            producer_id=producer_id,
            sequence=sequence,
            flags=flags,
            plain=plain,
        )

    @property
    def plain_payload(self) -> Buffer:
        """The records, decompressed. Raises ValueError when the payload is no zstd frame of a lawful size."""
        if not self.flags & FRAME_ZSTD:
            return self.payload
        if self.plain is not None:
            return self.plain
        size = plain_size(self.payload)
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"{size} bytes decompressed")
        return decompress(self.payload, size)

    @classmethod
    def parse(cls, header: "Header", data: memoryview, at: int = 0) -> "UnplacedFrame":
        """Returns the parts of the frame at byte `at` of `data`, which is all there, verified like `Frame.parse`.

        `header` is its header; all else is looked at where it is, and keeps it. Raises `CorruptFrame`.
        """
        start = at + HEADER.size
        middle = start + header.row_count * ROW.size
        end = middle + header.payload_len
        rows, payload = data[start:middle], data[middle:end]
        if value(bytes(data[start:end])) != header.body_crc32c:
            raise CorruptFrame(header.log_offset, "body checksum")
        size = _plain_size(header, payload)
        if middle - at + size > FRAME_BYTES_MAX:
            raise CorruptFrame(header.log_offset, f"{size} bytes decompressed")
        if _reach(rows, header.row_count) > size:
            raise CorruptFrame(header.log_offset, "a row points outside the payload")
        return cls(
            rows=rows,
            payload=payload,
            row_count=header.row_count,
            body_crc32c=header.body_crc32c,
            producer_id=header.producer_id,
            sequence=header.sequence,
            flags=header.flags,
        )

    @property
    def size_bytes(self) -> int:
        """Returns the bytes that the frame takes in the log, header included."""
        return HEADER.size + len(self.rows) + len(self.payload)

    def header(self, *, log_offset: int, epoch: int, stored_at_ms: int, unsynced: int = 0) -> bytes:
        """Returns the 64 header bytes that place this frame; `unsynced` bytes in front of it may not be on disk."""
        raw = HEADER.pack(
            MAGIC,
            0,
            log_offset,
            epoch,
            self.flags,
            self.row_count,
            len(self.payload),
            self.body_crc32c,
            min(unsynced, _U32_MAX),
            stored_at_ms,
            self.producer_id,
            self.sequence,
        )
        crc: int = value(raw[_CRC_START:])
        return raw[:4] + crc.to_bytes(4, "little") + raw[_CRC_START:]


class Header(NamedTuple):
    """The fields of a frame header, in their order on disk."""

    magic: int
    header_crc32c: int
    log_offset: LogOffset
    epoch: int
    flags: int
    row_count: int
    payload_len: int
    body_crc32c: int
    unsynced: int
    stored_at_ms: int
    producer_id: int
    sequence: int

    @property
    def size_bytes(self) -> int:
        """The whole frame's size, header included."""
        return HEADER.size + self.row_count * ROW.size + self.payload_len


def parse_header(data: Buffer, *, log_offset: int) -> Header | None:
    """Returns the header at the start of `data`, which claims to lie at `log_offset`.

    None when `data` is shorter than a header. Raises `CorruptFrame` when magic, checksum, place or size are wrong.
    """
    if len(data) < HEADER.size:
        return None
    raw = bytes(data[: HEADER.size])
    header = Header._make(HEADER.unpack(raw))
    if header.magic != MAGIC:
        raise CorruptFrame(log_offset, "no frame begins here")
    if value(raw[_CRC_START:]) != header.header_crc32c:
        raise CorruptFrame(log_offset, "header checksum")
    if header.log_offset != log_offset:
        raise CorruptFrame(log_offset, f"the frame belongs at {header.log_offset}")
    if header.size_bytes > FRAME_BYTES_MAX:
        raise CorruptFrame(log_offset, f"{header.size_bytes} bytes")
    return header


def looks_like_frame(data: Buffer, log_offset: int) -> bool:
    """Returns whether bytes that are no sound header may have been one of a frame at a log offset."""
    if len(data) < HEADER.size:
        return False
    header = Header._make(HEADER.unpack(data[: HEADER.size]))
    return header.magic == MAGIC or header.log_offset == log_offset


def _plain_size(header: Header, payload: Buffer) -> int:
    """Returns a frame's payload's size, decompressed. Raises `CorruptFrame`."""
    if not header.flags & FRAME_ZSTD:
        return header.payload_len
    try:
        return plain_size(payload)
    except ValueError as error:
        raise CorruptFrame(header.log_offset, f"compressed payload: {error}") from error


def _reach(rows: Buffer, count: int) -> int:
    """Returns where the record ends that lies furthest in the payload."""
    if count <= FEW_ROWS:
        return max([pos + size for _, pos, size, *_ in ROW.iter_unpack(rows)], default=0)
    table = np.frombuffer(rows, ROWS_DTYPE)
    return int((table["pos"].astype(np.uint64) + table["len"]).max())


def first_queue(rows: Buffer, at: int = 0) -> int:
    """Returns the queue of the row at some byte of packed rows; 0 where there are none."""
    return int.from_bytes(rows[at : at + 4], "little")


class Frame(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A placed frame, both checksums verified; `rows` is a view into `data`.

    `data` is the frame as it is stored. Records are read from `plain`, which is the same unless it is compressed.
    """

    header: Header
    data: bytes
    _plain: bytes | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and (self.header, self.data) == (other.header, other.data)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def parse(cls, data: bytes, *, log_offset: int) -> "Frame | None":
        """Returns the whole frame at the start of `data`; None when it is not all there. Raises `CorruptFrame`."""
        header = parse_header(data, log_offset=log_offset)
        if header is None or len(data) < header.size_bytes:
            return None
        if len(data) > header.size_bytes:
            data = data[: header.size_bytes]
        if value(data[HEADER.size :]) != header.body_crc32c:
            raise CorruptFrame(log_offset, "body checksum")
        frame = cls(header, data)
        size = frame.plain_size
        if frame.payload_start + size > FRAME_BYTES_MAX:
            raise CorruptFrame(log_offset, f"{size} bytes decompressed")
        if _reach(data[HEADER.size : frame.payload_start], header.row_count) > size:
            raise CorruptFrame(log_offset, "a row points outside the payload")
        return frame

    @property
    def flags(self) -> int:
        """The frame's flags."""
        return self.header.flags

    @property
    def first_queue(self) -> int:
        """Returns the queue of the first row: the store's own records come in frames of their own, mostly."""
        return first_queue(self.data, HEADER.size)

    @property
    def start(self) -> LogOffset:
        """The log offset of the frame's first byte."""
        return self.header.log_offset

    @property
    def end(self) -> LogOffset:
        """The log offset behind the frame's last byte."""
        return LogOffset(self.header.log_offset + self.header.size_bytes)

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """The rows, as a structured array of `ROWS_DTYPE`."""
        return np.frombuffer(self.data, ROWS_DTYPE, self.header.row_count, HEADER.size)

    def few_rows(self) -> list[tuple[int, ...]] | None:
        """Returns the rows as tuples, with the fields of `ROW`; None where an array is quicker, as there are many."""
        if self.header.row_count > FEW_ROWS:
            return None
        return list(ROW.iter_unpack(memoryview(self.data)[HEADER.size : self.payload_start]))

    @property
    def payload_start(self) -> int:
        """Returns where in `data` the payload begins: a row's `pos` counts from there."""
        return HEADER.size + self.header.row_count * ROW.size

    @property
    def plain_size(self) -> int:
        """The payload's size, decompressed. Raises `CorruptFrame`."""
        if not self.header.flags & FRAME_ZSTD:
            return self.header.payload_len
        return _plain_size(self.header, memoryview(self.data)[self.payload_start :])

    @property
    def plain(self) -> bytes:
        """The frame with its payload decompressed, which begins at `payload_start`. Raises `CorruptFrame`.

        Decompressed when it is first asked for, and kept.
        """
        if not self.header.flags & FRAME_ZSTD:
            return self.data
        if self._plain is None:
            at = self.payload_start
            try:
                payload = decompress(memoryview(self.data)[at:], self.plain_size)
            except ValueError as error:
                raise CorruptFrame(self.start, f"compressed payload: {error}") from error
            force_setattr(self, "_plain", self.data[:at] + payload)
        assert self._plain is not None
        return self._plain

    @property
    def memory_bytes(self) -> int:
        """Returns the most memory that the frame may hold: its records a second time when they are compressed."""
        return self.header.size_bytes + (self.plain_size if self.header.flags & FRAME_ZSTD else 0)

    def record(self, row: int) -> bytes:
        """Returns the record that a row points to. Raises `CorruptFrame`."""
        entry = self.rows[row]
        start = self.payload_start + int(entry["pos"])
        return self.plain[start : start + int(entry["len"])]
