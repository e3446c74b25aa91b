"""The commands of the state machine: values that carry everything they need, the time and the limits included.

Each one names what it was decided on. Applied again it changes nothing and answers the same; applied too late it is
refused.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from controller.api.client import ControllerDamaged, ControllerError, GroupChanges, GroupConfig, Member, Replica, User

__all__ = [
    "AddGroup",
    "AlterSyncSet",
    "CloseGroup",
    "CloseQueue",
    "Command",
    "ConfigureGroup",
    "ConfigureTopic",
    "CreateTopic",
    "DeleteMember",
    "DeleteTopic",
    "DeleteUser",
    "DropQueue",
    "ElectMaster",
    "ForgetQueue",
    "ForgetReplica",
    "GrowTopic",
    "LogEnd",
    "MoveQueue",
    "NameCluster",
    "NameQueue",
    "RaiseQueues",
    "RegisterReplica",
    "RemoveGroup",
    "RetireReplica",
    "SetMember",
    "SetUser",
    "decode_command",
    "encode_command",
]


class CreateTopic(msgspec.Struct, frozen=True, kw_only=True, tag="create_topic"):
    """Create a topic with so many queues, numbered from the next free number on. Answer: `Topic`.

    It is refused to a `creator` who has made `creator_topics_max` that are there. "" is nobody, and 0 no limit.
    """

    name: str
    queues: int
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    topics_max: int
    queues_max: int
    time_ms: int
    creator: str = ""
    creator_topics_max: int = 0


class ConfigureTopic(msgspec.Struct, frozen=True, kw_only=True, tag="configure_topic"):
    """Replace a topic's configuration. Answer: `Topic`."""

    name: str
    config: Mapping[str, Any]
    time_ms: int


class DeleteTopic(msgspec.Struct, frozen=True, kw_only=True, tag="delete_topic"):
    """Forget a topic. Its queue numbers are never given again. Answer: None."""

    name: str
    time_ms: int


class GrowTopic(msgspec.Struct, frozen=True, kw_only=True, tag="grow_topic"):
    """Open queues until a topic has so many to write to, in `group` or where there is least. Answer: `Topic`."""

    name: str
    queues: int
    group: int | None = None
    queues_max: int
    time_ms: int


class CloseQueue(msgspec.Struct, frozen=True, kw_only=True, tag="close_queue"):
    """Write no more to a topic's queue. Answer: `Topic`."""

    number: int
    time_ms: int


class MoveQueue(msgspec.Struct, frozen=True, kw_only=True, tag="move_queue"):
    """Close a topic's queue, and open one of `group` in its place. Answer: `Topic`."""

    number: int
    group: int
    queues_max: int
    time_ms: int


class DropQueue(msgspec.Struct, frozen=True, kw_only=True, tag="drop_queue"):
    """Forget a closed queue. Answer: None."""

    number: int
    time_ms: int


class NameQueue(msgspec.Struct, frozen=True, kw_only=True, tag="name_queue"):
    """Give a named queue a number. Answer: `NamedQueue`."""

    name: str
    queues_max: int
    time_ms: int


class ForgetQueue(msgspec.Struct, frozen=True, kw_only=True, tag="forget_queue"):
    """Forget a named queue. Answer: None."""

    name: str
    time_ms: int


class AddGroup(msgspec.Struct, frozen=True, kw_only=True, tag="add_group"):
    """Add a store group. Answer: `Group`."""

    number: int
    config: GroupConfig
    time_ms: int


class ConfigureGroup(msgspec.Struct, frozen=True, kw_only=True, tag="configure_group"):
    """Change some of a group's settings; `config` holds these. Answer: `Group`.

    Older versions named all of them, which says the same as long as nobody else changes one.
    """

    number: int
    config: GroupChanges
    time_ms: int


class CloseGroup(msgspec.Struct, frozen=True, kw_only=True, tag="close_group"):
    """Place no new queues on a group, or place them again. Answer: `Group`."""

    number: int
    closed: bool
    time_ms: int


class RemoveGroup(msgspec.Struct, frozen=True, kw_only=True, tag="remove_group"):
    """Forget a group without queues. Answer: None."""

    number: int
    time_ms: int


class RegisterReplica(msgspec.Struct, frozen=True, kw_only=True, tag="register_replica"):
    """Give a replica the next id by compare-and-set, or replace what is known of the one with its check code.

    Answer: `Group`.
    """

    group: int
    replica: Replica
    time_ms: int


class ForgetReplica(msgspec.Struct, frozen=True, kw_only=True, tag="forget_replica"):
    """Forget a replica outside the SyncStateSet. Answer: `Group`."""

    group: int
    replica: int
    time_ms: int


class RetireReplica(msgspec.Struct, frozen=True, kw_only=True, tag="retire_replica"):
    """Forget a replica that is not master, and take it out of the SyncStateSet if it is in there. Answer: `Group`.

    `forced`: also where fewer than `min_in_sync` are left, so that nothing is written until another one is in sync.
    """

    group: int
    replica: int
    forced: bool = False
    time_ms: int


class AlterSyncSet(msgspec.Struct, frozen=True, kw_only=True, tag="alter_sync_set"):
    """Change the SyncStateSet, as its master, knowing these epochs. Answer: `Group`."""

    group: int
    master: int
    master_epoch: int
    sync_epoch: int
    new_set: tuple[int, ...]
    time_ms: int


class LogEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a replica's log on its disk when it knew of `master_epoch` and took nothing of older masters.

    `log_epoch` is the newest epoch that begins there or before: a log that is only longer, by frames of an older epoch,
    may lack what was acknowledged in the newer one (Raft, 5.4.1 and 5.4.2).
    """

    replica: int
    master_epoch: int
    log_epoch: int
    log_end: int


class ElectMaster(msgspec.Struct, frozen=True, kw_only=True, tag="elect_master"):
    """Make a replica master, or None of them, as decided on these epochs. Answer: `Group`.

    Where a majority acknowledges, `ends` are the logs that the decision knew, and the epoch is one without a master: a
    replica that knows of it takes nothing more of the master before. `unclean` says that the risk is known, `accepted`
    that an operator takes it where the group's configuration does not.
    """

    group: int
    candidate: int | None
    master_epoch: int
    sync_epoch: int
    ends: tuple[LogEnd, ...] = ()
    unclean: bool = False
    accepted: bool = False
    time_ms: int


class NameCluster(msgspec.Struct, frozen=True, kw_only=True, tag="name_cluster"):
    """Give the cluster its id, unless it has one: the first stays. Answer: None.

    Logs of groups that had a master before, by an older version, are named after it.
    """

    id: str
    time_ms: int


class SetUser(msgspec.Struct, frozen=True, kw_only=True, tag="set_user"):
    """Add or replace a user. Answer: `User`."""

    user: User
    time_ms: int


class DeleteUser(msgspec.Struct, frozen=True, kw_only=True, tag="delete_user"):
    """Forget a user. Answer: None."""

    name: str
    time_ms: int


class SetMember(msgspec.Struct, frozen=True, kw_only=True, tag="set_member"):
    """Say where a controller is. Answer: `Member`."""

    member: Member
    time_ms: int


class DeleteMember(msgspec.Struct, frozen=True, kw_only=True, tag="delete_member"):
    """Forget where a controller was. Answer: None."""

    id: int
    time_ms: int


class RaiseQueues(msgspec.Struct, frozen=True, kw_only=True, tag="raise_queues"):
    """Give no queue number below this one any more: stores know of some that this metadata has lost. Answer: None.

    With 0 it does nothing but begin the digest of what follows (see `MetadataState.chain`).
    """

    next_queue: int
    time_ms: int


Command: TypeAlias = (
    CreateTopic
    | ConfigureTopic
    | DeleteTopic
    | GrowTopic
    | CloseQueue
    | MoveQueue
    | DropQueue
    | NameQueue
    | ForgetQueue
    | AddGroup
    | ConfigureGroup
    | CloseGroup
    | RemoveGroup
    | RegisterReplica
    | ForgetReplica
    | RetireReplica
    | AlterSyncSet
    | ElectMaster
    | NameCluster
    | RaiseQueues
    | SetUser
    | DeleteUser
    | SetMember
    | DeleteMember
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Command).decode


def encode_command(command: Command) -> bytes:
    """A command as bytes. Raises `ControllerError`: a configuration with values that no log can hold."""
    try:
        return _encode(command)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ControllerError(f"a command that cannot be written: {error}") from error


def decode_command(data: bytes) -> Command:
    """The command of these bytes. Raises `ControllerDamaged`."""
    try:
        found: Command = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ControllerDamaged(f"a command that cannot be read: {error}") from error
    return found
