"""The commands of the state machine: values that carry everything they need, the time and the limits included.

Each one names the epochs that it was decided on. Applied again it changes nothing and answers the same; applied too
late it is refused. A new command is a class here, and a method of the table that applies it (`controller.metadata`).

The client that sends a command sets its time and the limits of its configuration (`filled`): callers leave them out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Union

import msgspec

from controller.api.client import (
    A_co,
    ControllerDamaged,
    ControllerError,
    ControllerRequest,
    Group,
    GroupChanges,
    GroupConfig,
    Member,
    NamedQueue,
    Replica,
    Topic,
    User,
)


class ClusterLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on what a cluster may hold."""

    topics_max: int = 10_000
    topics_per_creator_max: int = 1_000  # of `topics_max`; 0: no share is smaller than that
    queues_max: int = 1_000_000
    default_queues: int = 8  # of a topic created without a number


class Command(ControllerRequest[A_co], frozen=True, kw_only=True):
    """A request that the log holds and the state machine applies."""

    def filled(self, limits: ClusterLimits, time_ms: int) -> Self:
        """Returns the command with the time and the limits that it carries."""
        values = {
            "time_ms": time_ms,
            "topics_max": limits.topics_max,
            "creator_topics_max": limits.topics_per_creator_max,
            "queues_max": limits.queues_max,
        }
        return msgspec.structs.replace(
            self, **{name: value for name, value in values.items() if name in self.__struct_fields__}
        )


class CreateTopic(Command[Topic], frozen=True, kw_only=True, tag="create_topic"):
    """Creates a topic with so many queues, numbered from the next free number on, or agrees with the one that exists.

    The queues are dealt to the groups in turn, the least loaded first. A topic is refused to a `creator` that has made
    `creator_topics_max` of those there are; "" is the operator, who has no share, and 0 no limit. Raises `TopicExists`
    for one with other queues or another configuration, `TopicLimit`.
    """

    name: str
    queues: int = 0  # 0: as many as the client's configuration says
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    topics_max: int = 0
    queues_max: int = 0
    time_ms: int = 0
    creator: str = ""
    creator_topics_max: int = 0

    def filled(self, limits: ClusterLimits, time_ms: int) -> Self:
        """Returns the command with the time and the limits that it carries, and a number of queues."""
        filled = super().filled(limits, time_ms)
        return filled if self.queues else msgspec.structs.replace(filled, queues=limits.default_queues)


class ConfigureTopic(Command[Topic], frozen=True, kw_only=True, tag="configure_topic"):
    """Replaces a topic's configuration. Raises `UnknownTopic`."""

    name: str
    config: Mapping[str, Any]
    time_ms: int = 0


class DeleteTopic(Command[None], frozen=True, kw_only=True, tag="delete_topic"):
    """Forgets a topic and drops its queues, whose numbers are never given again. Raises `UnknownTopic`."""

    name: str
    time_ms: int = 0


class GrowTopic(Command[Topic], frozen=True, kw_only=True, tag="grow_topic"):
    """Opens queues until a topic has so many to write to, in `group` or where there is least.

    Raises `UnknownTopic`, `UnknownGroup`, `TopicLimit`.
    """

    name: str
    queues: int
    group: int | None = None
    queues_max: int = 0
    time_ms: int = 0


class CloseQueue(Command[Topic], frozen=True, kw_only=True, tag="close_queue"):
    """Closes a topic's queue to writes. Raises `UnknownQueue`, and `QueueClosed` for the topic's last open queue."""

    number: int
    time_ms: int = 0


class MoveQueue(Command[Topic], frozen=True, kw_only=True, tag="move_queue"):
    """Closes a topic's queue, and opens one of `group` in its place.

    Raises `UnknownQueue`, `UnknownGroup`, `QueueClosed`.
    """

    number: int
    group: int
    queues_max: int = 0
    time_ms: int = 0


class DropQueue(Command[None], frozen=True, kw_only=True, tag="drop_queue"):
    """Forgets a closed queue. Its number is never given again. Raises `QueueClosed` while it is open."""

    number: int
    time_ms: int = 0


class NameQueue(Command[NamedQueue], frozen=True, kw_only=True, omit_defaults=True, tag="name_queue"):
    """Gives a named queue a number, unless it has one, in the store group given, if any. Raises `TopicLimit`."""

    name: str
    queues_max: int = 0
    time_ms: int = 0
    group: int | None = None


class ForgetQueue(Command[None], frozen=True, kw_only=True, omit_defaults=True, tag="forget_queue"):
    """Forgets a named queue, unless it has another number than the one given, if any. It is never given again."""

    name: str
    time_ms: int = 0
    number: int = 0


class AddGroup(Command[Group], frozen=True, kw_only=True, tag="add_group"):
    """Adds a store group without replicas. Raises `GroupExists` unless it is there with this configuration."""

    number: int
    config: GroupConfig
    time_ms: int = 0


class ConfigureGroup(Command[Group], frozen=True, kw_only=True, tag="configure_group"):
    """Changes the settings of a store group that `config` holds.

    Raises `UnknownGroup`, and `NoMaster` when `acknowledge` changes and the group has no master.

    Older versions named all of them, which has the same effect as long as no other command changes one.
    """

    number: int
    config: GroupChanges
    time_ms: int = 0


class CloseGroup(Command[Group], frozen=True, kw_only=True, tag="close_group"):
    """Places no new queues on a group, or places them again. Raises `UnknownGroup`."""

    number: int
    closed: bool = True
    time_ms: int = 0


class RemoveGroup(Command[None], frozen=True, kw_only=True, tag="remove_group"):
    """Forgets a group without queues. Its number is never given again. Raises `GroupNotEmpty`."""

    number: int
    time_ms: int = 0


class RegisterReplica(Command[Group], frozen=True, kw_only=True, tag="register_replica"):
    """Gives a replica the next id by compare-and-set, or replaces what is known of the one with its check code.

    A new node writes the group's next id to a temporary file with a check code of its own making, registers, and
    renames the file. After a crash in between it registers again by that file: the id is its own, or, with another
    check code, another replica's, and then the file is worthless. Raises `UnknownGroup`, `ReplicaIdTaken`,
    `ReplicaElsewhere`, `WrongLog`, and `ReplicaInSync` while it cannot become a learner.
    """

    group: int
    replica: Replica
    time_ms: int = 0


class ForgetReplica(Command[Group], frozen=True, kw_only=True, tag="forget_replica"):
    """Forgets a replica outside the SyncStateSet, whose id is never given again.

    Raises `UnknownGroup`, `ReplicaInSync`.
    """

    group: int
    replica: int
    time_ms: int = 0


class RetireReplica(Command[Group], frozen=True, kw_only=True, tag="retire_replica"):
    """Forgets a replica that is not master, and takes it out of the SyncStateSet if it is in there.

    `forced`: also where fewer than `min_in_sync` are left, so that nothing is written until another one is in sync.
    """

    group: int
    replica: int
    forced: bool = False
    time_ms: int = 0


class AlterSyncSet(Command[Group], frozen=True, kw_only=True, tag="alter_sync_set"):
    """Changes the SyncStateSet, as its master, knowing these epochs.

    Raises `UnknownGroup`, `StaleEpoch`, `UnknownReplica`, and `ControllerError` for a set without the master, or one
    that differs by more than one member where a majority acknowledges.
    """

    group: int
    master: int
    master_epoch: int
    sync_epoch: int
    new_set: tuple[int, ...]
    time_ms: int = 0


class LogEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a replica's log on its disk when it knew of `master_epoch` and took nothing of older masters.

    `log_epoch` is the newest epoch that begins there or before: a log that is only longer, by frames of an older epoch,
    may lack writes acknowledged in the newer one (Raft, 5.4.1 and 5.4.2).
    """

    replica: int
    master_epoch: int
    log_epoch: int
    log_end: int


class ElectMaster(Command[Group], frozen=True, kw_only=True, tag="elect_master"):
    """Makes a replica master, or None of them, as decided on these epochs.

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
    time_ms: int = 0


class NameCluster(Command[None], frozen=True, kw_only=True, tag="name_cluster"):
    """Gives the cluster its id, unless it has one: the first stays.

    Logs of groups that had a master before, by an older version, are named after it.
    """

    id: str
    time_ms: int = 0


class SetUser(Command[User], frozen=True, kw_only=True, tag="set_user"):
    """Adds or replaces a user."""

    user: User
    time_ms: int = 0


class DeleteUser(Command[None], frozen=True, kw_only=True, tag="delete_user"):
    """Forgets a user."""

    name: str
    time_ms: int = 0


class SetMember(Command[Member], frozen=True, kw_only=True, tag="set_member"):
    """Sets the address of a controller. Whether it votes is Raft's to say."""

    member: Member
    time_ms: int = 0


class DeleteMember(Command[None], frozen=True, kw_only=True, tag="delete_member"):
    """Forgets where a controller was."""

    id: int
    time_ms: int = 0


class RaiseQueues(Command[None], frozen=True, kw_only=True, tag="raise_queues"):
    """Gives no queue number below this one any more: stores know of some that this metadata has lost.

    With 0 it only begins the digest of the commands that follow (see `MetadataState.chain`).
    """

    next_queue: int
    time_ms: int = 0


COMMANDS: Sequence[type[Command[Any]]] = tuple(Command.__subclasses__())  # the commands that the log may hold

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Command[Any]] = msgspec.msgpack.Decoder(Union[COMMANDS]).decode  # noqa: UP007 - a table


def encode_command(command: Command[Any]) -> bytes:
    """Returns a command as bytes. Raises `ControllerError` for a configuration with values that no log can hold."""
    try:
        return _encode(command)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ControllerError(f"a command cannot be encoded: {error}") from error


def decode_command(data: bytes) -> Command[Any]:
    """Returns the command of these bytes. Raises `ControllerDamaged`."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ControllerDamaged(f"a command cannot be decoded: {error}") from error
