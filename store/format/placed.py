"""A frame that has its place in the log, in the parts in which it is written and sent."""

import msgspec

from store.format.frame import HEADER, Frame, Header, LogOffset, UnplacedFrame, first_queue, parse_header


class Placed(msgspec.Struct, gc=False, eq=False):
    """A frame that has its place in the log. Not to be changed; it keeps values that are asked for several times."""

    start: LogOffset
    stored_at_ms: int
    header: bytes
    frame: UnplacedFrame
    size_bytes: int = 0
    end: LogOffset = LogOffset(0)  # the log offset behind it
    memory_bytes: int = 0  # see `Frame.memory_bytes`

    def __post_init__(self) -> None:
        frame = self.frame
        self.size_bytes = size = frame.size_bytes
        self.end = LogOffset(self.start + size)
        self.memory_bytes = size if frame.plain is None else size + len(frame.plain)

    @property
    def flags(self) -> int:
        """The frame's flags."""
        return self.frame.flags

    @property
    def first_queue(self) -> int:
        """Returns the queue of the first row: the store's own records come in frames of their own, mostly."""
        return first_queue(self.frame.rows)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Placed)
            and (self.start, self.stored_at_ms, self.header) == (other.start, other.stored_at_ms, other.header)
            and self.frame == other.frame
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Placed({self.start}, {self.stored_at_ms}, {self.header!r}, {self.frame!r})"

    @property
    def data(self) -> bytes:
        """The frame as it is stored."""
        return b"".join((self.header, self.frame.rows, self.frame.payload))

    def whole(self) -> Frame:
        """Returns the frame as readers see it; its checksums are its producer's and ours, and not computed again."""
        plain = None if self.frame.plain is None else b"".join((self.header, self.frame.rows, self.frame.plain))
        return Frame(Header(*HEADER.unpack(self.header)), self.data, plain)

    @classmethod
    def of(cls, frame: Frame) -> "Placed":
        """Returns the parts of a frame that was read."""
        header, data = frame.header, frame.data
        parts = UnplacedFrame(
            rows=data[HEADER.size : frame.payload_start],
            payload=data[frame.payload_start :],
            row_count=header.row_count,
            body_crc32c=header.body_crc32c,
            producer_id=header.producer_id,
            sequence=header.sequence,
            flags=header.flags,
        )
        return cls(frame.start, header.stored_at_ms, data[: HEADER.size], parts)

    @classmethod
    def parse(cls, data: memoryview, at: int, *, log_offset: LogOffset) -> "tuple[Placed, int] | None":
        """Returns the frame at byte `at` of `data`, checksums verified, and its epoch; None when it is not all there.

        Raises `CorruptFrame`.
        """
        raw = bytes(data[at : at + HEADER.size])
        header = parse_header(raw, log_offset=log_offset)
        if header is None or len(data) - at < header.size_bytes:
            return None
        return cls(log_offset, header.stored_at_ms, raw, UnplacedFrame.parse(header, data, at)), header.epoch
