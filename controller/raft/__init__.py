"""Agreement on a log: a Raft core without input and output, and the storage it is driven over.

A driver's turn, over a storage that may block (so `save` runs in a thread, and messages may be stepped meanwhile):

    while (ready := raft.ready()) is not None:
        send(ready.early)
        storage.save(ready)
        send(ready.messages)
        if ready.snapshot is not None:
            restore the state machine from ready.snapshot.data
        for entry in ready.committed:
            apply entry.data, where entry.kind is EntryKind.COMMAND
        answer the reads whose index is applied
        raft.advance(ready)

and `tick` at a steady pace, `step` for every message that arrives. A `save` that fails ends the node.

Imported by: disk, incarnations, metadata, node, wire.
Imports: api, store.disk.
"""

from controller.raft.core import Raft
from controller.raft.errors import (
    BadMessage,
    ChangeRefused,
    Compacted,
    NotLeader,
    ProposalDropped,
    ProposalTooLarge,
    RaftError,
    StorageDamaged,
    StorageFailed,
    StorageFull,
    TransferRefused,
    WentBack,
)
from controller.raft.membership import ChangeKind, Membership, MembershipChange, RaftMember, decode_change
from controller.raft.messages import Entry, EntryId, EntryKind, HardState, Message, Snapshot, decode, encode
from controller.raft.ready import Compaction, LastReport, RaftStatus, ReadState, Ready, Role
from controller.raft.settings import RaftSettings
from controller.raft.storage import MemoryStorage, Storage, first_snapshot

__all__ = [
    "BadMessage",
    "ChangeKind",
    "ChangeRefused",
    "Compacted",
    "Compaction",
    "Entry",
    "EntryId",
    "EntryKind",
    "HardState",
    "LastReport",
    "Membership",
    "MembershipChange",
    "MemoryStorage",
    "Message",
    "NotLeader",
    "ProposalDropped",
    "ProposalTooLarge",
    "Raft",
    "RaftError",
    "RaftMember",
    "RaftSettings",
    "RaftStatus",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "Storage",
    "StorageDamaged",
    "StorageFailed",
    "StorageFull",
    "TransferRefused",
    "WentBack",
    "decode",
    "decode_change",
    "encode",
    "first_snapshot",
]
