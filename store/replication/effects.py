"""The effects of a replica, to be carried out outside of the core."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from store.format.frame import LogOffset
from store.format.placed import Placed
from store.replication.epochs import EpochList
from store.replication.messages import FromReplica


@dataclass(frozen=True, slots=True)
class Send:
    """A message to the master."""

    message: FromReplica


@dataclass(frozen=True, slots=True)
class SaveEpochs:
    """The content of the epochs' file, which must be saved before any later effect is carried out."""

    epochs: EpochList
    promised: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """First cut the log to `cut_to` (None: leave it), durably; then save the epochs. Answered by `prepared`.

    Where the log ends before `cut_to` already, its lost frames need not come again.

    Before the epochs it is kept that the log follows the unclean election of epoch `unclean`, if that is not 0.
    """

    cut_to: LogOffset | None
    epochs: EpochList
    promised: int
    unclean: int = 0


class AcceptedLoss(NamedTuple):
    """A log offset, and the epoch of the unclean election in which a log gives up its lost frames from there on."""

    at: LogOffset
    unclean: int


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """The log has lost its end, and the group goes on without: an unclean election was accepted.

    Cut the log to `cut_to` (None: leave it), and let it be whole as soon as it has the frames before `at`. Views that
    hold more than is left are made anew. Then it is kept that the log follows the unclean election of epoch `unclean`.
    """

    cut_to: LogOffset | None
    at: LogOffset
    unclean: int


@dataclass(frozen=True, slots=True)
class Write:
    """Frames to append, verified; `data` is all of them, as they came. Answered by `flushed`."""

    start: LogOffset
    end: LogOffset
    data: memoryview
    frames: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The master's log begins behind this one's end, or has nothing to do with it.

    To be fetched from the master of that epoch: its views at some offset it has confirmed, where its log begins, and
    its epochs up to there. The new log is empty and begins where the master's does. Views, log and epochs are replaced
    in one step, as a directory is renamed: a log with the epochs of another would be taken for that one. When there
    is no snapshot to be had: `close`, and connect again.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the stream. `why` is for the log."""

    why: str


Effect: TypeAlias = Send | SaveEpochs | Prepare | Write | AcceptLoss | TakeSnapshot | Close
