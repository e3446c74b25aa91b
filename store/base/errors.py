"""The errors of a store; each tells whether the write is stored, is not stored, or may be."""


class StoreError(Exception):
    """The root. `retriable`: nothing was stored and the same call may succeed later."""

    retriable = False


class StoreOverloaded(StoreError):
    """Not stored: more bytes wait to be written than the store may hold."""

    retriable = True


class StoreFull(StoreError):
    """Not stored: the disk has no room, or less than is kept in reserve. Reading goes on, and so does writing later."""

    retriable = True


class StoreClosed(StoreError):
    """Not stored: the store is shut down."""

    retriable = True


class NotMaster(StoreError):
    """Not stored: this replica is not its group's master, or not any more; the controller knows which one is.

    `master` is its address, if the replica knows it.
    """

    retriable = True

    def __init__(self, text: str, master: str | None = None) -> None:
        super().__init__(text)
        self.text, self.master = text, master


class NotWritable(StoreError):
    """Not stored: the group takes nothing for now, as when fewer replicas are in sync than it asks for."""

    retriable = True


class StoreFailed(StoreError):
    """Not stored: the disk refused an earlier write, and the store accepts no more until it is restarted."""


class StoreUnreachable(StoreError):
    """Not stored: no server could be reached, or it stayed overloaded, for as long as the client was told to try."""

    retriable = True


class RemoteFailure(StoreError):
    """The server refused with an error that is none of the store's own, or a client does not know."""


class AppendOutcomeUnknown(StoreError):
    """Perhaps stored: write or fdatasync failed, or the connection broke, with it in flight.

    Only an idempotent retry is safe.
    """


class BadArgument(StoreError):
    """Not stored, nor looked for: a number or a text that the store cannot hold; a frame that contradicts the store."""


class FrameTooLarge(StoreError):
    """Not stored: the frame is over `FRAME_BYTES_MAX`."""


class SequenceOutOfOrder(StoreError):
    """Not stored: the producer has left out a sequence number."""


class OffsetOutOfRange(StoreError):
    """A read below the first or above the next offset; `first` and `next` bound the offsets that there are."""

    def __init__(self, offset: int, first: int, next_: int) -> None:
        super().__init__(f"offset {offset} is outside {first}..{next_}")
        self.offset, self.first, self.next = offset, first, next_


class RevisionConflict(StoreError):
    """A compare-and-set met another revision; `actual` is the key's, 0 when it has none."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(f"{key!r} is at revision {actual}, not {expected}")
        self.key, self.expected, self.actual = key, expected, actual


class KeyTooLong(StoreError):
    """A key or a namespace over the limit of the key-value view."""


class NamespaceFull(StoreError):
    """Not stored: the namespace would hold more keys or bytes than its limits say (0: no limit)."""

    def __init__(self, namespace: str, *, keys_max: int, size_bytes_max: int) -> None:
        limits = [f"{keys_max} keys"] * (keys_max > 0) + [f"{size_bytes_max} bytes"] * (size_bytes_max > 0)
        super().__init__(f"namespace {namespace!r} is full: it may hold {' and '.join(limits)}")
        self.namespace, self.keys_max, self.size_bytes_max = namespace, keys_max, size_bytes_max


class RevisionCompacted(StoreError):
    """A revision whose changes retention has taken, or whose state is not held any more; `earliest` is still there."""

    def __init__(self, revision: int, earliest: int) -> None:
        super().__init__(f"revision {revision} is compacted; {earliest} is the earliest that is left")
        self.revision, self.earliest = revision, earliest


class TooManyHolds(StoreError):
    """The limit of held states of the key-value store is reached; one will be free soon."""

    retriable = True


class SnapshotLost(StoreError):
    """A state of the views that was being read had to be given up; reading can begin again from the newest."""

    retriable = True


class TransactionTooLarge(StoreError):
    """Not stored: a transaction with too many compares or operations, or with two for the same key."""


class DamagedExport(StoreError):
    """A file that is no whole export of the key-value store; `offset` is where it is not, in bytes."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"damaged at byte {offset}: {why}")
        self.offset, self.why = offset, why


class TimersFull(StoreError):
    """Not stored: as many timers are pending, or as many bytes of them, as the store may hold."""

    retriable = True


class TimerTooFar(StoreError):
    """Not stored: the timer is due later than the store keeps timers for."""


class NoSuchTimer(StoreError):
    """The given id is not the id of a timer."""

    def __init__(self, timer: str) -> None:
        super().__init__(f"not a timer: {timer[:64]!r}")
        self.timer = timer


class BadHandle(StoreError):
    """A lease's handle that this store group has not signed, or that was cut or changed on the way."""


class LeaseLost(StoreError):
    """The lease of a handle has ended: the message was settled or given back, or is leased to another consumer."""


class CorruptFrame(StoreError):
    """Bytes in the log that are not the frame they should be.

    A reader of a queue may go on at `next`, its first offset behind the damage, and a reader of the log at `end`; None
    where that is not known. Either may meet damage again.
    """

    def __init__(self, log_offset: int, why: str, next_: int | None = None, end: int | None = None) -> None:
        super().__init__(f"corrupt frame at log offset {log_offset}: {why}")
        self.log_offset, self.why, self.next, self.end = log_offset, why, next_, end


class NotRebuildable(StoreError):
    """The views are incomplete, and the log has lost records that they hold: keys, group offsets and settlements.

    The views of a copy of the data directory can be put in their place, or the loss be accepted
    (`headgate store rebuild-views --force`).
    """


class ViewsDamaged(StoreError):
    """The requested data lies in the views, and differs from the data written there.

    It is never served. The views are made anew from the log when the store is opened again; a replica opens it again
    by itself.
    """

    retriable = True


class ReplicaIncomplete(StoreError):
    """The replica began with a snapshot of the views, and its log does not reach up to it yet.

    It can be read, and be a master, when it does.
    """

    retriable = True


class SnapshotUnusable(StoreError):
    """A snapshot that is damaged, of another group or of another format, or that could not be taken."""


class TruncationRefused(StoreError):
    """The log cannot be cut there: no frame begins there, or the views hold records that would be cut off."""


class WrongGroup(StoreError):
    """The data directory belongs to another store group, or does not say to which."""


class QueueDropped(StoreError):
    """Not stored: the queue was deleted, and the sender's metadata is old."""

    retriable = True


class ForeignLog(StoreError):
    """The data directory has a log that was not written by the store group it is to join."""


class MetadataWentBack(StoreError):
    """The controllers know less of a store group than they have told its replica before."""


class ForeignCluster(StoreError):
    """A data directory, a client or a node belongs to another cluster than its counterpart."""


class DataDirLocked(StoreError):
    """The data directory is open in another process."""
