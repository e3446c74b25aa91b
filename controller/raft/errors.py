"""Errors for inputs that the Raft core refuses, and for failures that its storage finds."""

from controller.api.client import ControllerDamaged, ControllerError


class RaftError(ControllerError):
    """The root of these errors."""


class BadMessage(RaftError):
    """Bytes that are no message, or a message that no correct peer sends. Nothing has been changed by it."""


class NotLeader(RaftError):
    """Raised by nodes that do not lead. `leader` is the node believed to lead; None when none is known."""

    def __init__(self, leader: int | None) -> None:
        super().__init__("no leader is known" if leader is None else f"the leader is controller {leader}")
        self.leader = leader


class ProposalDropped(RaftError):
    """Raised when too much is in flight, or the leadership is handed over. Nothing is done; a retry may succeed."""


class ProposalTooLarge(RaftError):
    """A proposal has more bytes than one may have, and always will."""


class ChangeRefused(RaftError):
    """The membership cannot be changed like this, or not now."""


class TransferRefused(RaftError):
    """The leadership cannot go to that node."""


class Compacted(RaftError):
    """The log does not hold these entries any more; the snapshot replaces them."""


class WentBack(RaftError):
    """Raised when this node lacks entries that it acknowledged: its directory is an older copy. It must not vote."""


class StorageFailed(RaftError):
    """The storage has not kept an entry that it was given. The node must stop: its messages would rely on that."""


class StorageFull(StorageFailed):
    """Raised when the disk has no room. The same `save` may succeed later."""


class StorageDamaged(StorageFailed, ControllerDamaged):
    """The storage's contents cannot be read. The node must come back with an empty directory, as another one."""
