"""Frames between a client and a store node: appended, tailed, and in the answers to calls.

A message of an append stream is `round u32 | frames, back to back`, each frame as in the log but with log offset, epoch
and time 0: the header says where the next one begins, and both checksums are verified before anything is stored. Their
numbers count up from 0 on each stream. When the store takes nothing for now, whatever else comes in that round is
refused too, and the client begins another round with the first frame that was: so order holds. Acknowledgements are
MessagePack, `[confirmed, [[number, frame, duplicate, error, failed guards], ...], timers]`.

A message of a tail is `following u64 | confirmed u64 | frames, back to back`, little-endian: frames verbatim in log
order, and where the next message goes on.

In answers to calls a frame comes as bytes once and is named by its log offset as long as both sides know that the
client still has it: a consumer that takes the records of a large frame one by one gets the frame once. Both sides keep
the same list by the same rule, in the order of the answers.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import msgspec
import numpy as np

from store.api.handle import Grant
from store.api.leases import Lease
from store.api.log import Appended
from store.api.queues import Fetched
from store.api.timers import TimersHeld
from store.base.errors import (
    AppendOutcomeUnknown,
    CorruptFrame,
    NotMaster,
    NotWritable,
    StoreClosed,
    StoreError,
    StoreFailed,
)
from store.format.frame import (
    FRAME_BYTES_MAX,
    HEADER,
    ROW,
    Buffer,
    Frame,
    LogOffset,
    QueueNumber,
    QueueOffset,
    UnplacedFrame,
    parse_header,
)
from store.rpc.calls import encode
from store.rpc.wire import BadAnswer, BadRequest, Offset, Size, describe, revive

KEPT = NotMaster | NotWritable | StoreClosed | StoreFailed  # refusals after which frames are sent again
KEPT_BYTES = 8 << 20  # of frames that a session's client keeps, decompressed
_TAIL = Struct("<QQ")
_ROUND = Struct("<I")


# ---- appends


def packed(frame: UnplacedFrame) -> tuple[Buffer, Buffer, Buffer]:
    """Returns a frame as it travels to the store, in three parts."""
    return frame.header(log_offset=0, epoch=0, stored_at_ms=0), frame.rows, frame.payload


def packed_message(round_: int, parts: Iterable[Buffer]) -> bytes:
    """Returns a message of an append stream; the parts of its frames are as `packed` makes them."""
    return b"".join((_ROUND.pack(round_ & 0xFFFF_FFFF), *parts))


def parse_appends(message: bytes) -> tuple[int, list[UnplacedFrame | StoreError]]:
    """Returns a message's round and frames, and for each that is damaged why.

    Raises `BadRequest` where no next one can be found.
    """
    if len(message) < _ROUND.size:
        raise BadRequest(f"a message of {len(message)} bytes says no round")
    found: list[UnplacedFrame | StoreError] = []
    (round_,) = _ROUND.unpack_from(message)
    at, view = _ROUND.size, memoryview(message)
    while at < len(message):
        try:
            header = parse_header(view[at : at + HEADER.size], log_offset=0)
        except CorruptFrame as error:
            raise BadRequest(f"at byte {at} of a message: {error.why}") from error
        if header is None or at + header.size_bytes > len(message):
            raise BadRequest(f"a message of {len(message)} bytes ends within the frame at byte {at}")
        try:
            found.append(UnplacedFrame.parse(header, view, at))
        except CorruptFrame as error:
            found.append(error)
        at += header.size_bytes
    return round_, found


class AppendAck(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of an appended frame: where it is, or the error."""

    number: Offset
    frame: Offset = 0
    duplicate: bool = False
    error: bytes | None = None
    failed: tuple[Size, ...] = ()  # rows of guards


class Acks(msgspec.Struct, frozen=True, array_like=True):
    """One message of the server on an append stream, in the order in which appends have ended."""

    confirmed: Offset
    acks: list[AppendAck]
    timers: TimersHeld | None = None  # the pending timers, when they have changed


_decode_acks = msgspec.msgpack.Decoder(Acks).decode


def ack_of(number: int, outcome: Appended | StoreError) -> AppendAck:
    """Returns an outcome as it travels."""
    if isinstance(outcome, StoreError):
        return AppendAck(number, error=describe(outcome))
    return AppendAck(number, outcome.frame, outcome.duplicate, None, tuple(outcome.failed))


def outcome_of(ack: AppendAck) -> Appended | StoreError:
    """Returns the outcome that `ack_of` was given; `AppendOutcomeUnknown` for an error that is not understood."""
    if ack.error is None:
        return Appended(LogOffset(ack.frame), ack.duplicate, ack.failed)
    error = revive(ack.error)
    if isinstance(error, StoreError):
        return error
    return AppendOutcomeUnknown(f"the store node's answer is not understood: {ack.error[:200]!r}")


def decode_acks(message: bytes) -> Acks:
    """Returns a message of acknowledgements. Raises `BadAnswer`."""
    try:
        return _decode_acks(message)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"acknowledgements: {error}") from error


# ---- the tail


class Tailed(NamedTuple):
    """A part of the log. `following` is where the next one begins."""

    frames: Sequence[Frame]
    following: LogOffset
    confirmed: LogOffset


def encode_tailed(frames: Iterable[Frame], following: LogOffset, confirmed: LogOffset) -> bytes:
    """Returns one message of a tail."""
    return b"".join((_TAIL.pack(following, confirmed), *(frame.data for frame in frames)))


def parse_tailed(message: bytes, *, after: LogOffset) -> Tailed:
    """Decodes a message of `encode_tailed`, every checksum verified; frames ascend from `after` or behind it.

    Raises `BadAnswer`, `CorruptFrame`.
    """
    if len(message) < _TAIL.size:
        raise BadAnswer(f"a part of the log in {len(message)} bytes")
    following, confirmed = _TAIL.unpack_from(message)
    frames: list[Frame] = []
    at, due = _TAIL.size, after
    while at < len(message):
        if len(message) - at < HEADER.size:
            raise BadAnswer("a part of the log ends within a frame")
        fields = HEADER.unpack_from(message, at)
        log_offset, size = fields[2], HEADER.size + fields[5] * ROW.size + fields[6]
        if size > FRAME_BYTES_MAX:
            raise BadAnswer(f"a frame of {size} bytes")
        if log_offset < due:
            raise BadAnswer(f"the frame at log offset {log_offset} came where {due} was due")
        frame = Frame.parse(message[at : at + size], log_offset=log_offset)
        if frame is None:
            raise BadAnswer("a part of the log ends within a frame")
        frames.append(frame)
        at, due = at + size, frame.end
    if max(following, confirmed) >> 63:
        raise BadAnswer("a part of the log beyond the last offset there can be")
    if following < due:
        raise BadAnswer(f"a part of the log up to {due} says that {following} follows")
    return Tailed(frames, LogOffset(following), LogOffset(confirmed))


# ---- frames in answers

FrameAnswer = tuple[Offset, bytes | None]  # log offset, and the frame if the client does not have it


class FetchedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A `Fetched`; the row numbers of each frame are little-endian u32."""

    frames: list[FrameAnswer]
    rows: list[bytes]
    offset: Offset
    next: Offset


class ScannedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a scan."""

    frames: list[FrameAnswer]
    following: Offset


class GrantAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The part that the leases of one take have in common: `visible_at_ms` is when they end by themselves."""

    lease: Offset
    leased_at: Offset
    visible_at_ms: Offset
    key: bytes


class TakenAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Leases: (offset, deliveries, which of `frames`, row).

    An earlier master may have leased those of the frames in front of the log offset `begun`.
    """

    frames: list[FrameAnswer]
    leases: list[tuple[Offset, Size, Size, Size]]
    grant: GrantAnswer | None = None
    begun: Offset = 0


class _Kept(OrderedDict[LogOffset, Any]):
    """A client's cache of the frames that it was sent, newest last, and how many bytes those are."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[LogOffset, int] = {}
        self.size_bytes = 0

    def keep(self, start: LogOffset, size: int, what: object) -> None:
        """Keeps one more, and lets go of the oldest as long as it is too much: itself too, if need be."""
        self[start] = what
        self._sizes[start] = size
        self.size_bytes += size
        while self.size_bytes > KEPT_BYTES:
            oldest, _ = self.popitem(last=False)
            self.size_bytes -= self._sizes.pop(oldest)


class FramesSent:
    """The server's side: which frames the client still has."""

    def __init__(self) -> None:
        self.kept = _Kept()

    def send(self, frame: Frame) -> FrameAnswer:
        """Adds a frame to the next answer."""
        start = frame.start
        if start in self.kept:
            self.kept.move_to_end(start)
            return start, None
        self.kept.keep(start, frame.memory_bytes, None)
        return start, frame.data

    def fetched(self, fetched: Fetched) -> bytes:
        """Returns the body of an answer to `fetch`."""
        rows = [np.asarray(some, dtype="<u4").tobytes() for some in fetched.rows]
        return encode(FetchedAnswer([*map(self.send, fetched.frames)], rows, fetched.offset, fetched.next))

    def scanned(self, frames: Sequence[Frame], following: LogOffset) -> bytes:
        """Returns the body of an answer to `scan`."""
        return encode(ScannedAnswer([*map(self.send, frames)], following))

    def taken(self, leases: Sequence[Lease]) -> bytes:
        """Returns the body of an answer to `take`."""
        index: dict[LogOffset, int] = {}
        frames: list[FrameAnswer] = []
        leased: list[tuple[int, int, int, int]] = []
        begun = 0
        for lease in leases:
            start = lease.frame.start
            if start not in index:
                index[start] = len(frames)
                frames.append(self.send(lease.frame))
                if lease.earlier:
                    begun = max(begun, start + 1)
            leased.append((lease.offset, lease.deliveries, index[start], lease.row))
        grant = leases[0].grant if leases else None
        if grant is None:
            return encode(TakenAnswer(frames, leased, None, begun))
        said = GrantAnswer(grant.lease, grant.leased_at, grant.visible_at_ms, grant.key)
        return encode(TakenAnswer(frames, leased, said, begun))


class FramesKept:
    """The client's side: frames by log offset. All answers with frames go through it, in their order."""

    def __init__(self) -> None:
        self.kept = _Kept()

    def frames(self, answers: Iterable[FrameAnswer]) -> list[Frame]:
        """Returns the frames of one answer, both checksums verified.

        Raises `CorruptFrame`, `BadAnswer`: then the two sides do not keep the same any more, and the session must end.
        """
        found: list[Frame] = []
        kept = self.kept
        for offset, data in answers:
            start = LogOffset(offset)
            if data is not None:
                frame = _placed(data, start)
                kept.keep(start, frame.memory_bytes, frame)
            elif start in kept:
                frame = kept[start]
                kept.move_to_end(start)
            else:
                raise BadAnswer(f"the frame at log offset {start} was not sent before")
            found.append(frame)
        return found


def _placed(data: bytes, start: LogOffset) -> Frame:
    frame = Frame.parse(data, log_offset=start)
    if frame is None:
        raise BadAnswer(f"the frame at log offset {start} is cut short")
    return frame


def fetched_of(answer: FetchedAnswer, kept: FramesKept) -> Fetched:
    """Returns a `Fetched` again. Raises `BadAnswer`, `CorruptFrame`."""
    offset, following = QueueOffset(answer.offset), QueueOffset(answer.next)
    frames = kept.frames(answer.frames)
    if not frames and not answer.rows:
        return Fetched((), (), offset, following)
    if len(answer.rows) != len(frames) or any(len(some) % 4 for some in answer.rows):
        raise BadAnswer("rows that are not those of as many frames")
    rows = [np.frombuffer(some, "<u4") for some in answer.rows]
    for frame, some in zip(frames, rows, strict=True):
        if len(some) and int(some.max()) >= frame.header.row_count:
            raise BadAnswer(f"rows that the frame at log offset {frame.start} does not have")
    picked: list[Sequence[int]] = [some.tolist() for some in rows]
    return Fetched(frames, picked, offset, following)


def leases_of(answer: TakenAnswer, kept: FramesKept, *, queue: QueueNumber, group: str, owner: int) -> Sequence[Lease]:
    """Leases again. Raises `BadAnswer`, `CorruptFrame`."""
    frames = kept.frames(answer.frames)
    if any(n >= len(frames) or row >= frames[n].header.row_count for _, _, n, row in answer.leases):
        raise BadAnswer("leases of rows that their frames do not have")
    grant = None
    if answer.grant is not None:
        lease, leased_at, visible_at_ms, key = msgspec.structs.astuple(answer.grant)
        grant = Grant(
            queue=queue,
            group=group,
            owner=owner,
            lease=lease,
            leased_at=LogOffset(leased_at),
            visible_at_ms=visible_at_ms,
            key=key,
        )
    earlier = [frame.start < answer.begun for frame in frames]
    return [
        Lease(QueueOffset(offset), deliveries, frames[n], row, grant, earlier[n])
        for offset, deliveries, n, row in answer.leases
    ]
