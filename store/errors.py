"""What a store raises, and whether what was being written is stored, is not, or may be."""

__all__ = [
    "AppendOutcomeUnknown",
    "CorruptFrame",
    "DataDirLocked",
    "FrameTooLarge",
    "KeyTooLong",
    "OffsetOutOfRange",
    "RevisionConflict",
    "SequenceOutOfOrder",
    "StoreClosed",
    "StoreError",
    "StoreFailed",
    "StoreOverloaded",
]


class StoreError(Exception):
    """The root. `retriable`: nothing was stored and the same call may succeed later."""

    retriable = False


class StoreOverloaded(StoreError):
    """Not stored: more bytes wait to be written than the store may hold."""

    retriable = True


class StoreClosed(StoreError):
    """Not stored: the store is shut down."""

    retriable = True


class StoreFailed(StoreError):
    """Not stored: the disk refused an earlier write, and the store accepts no more until it is restarted."""


class AppendOutcomeUnknown(StoreError):
    """Perhaps stored: write or fdatasync failed with the frame under way. Only an idempotent retry is safe."""


class FrameTooLarge(StoreError):
    """Not stored: the frame is over `FRAME_BYTES_MAX`."""


class SequenceOutOfOrder(StoreError):
    """Not stored: the producer has left out a sequence number."""


class OffsetOutOfRange(StoreError):
    """A read below the first or above the next offset; `first` and `next` say what there is."""

    def __init__(self, offset: int, first: int, next_: int) -> None:
        super().__init__(f"offset {offset} is outside {first}..{next_}")
        self.offset, self.first, self.next = offset, first, next_


class RevisionConflict(StoreError):
    """A compare-and-set met another revision; `actual` is the key's, 0 when it has none."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(f"{key!r} is at revision {actual}, not {expected}")
        self.key, self.expected, self.actual = key, expected, actual


class KeyTooLong(StoreError):
    """A key over the limit of the key-value view."""


class CorruptFrame(StoreError):
    """Bytes in the log that are not the frame they should be."""

    def __init__(self, log_offset: int, why: str) -> None:
        super().__init__(f"corrupt frame at log offset {log_offset}: {why}")
        self.log_offset, self.why = log_offset, why


class DataDirLocked(StoreError):
    """Another process has the data directory open."""
