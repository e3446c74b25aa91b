"""The messages between master and replica, as MessagePack; frames travel as the bytes they are on disk.

    replica                                   master
      Hello      ------------------------->            my epochs, my log: what do we have in common?
                 <-------------------------  Welcome   cut your log there / Refused
      Ack        ------------------------->            cut and on disk: send
                 <-------------------------  Data      several in flight, none waits for the one before
      Ack        ------------------------->            on disk up to here
                 <-------------------------  Confirmed readers may see up to here; also the heartbeat, which is answered
      Ack        ------------------------->

A replica dials. `session` is a number by chance, chosen anew for every Hello: messages of an older stream between the
same two are ignored. `epoch` is that of the master, also in the messages of its replica. A node that learns of a newer
epoch than its own is superseded. Offsets have 63 bits and are never narrowed.
"""

from enum import Enum
from typing import Annotated, TypeAlias

import msgspec

from store.format.frame import FRAME_BYTES_MAX, LogOffset
from store.replication.epochs import EPOCHS_MAX, EpochList
from store.replication.errors import BadEpochs, BadMessage

DATA_BYTES_MAX = FRAME_BYTES_MAX + (8 << 20)  # of frames in one message: a batch, and at its end the largest frame
TEXT_MAX = 1024
PAPER_CHARS_MAX = 255

Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Group = Annotated[int, msgspec.Meta(ge=0, le=(1 << 15) - 1)]
Paper = Annotated[str, msgspec.Meta(max_length=PAPER_CHARS_MAX)]
Epochs = Annotated[tuple[tuple[Number, Offset], ...], msgspec.Meta(max_length=EPOCHS_MAX)]


class Why(Enum):
    """The reasons for which a stream is refused or ended."""

    SUPERSEDED = "superseded"  # there is a newer epoch; `epoch` says which
    NOT_MASTER = "not_master"  # the replica dialled is no master
    WRONG_GROUP = "wrong_group"
    UNKNOWN_REPLICA = "unknown_replica"  # the controller has not told the master of it
    TRIMMED = "trimmed"  # retention has removed frames that the replica has still to read: say Hello again
    MALFORMED = "malformed"
    WRONG_CLUSTER = "wrong_cluster"
    WRONG_LOG = "wrong_log"  # of the same number, and another one
    WRONG_CHECK = "wrong_check"  # the id is another replica's


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1, kw_only=True):
    """A replica's log: `epochs` from oldest to newest, `first` and `end` of its log, synced or not.

    The owner of the stream authenticates the replica: the ids of its cluster and its log, and the check code of its id.
    """

    group: Group
    replica: Number
    session: Number
    epoch: Number  # the newest that the replica knows
    epochs: Epochs
    first: Offset
    end: Offset
    cluster: Paper = ""
    log: Paper = ""
    check: Paper = ""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2, kw_only=True):
    """The master's log, and the offset from which it goes on at the replica, which cuts off the frames behind it.

    With `needs_snapshot` the master does not have the frames that the replica lacks: the replica has to take the views
    at some offset between `first` and the confirmed end, begin its log there, and say Hello again.
    """

    session: Number
    epoch: Number
    epochs: Epochs
    first: Offset
    end: Offset
    cut_to: Offset
    confirmed: Offset
    needs_snapshot: bool


class Data(msgspec.Struct, frozen=True, array_like=True, tag=3, kw_only=True):
    """Whole frames of one epoch, back to back, from a log offset on. Decoded, `frames` is a view into the message."""

    session: Number
    epoch: Number
    start: Offset
    confirmed: Offset
    frames: memoryview


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag=4, kw_only=True):
    """The offset up to which readers may see, how much was `sent` on this stream, and the newest `round` of questions.

    The answer is an `Ack` with that round: the replica still follows this epoch and no newer one.
    """

    session: Number
    epoch: Number
    confirmed: Offset
    sent: Offset
    round: Number


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=5, kw_only=True):
    """The offset up to which the replica has the log on disk, and the newest `round` that it was asked.

    `damaged`: its log has damage in front of `flushed` that is not repaired yet, so it leaves the set.
    """

    session: Number
    epoch: Number
    flushed: Offset
    round: Number
    damaged: bool = False


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=6, kw_only=True):
    """The stream is over. `epoch` is the newest that the sender knows of."""

    session: Number
    epoch: Number
    why: Why
    text: Annotated[str, msgspec.Meta(max_length=TEXT_MAX)] = ""


FromReplica: TypeAlias = Hello | Ack | Refused
FromMaster: TypeAlias = Welcome | Data | Confirmed | Refused
Message: TypeAlias = Hello | Welcome | Data | Confirmed | Ack | Refused

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def decode(data: bytes | memoryview) -> Message:
    """Decodes a message of `encode`, and checks its fields against each other. Raises `BadMessage`."""
    try:
        message: Message = _decode(data)
        if isinstance(message, Hello | Welcome):
            _check_log(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, BadEpochs) as error:  # msgspec lets bad UTF-8 through
        raise BadMessage(str(error)) from error
    if isinstance(message, Data) and not 0 < len(message.frames) <= DATA_BYTES_MAX:
        raise BadMessage(f"{len(message.frames)} bytes of frames")
    return message


def listed(message: Hello | Welcome) -> EpochList:
    """Returns the epochs of a message that `decode` has let pass."""
    return EpochList.of(message.epochs)


def _check_log(message: Hello | Welcome) -> None:
    epochs = listed(message)
    if message.first > message.end or epochs.cut(LogOffset(message.end)) != epochs:
        raise BadMessage(f"a log from {message.first} to {message.end}, whose epochs are {message.epochs[-4:]}")
    if epochs.newest > message.epoch:
        raise BadMessage(f"epoch {message.epoch}, and a log with epoch {epochs.newest}")
    if isinstance(message, Welcome) and not message.cut_to <= message.end >= message.confirmed:
        raise BadMessage(f"the log ends at {message.end}, in front of {message.cut_to} or {message.confirmed}")
