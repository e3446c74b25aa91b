"""The messages between `store.serving.rpc` and its clients: msgspec MessagePack requests, frames as the bytes they are
on disk.

A Fetch answers with a stream of chunks, each one gRPC message, little-endian:

    header_len u32 | header (MessagePack of `ChunkHeader`) | frames, back to back

Frames travel whole and untouched, header included, so the reader checks the same `body_crc32c` that the frame's
producer computed: integrity is end to end. A chunk carries many frames, because here a gRPC message costs 0.3 ms
whatever is in it.

A refused call ends with a gRPC status, the error's name and text in its details, and the error itself in the trailing
metadata (`ERRORS`), which `revive` turns into the same exception again.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Annotated, Final, NamedTuple

import grpc
import msgspec
import numpy as np
import numpy.typing as npt

from controller.api.client import ControllerError, UnknownTopic
from store.api.queues import Fetched
from store.base import errors
from store.base.errors import (
    BadArgument,
    CorruptFrame,
    DamagedExport,
    NamespaceFull,
    NoSuchTimer,
    NotMaster,
    OffsetOutOfRange,
    RemoteFailure,
    RevisionCompacted,
    RevisionConflict,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreOverloaded,
    StoreUnreachable,
    ViewsDamaged,
)
from store.base.streams import ErrorTable
from store.format.frame import FRAME_BYTES_MAX, HEADER, ROW, ROWS_DTYPE, Frame, QueueOffset

SERVICE = "headgate.store.v1.Store"
TOPICS, BOUNDS, OFFSET_AT_TIME, FETCH, HEALTH = "Topics", "Bounds", "OffsetAtTime", "Fetch", "Health"

QUEUES_MAX = 4_096  # queues named in one request
REQUEST_BYTES_MAX = 64 << 10
CHUNK_BYTES = 512 << 10  # of frames in one message, about: 60 KB to 1 MB is where gRPC is fastest
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 4 << 20
CHUNK_ROWS_MAX = 1 << 16  # rows in one chunk: a reader decodes one at a time
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + CHUNK_BYTES_MAX + (1 << 20)  # a frame is never split

Queue = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Size = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]

_LENGTH = Struct("<I")
_FOUR = np.arange(4)
_LEN_AT = 8  # where a row has its record's size
assert ROWS_DTYPE.names is not None
assert ROWS_DTYPE.names[:3] == ("queue", "pos", "len")
encode = msgspec.msgpack.Encoder().encode


class BadRequest(StoreError):
    """A request that its method does not take."""


class BadAnswer(StoreError):
    """Bytes from the server that are no answer of its method."""


class TooManyStreams(StoreError):
    """The server already feeds as many streams as it may."""

    retriable = True


# ---- requests and answers


class BoundsRequest(msgspec.Struct, frozen=True, array_like=True):
    """The bounds of these queues, answered as a list of `Bounds` in the same order."""

    queues: Annotated[tuple[Queue, ...], msgspec.Meta(max_length=QUEUES_MAX)]


class OffsetAtTimeRequest(msgspec.Struct, frozen=True, array_like=True):
    """The first offset of a queue stored at or after a time, answered as one integer."""

    queue: Queue
    time_ms: Offset


class FetchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Records `offset` (inclusive) to `end` (exclusive) of a queue; without an end up to the queue's current end."""

    queue: Queue
    offset: Offset
    end: Offset | None = None
    chunk_bytes: Annotated[int, msgspec.Meta(ge=CHUNK_BYTES_MIN, le=CHUNK_BYTES_MAX)] = CHUNK_BYTES


class TopicEntry(msgspec.Struct, frozen=True, array_like=True):
    """A topic and its queue numbers, by index."""

    name: str
    queues: tuple[Queue, ...]


class HealthAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The store answers; `confirmed` is the log offset behind the last frame that readers may see."""

    confirmed: Offset
    streams: int  # fetches in flight
    by_first_level: bool = False  # every topic is named by its addresses' first level: no routes say otherwise


# ---- chunks


class ChunkHeader(msgspec.Struct, frozen=True, array_like=True):
    """The frames of a chunk, and which of their rows are the queue's.

    `frames` are (log offset, size in bytes, rows selected) of each frame; `rows` are the selected row numbers of all
    frames, back to back, as little-endian u32. The first of them has the queue offset `offset`.
    """

    offset: Offset
    frames: tuple[tuple[Offset, Size, Size], ...]
    rows: bytes


_decode_header = msgspec.msgpack.Decoder(ChunkHeader).decode


def encode_chunk(fetched: Fetched) -> bytes:
    """Returns one gRPC message of the answer of a store's `fetch`."""
    selected = [np.asarray(rows, dtype="<u4") for rows in fetched.rows]
    header = encode(
        ChunkHeader(
            offset=fetched.offset,
            frames=tuple((f.start, f.header.size_bytes, len(r)) for f, r in zip(fetched.frames, selected, strict=True)),
            rows=np.concatenate(selected).tobytes() if selected else b"",
        )
    )
    return b"".join((_LENGTH.pack(len(header)), header, *(frame.data for frame in fetched.frames)))


def decode_chunk(data: bytes, *, queue: int) -> Fetched:
    """Decodes a message of `encode_chunk`, every checksum verified, every row checked to be of `queue`.

    Raises `BadAnswer` when the bytes are no chunk and `CorruptFrame` when a frame differs from the one that its
    producer built.
    """
    header, body = _header_of(data)
    rows = np.frombuffer(header.rows, "<u4")
    frames: list[Frame] = []
    picks: list[Sequence[int]] = []
    starts: list[int] = []  # where in `data` each frame's rows begin
    taken, at = 0, body
    for log_offset, size, count in header.frames:
        frame = Frame.parse(data[at : at + size], log_offset=log_offset) if size >= HEADER.size else None
        if frame is None or frame.header.size_bytes != size:
            raise BadAnswer(f"the frame at log offset {log_offset} is not the {size} bytes announced")
        frames.append(frame)
        picks.append(rows[taken : taken + count])  # type: ignore[arg-type]  # integers in an array are a sequence of them
        starts.append(at + HEADER.size)
        taken += count
        at += size
    if at != len(data):
        raise BadAnswer(f"{len(data) - at} bytes behind a chunk's last frame")
    counts = [count for _, _, count in header.frames]
    if (rows >= np.repeat(np.array([f.header.row_count for f in frames], np.int64), counts)).any():
        raise BadAnswer("a chunk selects rows that its frames do not have")
    at_queue = np.repeat(np.array(starts, np.int64), counts) + rows.astype(np.int64) * ROW.size  # a row's first field
    if (np.frombuffer(data, np.uint8)[at_queue[:, None] + _FOUR].view("<u4") != queue).any():
        raise BadAnswer(f"a chunk has rows that are not of queue {queue}")
    offset = QueueOffset(header.offset)
    return Fetched(frames, picks, offset, QueueOffset(offset + taken))


class ChunkSizes(NamedTuple):
    """The sizes of a queue's records `offset` (inclusive) to `next` (exclusive) in bytes, before compression."""

    offset: QueueOffset
    next: QueueOffset
    sizes: npt.NDArray[np.int64]


def decode_sizes(data: bytes) -> ChunkSizes:
    """Decodes no more of a message of `encode_chunk` than its records' sizes, without a look at any checksum.

    Some 1 us a frame, a tenth of `decode_chunk`. Raises `BadAnswer`.
    """
    header, body = _header_of(data)
    rows = np.frombuffer(header.rows, "<u4").astype(np.int64)
    frames = np.array(header.frames, np.int64).reshape(-1, 3)
    starts = body + np.cumsum(frames[:, 1]) - frames[:, 1] + HEADER.size
    at = np.repeat(starts, frames[:, 2]) + rows * ROW.size + _LEN_AT
    if body + frames[:, 1].sum() != len(data):
        raise BadAnswer(f"a chunk of {len(data)} bytes is not as long as its frames")
    if len(at) and at.max() + _FOUR.size > len(data):
        raise BadAnswer("a chunk selects rows that its frames do not have")
    sizes = np.frombuffer(data, np.uint8)[at[:, None] + _FOUR].view("<u4").ravel().astype(np.int64)
    return ChunkSizes(QueueOffset(header.offset), QueueOffset(header.offset + len(sizes)), sizes)


def _header_of(data: bytes) -> tuple[ChunkHeader, int]:
    """Returns the header of a message of `encode_chunk`, and where the frames begin. Raises `BadAnswer`."""
    if len(data) < _LENGTH.size or len(data) < (body := _LENGTH.size + _LENGTH.unpack_from(data)[0]):
        raise BadAnswer(f"a chunk of {len(data)} bytes is cut short")
    try:
        header = _decode_header(memoryview(data)[_LENGTH.size : body])
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"a chunk's header: {error}") from error
    if len(header.rows) != 4 * sum(count for _, _, count in header.frames):
        raise BadAnswer("a chunk's rows are not as many as its frames claim")
    return header, body


# ---- errors

_STATUSES: Mapping[type[Exception], grpc.StatusCode] = {
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    BadArgument: grpc.StatusCode.INVALID_ARGUMENT,
    OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    StoreOverloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StoreFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyStreams: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StoreClosed: grpc.StatusCode.UNAVAILABLE,
    NotMaster: grpc.StatusCode.UNAVAILABLE,
    StoreFailed: grpc.StatusCode.INTERNAL,
    CorruptFrame: grpc.StatusCode.DATA_LOSS,
    ViewsDamaged: grpc.StatusCode.DATA_LOSS,
    StoreError: grpc.StatusCode.INTERNAL,
    UnknownTopic: grpc.StatusCode.NOT_FOUND,
    ControllerError: grpc.StatusCode.FAILED_PRECONDITION,
}


def _namespace_full(namespace: str, keys_max: int, size_bytes_max: int) -> NamespaceFull:
    return NamespaceFull(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)


ERRORS: Final[ErrorTable[StoreError | ValueError]] = ErrorTable(
    StoreError,
    [
        kind
        for kind in (BadRequest, TooManyStreams, ValueError, *vars(errors).values())
        if isinstance(kind, type) and issubclass(kind, StoreError | ValueError)
    ],
    _STATUSES,
    unreachable=StoreUnreachable,
    fields={
        CorruptFrame: ("log_offset", "why", "next", "end"),
        DamagedExport: ("offset", "why"),
        NamespaceFull: ("namespace", "keys_max", "size_bytes_max"),
        NoSuchTimer: ("timer",),
        NotMaster: ("text", "master"),
        OffsetOutOfRange: ("offset", "first", "next"),
        RevisionCompacted: ("revision", "earliest"),
        RevisionConflict: ("key", "expected", "actual"),
    },
    makers={NamespaceFull: _namespace_full},
)
describe, revive = ERRORS.describe, ERRORS.revive


def failure_of(described: bytes | memoryview | msgspec.Raw, asked: str) -> RemoteFailure:
    """Returns the exception for an error that `revive` does not know; `asked` describes the request."""
    return RemoteFailure(f"{asked}: {ERRORS.text_of(described)}")
