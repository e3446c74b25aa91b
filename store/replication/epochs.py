"""The epochs of a log: which master's term each stretch of it was written in.

An epoch begins where its master's log ended when it was elected, so an entry is (epoch, start) and ends where the next
one begins, the newest where the log ends. The controller gives each epoch to one master, which writes each offset once:
where two logs share an entry they are the same up to the lesser of its two ends, and differ, if at all, behind it.

Encoded, little-endian:

    magic u32 | crc32c u32 of the bytes behind it | saves u64 | promised u64 | count u32
    count x (epoch u64 | start u64)

`saves` is how often the list of this log was saved: of two copies the one that was saved more often counts. Older
versions wrote another magic and no `saves`. `promised` is the newest epoch that the replica knows, whether or not it
has any of it: it takes nothing from the master of an older one (design: fence on the epoch at every entry).
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from google_crc32c import value

from store.format.frame import Header, LogOffset
from store.replication.errors import BadEpochs

EPOCHS_MAX = 1 << 16  # the newest are kept: elections, within the retained log, whose epoch has frames
OFFSET_MAX = (1 << 63) - 1
OF_OLDER_VERSION = -1  # saves of a list that does not tell them
_MAGIC = 0x32454748  # "HGE2"
_MAGIC_WITHOUT_SAVES = 0x31454748  # "HGE1"
_HEAD = Struct("<II")
_SAVES = Struct("<Q")
_COUNTS = Struct("<QI")
_ENTRY = Struct("<QQ")
_by_start = attrgetter("start")


class Epoch(NamedTuple):
    """One term and where it begins."""

    epoch: int
    start: LogOffset


class Common(NamedTuple):
    """The common part of two logs: up to `at`, which lies in or at the end of `epoch`."""

    epoch: int
    at: LogOffset


class LogRank(NamedTuple):
    """A replica's log on disk, as an election compares it: the newest epoch first, then the log's end."""

    epoch: int
    end: LogOffset


@dataclass(frozen=True, slots=True)
class EpochList:
    """Entries with rising epochs and rising starts, oldest first. Values: every change gives another list."""

    entries: tuple[Epoch, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]]) -> "EpochList":
        """Returns a list from elsewhere. Raises `BadEpochs` when it is none."""
        made = tuple(Epoch(epoch, LogOffset(start)) for epoch, start in entries)
        if len(made) > EPOCHS_MAX:
            raise BadEpochs(f"{len(made)} epochs, {EPOCHS_MAX} at most")
        for before, after in pairwise(made):
            if after.epoch <= before.epoch or after.start <= before.start:
                raise BadEpochs(f"epoch {after.epoch} at {after.start} follows {before.epoch} at {before.start}")
        return cls(made)

    @classmethod
    def of_frames(cls, headers: Iterable[Header]) -> "EpochList":
        """Returns the list that the frames of a log tell, in place of a file that is lost.

        Empty epochs are not in it, and where the log was trimmed its oldest begins later than it did.
        """
        found = cls()
        for header in headers:
            if header.epoch != found.newest:
                found = found.append(header.epoch, header.log_offset)
        return found

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def newest(self) -> int:
        """The newest epoch, 0 when there is none: epochs count from 1."""
        return self.entries[-1].epoch if self.entries else 0

    def append(self, epoch: int, start: LogOffset) -> "EpochList":
        """Returns the list with one more epoch, which replaces the newest one if that has no data.

        Raises `BadEpochs` for an epoch that is not newer, or begins before the newest one.
        """
        kept = self.entries
        if kept and (epoch <= kept[-1].epoch or start < kept[-1].start):
            raise BadEpochs(f"epoch {epoch} at {start} cannot follow {kept[-1].epoch} at {kept[-1].start}")
        if kept and kept[-1].start == start:
            kept = kept[:-1]
        return EpochList((*kept, Epoch(epoch, start))[-EPOCHS_MAX:])

    def cut(self, end: LogOffset) -> "EpochList":
        """Returns the list without the epochs that begin behind a log's end."""
        return EpochList(self.entries[: bisect_right(self.entries, end, key=_by_start)])

    def until(self, epoch: int) -> "EpochList":
        """Returns the list without the epochs that are newer."""
        return EpochList(tuple(entry for entry in self.entries if entry.epoch <= epoch))

    def trim(self, first: LogOffset) -> "EpochList":
        """Returns the list without the epochs that end at or before a log's first offset.

        The start of the epoch that is kept in part stays the same: other lists are compared with it.
        """
        return EpochList(self.entries[max(bisect_right(self.entries, first, key=_by_start) - 1, 0) :])

    def extended(self, other: "EpochList", end: LogOffset) -> "EpochList":
        """Returns the list with the newer epochs of another that begin by `end`; up to there both logs are the same."""
        made = self
        for epoch, start in other.entries:
            if epoch > made.newest and start <= end:
                made = made.append(epoch, start)
        return made

    def epoch_at(self, at: LogOffset) -> int | None:
        """Returns the epoch of the frame that begins at a log offset, None in front of the oldest known."""
        index = bisect_right(self.entries, at, key=_by_start) - 1
        return self.entries[index].epoch if index >= 0 else None

    def end_at(self, at: LogOffset, end: LogOffset) -> LogOffset:
        """Returns where the epoch of a log offset ends, in a log that ends at `end`."""
        index = bisect_right(self.entries, at, key=_by_start)
        return self.entries[index].start if index < len(self.entries) else end

    def common(self, end: LogOffset, other: "EpochList", other_end: LogOffset) -> Common | None:
        """Returns how far the log of this list, which ends at `end`, equals another; None: they share no epoch."""
        starts = dict(other.entries)
        for epoch, start in reversed(self.entries):
            if starts.get(epoch) == start:
                return Common(epoch, min(self.end_at(start, end), other.end_at(start, other_end)))
        return None


class SavedEpochs(NamedTuple):
    """The contents of a file: the list, the newest known epoch, and how often the list was saved."""

    epochs: EpochList
    promised: int
    saves: int = 0


def encode_epochs(saved: SavedEpochs) -> bytes:
    """Returns the bytes of a file, an empty list's as well as any other's."""
    entries = saved.epochs.entries
    body = _SAVES.pack(saved.saves) + _COUNTS.pack(saved.promised, len(entries))
    body += b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEAD.pack(_MAGIC, value(body)) + body


def decode_epochs(data: bytes) -> SavedEpochs:
    """Returns what `encode_epochs` was given, an older version's as `OF_OLDER_VERSION`. Raises `BadEpochs`."""
    if len(data) < _HEAD.size + _COUNTS.size:
        raise BadEpochs(f"{len(data)} bytes")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic not in {_MAGIC, _MAGIC_WITHOUT_SAVES}:
        raise BadEpochs("not a list of epochs")
    if value(body) != crc:
        raise BadEpochs("checksum")
    saves = OF_OLDER_VERSION
    if magic == _MAGIC:
        if len(body) < _SAVES.size + _COUNTS.size:
            raise BadEpochs(f"{len(data)} bytes")
        (saves,) = _SAVES.unpack_from(body)
        body = body[_SAVES.size :]
    promised, count = _COUNTS.unpack_from(body)
    if count > EPOCHS_MAX or len(body) != _COUNTS.size + count * _ENTRY.size:
        raise BadEpochs(f"{len(data)} bytes for {count} epochs")
    epochs = EpochList.of(_ENTRY.iter_unpack(body[_COUNTS.size :]))
    if promised < epochs.newest or any(entry.start > OFFSET_MAX for entry in epochs.entries):
        raise BadEpochs("the epochs contradict themselves")
    return SavedEpochs(epochs, promised, saves)
