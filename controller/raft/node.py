"""What a node is whatever its role: identity, term, vote, log, members, and what it has to say."""

from controller.raft.log import Log
from controller.raft.membership import Membership
from controller.raft.messages import NOBODY, HardState, Message, Term
from controller.raft.ready import ReadState
from controller.raft.settings import Settings
from controller.raft.storage import Storage

__all__ = ["Node"]


class Node:
    """The state that all roles share. Only `Raft` changes term, vote and leader."""

    def __init__(self, node_id: int, storage: Storage, settings: Settings) -> None:
        hard = storage.hard_state()
        self.id = node_id
        self.storage = storage
        self.settings = settings
        self.log = Log(storage, settings)
        self.term: Term = hard.term
        self.vote = hard.vote  # in this term
        self.leader = NOBODY  # of this term
        self.told: Membership | None = None  # what the driver was told
        self.early: list[Message] = []  # may leave before what is new is on disk
        self.outbox: list[Message] = []  # may not
        self.reads: list[ReadState] = []  # to be handed out
        self.saved = hard  # the hard state on disk

    def hard_state(self) -> HardState:
        """What is not to be forgotten."""
        return HardState(term=self.term, vote=self.vote, commit=self.log.committed)

    @property
    def membership(self) -> Membership:
        """The members, as the log has them; not all of it may be committed."""
        return self.log.history.newest

    def may_lead(self) -> bool:
        """Whether this node may be elected: until its removal is committed, it may be needed (thesis, 4.2.2)."""
        return self.id in self.membership.voters or self.id in self.log.history.at(self.log.committed).voters
