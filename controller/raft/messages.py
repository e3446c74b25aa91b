"""The state and the messages of Raft nodes, and their bytes: msgpack arrays, beginning with the message's number.

`decode` raises `BadMessage` for bytes that are no message, `check` for a message that contradicts itself: entries that
do not follow each other, an entry from a later term than its sender's. `Raft.step` calls it, and adds the checks that
need the state of a node.
"""

import enum
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from controller.raft.errors import BadMessage
from controller.raft.membership import INCARNATION_CHARS_MAX, Membership, MembershipChange, decode_change, encode_change

NOBODY = 0  # in place of a node's id: no vote, no leader
NUMBER_MAX = 1 << 62
MESSAGE_BYTES_MAX = 1 << 30
CONTEXT_BYTES_MAX = 1024  # of a read
ENTRY_OVERHEAD_BYTES = 16  # bytes that count for an entry without data, in limits

_Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
NodeId: TypeAlias = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Incarnation: TypeAlias = Annotated[str, Meta(max_length=INCARNATION_CHARS_MAX)]
Term: TypeAlias = _Number
Index: TypeAlias = _Number  # of an entry: the first one is 1, and 0 lies before it


class EntryKind(enum.IntEnum):
    """The purposes of entries."""

    COMMAND = 0  # the state machine's
    CHANGE = 1  # of the membership; applied by the core, shown to the driver
    EMPTY = 2  # the first one of a leader's term (thesis, 3.6.2)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log."""

    term: Term
    index: Index
    kind: EntryKind
    data: bytes = b""


class EntryId(msgspec.Struct, frozen=True, gc=False):
    """The entry that a proposal became. It is committed when an entry of this index and this term is applied."""

    term: Term
    index: Index


class HardState(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A node's durable state (paper, figure 2). `commit` may be older than one known before: it is learned again."""

    term: Term = 0
    vote: _Number = NOBODY
    commit: Index = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The state machine and the membership after the entry of `index` (paper, 7)."""

    index: Index = 0
    term: Term = 0  # of that entry
    membership: Membership = Membership()
    data: bytes = b""


class _Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    sender: NodeId
    to: NodeId
    term: Term  # the sender's, except where it says otherwise
    incarnation: Incarnation = ""  # of the sender
    addressee: Incarnation = ""  # the incarnation of `to` that is meant; empty: the sender does not know it


class Vote(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=1):
    """RequestVote (paper, 5.2). With `pre` it asks whether it would be worth it, for `term` to come (thesis, 9.6)."""

    last_index: Index
    last_term: Term
    pre: bool = False
    forced: bool = False  # the leader itself has asked for the election (thesis, 4.2.3)


class VoteReply(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=2):
    """An answer to a vote. Granted, its term is the request's."""

    granted: bool
    pre: bool = False


class Append(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=3):
    """AppendEntries (paper, 5.3): entries that follow the one of `prev_index` and `prev_term`."""

    prev_index: Index
    prev_term: Term
    commit: Index
    entries: tuple[Entry, ...] = ()


class AppendReply(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=4):
    """A follower has all up to `index` on disk; or, refused, it lacks the entry of `index` that the leader named.

    A refusal hints at the greatest entry that may be equal in both logs (paper, 5.3, last but one paragraph).
    """

    index: Index
    refused: bool = False
    hint_index: Index = 0
    hint_term: Term = 0


class LeaderHeartbeat(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=5):
    """The leader's heartbeat. `read` numbers the newest read that the answer confirms (thesis, 6.4).

    `quiet`: the leader needs no answer.
    """

    commit: Index  # never more than the follower is known to have
    read: _Number = 0
    quiet: bool = False


class HeartbeatReply(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=6):
    """An answer to a heartbeat, with its number."""

    read: _Number = 0


class InstallSnapshot(_Message, frozen=True, array_like=True, kw_only=True, tag=7):
    """A snapshot in place of entries the leader has no more (paper, 7). Answered by `AppendReply`."""

    snapshot: Snapshot


class TimeoutNow(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=8):
    """Stand for election at once (thesis, 3.10)."""


class ReadRequest(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=9):
    """A follower asks for the index a linearizable read has to wait for (thesis, 6.4)."""

    context: Annotated[bytes, Meta(max_length=CONTEXT_BYTES_MAX)]


class ReadReply(_Message, frozen=True, array_like=True, kw_only=True, gc=False, tag=10):
    """The index asked for."""

    context: Annotated[bytes, Meta(max_length=CONTEXT_BYTES_MAX)]
    index: Index


Message: TypeAlias = (
    Vote
    | VoteReply
    | Append
    | AppendReply
    | LeaderHeartbeat
    | HeartbeatReply
    | InstallSnapshot
    | TimeoutNow
    | ReadRequest
    | ReadReply
)

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def decode(data: bytes) -> Message:
    """Returns the message these bytes are. Raises `BadMessage`."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise BadMessage(f"{len(data)} bytes are not a message")
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadMessage(f"not a message: {error}") from error
    return message


def check(message: Message) -> None:
    """Raises `BadMessage` for a message that contradicts itself."""
    if message.term < 1:
        raise BadMessage("a message has a term of at least 1")
    if isinstance(message, Append):
        _check_entries(message)
    elif isinstance(message, InstallSnapshot):
        snapshot = message.snapshot
        if snapshot.index < 1 or not 1 <= snapshot.term <= message.term:
            raise BadMessage(f"a snapshot of index {snapshot.index}, term {snapshot.term} in term {message.term}")
        problem = snapshot.membership.problem()
        if problem is not None:
            raise BadMessage(f"a snapshot's membership: {problem}")
    elif isinstance(message, Vote) and message.last_term >= message.term:
        raise BadMessage(f"a candidate of term {message.term} has an entry of term {message.last_term}")


def _check_entries(message: Append) -> None:
    index, term, last = message.prev_index, message.prev_term, message.term
    if term > last or (index == 0) != (term == 0):
        raise BadMessage(f"no entry has index {index} and term {term} in term {last}")
    for entry in message.entries:
        index += 1
        if entry.index != index or not max(term, 1) <= entry.term <= last:
            raise BadMessage(f"entry {entry.index} of term {entry.term} does not follow {index - 1} of term {term}")
        term = entry.term
        if entry.kind is EntryKind.CHANGE:
            decode_change(entry.data)


def entry_bytes(entry: Entry) -> int:
    """Returns an entry's size as the limits in bytes count it."""
    return len(entry.data) + ENTRY_OVERHEAD_BYTES


def make_change(term: Term, index: Index, change: MembershipChange) -> Entry:
    """Returns the entry of a change."""
    return Entry(term, index, EntryKind.CHANGE, encode_change(change))
