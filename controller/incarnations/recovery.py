"""Making a cluster of the one controller that is left, when a majority of them is lost for good.

Commands that the lost controllers had committed, and this one lacks, cannot be known. So the history after the recovery
is kept apart from the one before: indexes and terms go on far beyond those that were used, so clients that have seen
more are not taken back; queue numbers and epochs too; and the metadata has another generation, by which controllers of
before are refused.
"""

from pathlib import Path

import msgspec

from controller.api.client import ControllerDamaged, ControllerError, Member
from controller.api.commands import decode_command
from controller.disk.migration import RAFT
from controller.metadata.state import MetadataState
from controller.raft import EntryKind, HardState, Membership, RaftMember, Ready, Snapshot, decode_change
from controller.raft.lmdb_storage import LmdbStorage, new_incarnation

RECOVERED_INDEXES = 1 << 40  # indexes left out, for entries that were committed and are lost
RECOVERED_TERMS = 1 << 20
READ_BYTES = 16 << 20  # of entries at a time


class DirectoryContent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a controller's directory. Of two, the one with the greater (last_term, last_index) knows more."""

    id: int
    cluster: str
    last_term: int
    last_index: int
    topics: int
    groups: int
    controllers: tuple[int, ...]


class StoppedController:
    """The directory of a controller that is stopped.

    Raises `StorageFailed`: it is not stopped, `ControllerError`: there is none, `ControllerDamaged`, OSError.
    """

    def __init__(self, directory: Path, node_id: int) -> None:
        if not (directory / RAFT / "data.mdb").exists():
            raise ControllerError(
                f"{directory} is no controller's directory: name that of the controller to recover from"
            )
        self._id = node_id
        self._storage = LmdbStorage.open(directory / RAFT, node_id)
        try:
            self._state, self._membership = self._replayed()
        except BaseException:
            self._storage.close()
            raise

    def close(self) -> None:
        """Leaves the directory."""
        self._storage.close()

    @property
    def found(self) -> DirectoryContent:
        """Returns the content that there is to go on from."""
        storage, state = self._storage, self._state
        return DirectoryContent(
            id=self._id,
            cluster=state.cluster,
            last_term=storage.term(storage.last_index()),
            last_index=storage.last_index(),
            topics=len(state.topics),
            groups=len(state.groups),
            controllers=self._membership.ids,
        )

    def recover(self, address: str, node: str) -> None:
        """Becomes the only controller, in a new incarnation, with all that is here. Raises `StorageFailed`."""
        storage, incarnation = self._storage, new_incarnation()
        term = storage.hard_state().term + RECOVERED_TERMS
        index = storage.last_index() + RECOVERED_INDEXES
        self._state.recover(Member(id=self._id, node=node, address=address))
        me = RaftMember(id=self._id, address=address, incarnation=incarnation)
        snapshot = Snapshot(index=index, term=term, membership=Membership.of(me), data=self._state.snapshot())
        storage.save(Ready(snapshot=snapshot, hard_state=HardState(term=term, commit=index), must_sync=True))
        storage.renew(incarnation)  # stopped before this, it is no member, and is recovered once more

    def _replayed(self) -> tuple[MetadataState, Membership]:
        """Returns all that is in the log, known to be committed or not: any acknowledged command here is among it."""
        storage = self._storage
        snapshot = storage.snapshot()
        if not snapshot.index:
            raise ControllerError("the directory is empty: there is nothing to recover from it")
        state = MetadataState.restore(snapshot.data) if snapshot.data else MetadataState()
        membership = snapshot.membership
        low, end = snapshot.index + 1, storage.last_index() + 1
        while low < end:
            for entry in storage.entries(low, end, READ_BYTES):
                low = entry.index + 1
                if entry.kind is EntryKind.CHANGE:
                    membership = membership.apply(decode_change(entry.data))
                elif entry.kind is EntryKind.COMMAND:
                    _apply(state, entry.data)
        return state, membership


def _apply(state: MetadataState, data: bytes) -> None:
    try:
        state.apply(decode_command(data))
    except ControllerDamaged:
        raise
    except ControllerError:
        return  # refused when it was applied, too
