"""The work that the core hands to its driver."""

import enum

import msgspec

from controller.raft.membership import Membership
from controller.raft.messages import Entry, HardState, Index, Message, NodeId, Snapshot, Term
from controller.raft.progress import ProgressStatus


class Role(enum.Enum):
    """The roles of a node in its term (paper, 5.1; the pre-candidate: thesis, 9.6)."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ReadState(msgspec.Struct, frozen=True, kw_only=True):
    """A read may be served once the state machine has applied `index`. None: the leadership was lost, ask again."""

    context: bytes
    index: Index | None


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of our own to be kept, and the first entry to be kept with it."""

    snapshot: Snapshot
    first_index: Index


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Work to be done now, in the order of the fields; then `Raft.advance` is called with it.

    1. `early` may be sent at once, so that followers' disks work while the leader's does (thesis, 10.2.1).
    2. `Storage.save` keeps `hard_state`, `entries`, `snapshot` and `compaction`.
    3. `messages` are sent: they report entries that are now on disk.
    4. `snapshot` replaces the state machine; `committed` entries are applied, after it.
    5. `reads` wait for their index to be applied, and are answered.

    `membership` names the nodes that messages may go to from now on; not all of it may be committed. The first `Ready`
    has it, and each that comes with another one.

    Messages may be lost, doubled and put out of order at will.
    """

    membership: Membership | None = None
    early: tuple[Message, ...] = ()
    hard_state: HardState | None = None  # None: as it was
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    compaction: Compaction | None = None
    must_sync: bool = False  # False: this state may be lost until a later `Ready` is stored
    messages: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadState, ...] = ()


class LastReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's progress when it spoke last: its term, and the last entry acknowledged to that term's leader."""

    incarnation: str
    term: Term
    index: Index


class RaftStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it sees itself."""

    id: NodeId
    incarnation: str = ""
    fresh: bool = False  # it has never had to do with any cluster
    votes: bool = False  # it counts for majorities, and not another incarnation of its id
    role: Role
    term: Term
    vote: NodeId | None
    leader: NodeId | None
    first_index: Index
    last_index: Index
    last_term: Term = 0
    commit: Index
    applied: Index
    snapshot_index: Index
    membership: Membership
    transferee: NodeId | None = None
    progress: dict[int, ProgressStatus] = {}  # of the others, on a leader
