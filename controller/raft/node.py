"""A node's state, whatever its role: identity, term, vote, log, members and the messages it has to send."""

from controller.raft.log import Log
from controller.raft.membership import Membership
from controller.raft.messages import NOBODY, HardState, Index, Message, Term
from controller.raft.ready import ReadState
from controller.raft.settings import RaftSettings
from controller.raft.storage import Storage


class Node:
    """The state that all roles share. Only `Raft` changes term, vote and leader."""

    def __init__(self, node_id: int, storage: Storage, settings: RaftSettings) -> None:
        hard = storage.hard_state()
        self.id = node_id
        self.incarnation = storage.incarnation()  # empty: its id alone identifies it, in tests of other things
        self.legacy = storage.legacy()  # others may not know its incarnation yet
        self.proven = True  # False: whether the directory is the newest copy is not known yet, and so it has no vote
        self.floor: tuple[Term, Index] = (0, 0)  # a candidate whose log ends before this entry does not get its vote
        self.storage = storage
        self.settings = settings
        self.log = Log(storage, settings)
        self.term: Term = hard.term
        self.vote = hard.vote  # in this term
        self.leader = NOBODY  # of this term
        self.reported: Membership | None = None  # to the driver
        self.early: list[Message] = []  # may leave before new entries are on disk
        self.outbox: list[Message] = []  # may not
        self.reads: list[ReadState] = []  # to be handed out
        self.saved = hard  # the hard state on disk

    def hard_state(self) -> HardState:
        """Returns the state that must not be forgotten."""
        return HardState(term=self.term, vote=self.vote, commit=self.log.committed)

    @property
    def membership(self) -> Membership:
        """The members, as the log has them; not all of it may be committed."""
        return self.log.history.newest

    @property
    def votes(self) -> bool:
        """Returns whether this very node counts for majorities: its id may be another incarnation's."""
        return self.membership.votes(self.id, self.incarnation)

    def may_lead(self) -> bool:
        """Returns whether this node may be elected: it may be needed until its removal is committed (thesis 4.2.2)."""
        agreed = self.log.history.at(self.log.committed)
        named = self.votes or agreed.votes(self.id, self.incarnation)
        return named and self.trusts(self.log.last_term, self.log.last_index)

    def trusts(self, last_term: Term, last_index: Index) -> bool:
        """Returns whether a log that ends here may be voted for, given this node's possibly forgotten entries."""
        return self.proven and (last_term, last_index) >= self.floor
