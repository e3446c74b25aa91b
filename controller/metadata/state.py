"""The metadata of a cluster as a deterministic state machine.

Commands are values that carry everything they need, their time included; `MetadataState.apply` turns one command into
an answer or a `ControllerError` and never looks at a clock, at chance, or at anything but itself. Every command is
idempotent. Replicas that apply the same commands in the same order hold equal snapshots.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from controller.api.client import (
    HOME_GROUP,
    ControllerDamaged,
    ControllerError,
    Group,
    Member,
    NamedQueue,
    Topic,
    TopicLimit,
    UnknownGroup,
    User,
)
from controller.api.commands import Command, DeleteMember, DeleteUser, NameCluster, RaiseQueues, SetMember, SetUser
from controller.api.names import check_name, check_text
from controller.metadata.groups import GroupTable
from controller.metadata.placement import takes_queues
from controller.metadata.plans import Change, Plans
from controller.metadata.topics import TopicTable

USERS_MAX = 10_000  # users that may connect
USER_NAME_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 1024  # of a hash
RIGHTS_BYTES_MAX = 64 * 1024
MEMBERS_MAX = 16  # controllers, those included that are to replace others
ADDRESS_BYTES_MAX = 255
CLUSTER_BYTES_MAX = 64  # of its id
QUEUE_NUMBER_MAX = (1 << 32) - 1  # 32 bits in every row of a frame
DIGEST_BYTES = 16
RECOVERED_QUEUES = 1 << 24  # numbers of queues left out after a recovery, for those that were given and are lost
RECOVERED_EPOCHS = 10_000  # likewise, epochs of each group
SNAPSHOT_VERSION = 3  # 1 had neither groups nor users, and did not say its number; 2 did not name the cluster

T = TypeVar("T")


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    next_queue: int
    topics: tuple[Topic, ...]
    named: tuple[NamedQueue, ...]
    groups: tuple[Group, ...] = ()
    removed_groups: tuple[int, ...] = ()
    users: tuple[User, ...] = ()
    members: tuple[Member, ...] = ()
    removed_members: tuple[int, ...] = ()
    cluster: str = ""
    dropped: tuple[tuple[int, int], ...] = ()
    generation: int = 0
    digest: bytes = b""


class MetadataState:
    """Topics, queues and the numbers given to them; store groups; users; where the controllers are; the cluster's id.

    The dictionaries are for reading.
    """

    def __init__(self) -> None:
        self._topics = TopicTable(self._placeable)
        self._groups = GroupTable(self._topics.lies_in, self._log_id)
        self.topics: Mapping[str, Topic] = self._topics.topics
        self.named: Mapping[str, NamedQueue] = self._topics.named
        self.owner: Mapping[int, str] = self._topics.owner  # queue number -> topic
        self.group_of: Mapping[int, int] = self._topics.group_of  # queue number -> group
        self.dropped: Mapping[int, int] = self._topics.dropped  # queue number -> group it was in, the newest last
        self.groups: Mapping[int, Group] = self._groups.groups
        self.users: dict[str, User] = {}
        self.members: dict[int, Member] = {}
        self.removed_members: dict[int, None] = {}  # ids that are never given again (see raft.Change)
        self.cluster = ""  # empty: it has no id yet
        self.digest = b""  # of all commands since one that began it, refused ones too; empty: none has
        self.generation = 0  # how often the metadata was recovered from one controller
        self.plans: Plans = {
            **self._topics.plans,
            **self._groups.plans,
            SetUser: self._set_user,
            DeleteUser: self._delete_user,
            SetMember: self._set_member,
            DeleteMember: self._delete_member,
            NameCluster: self._name_cluster,
            RaiseQueues: self._raise_queues,
        }

    @property
    def next_queue(self) -> int:
        """Greater than every queue number ever given."""
        return self._topics.next_queue

    def chain(self, command: bytes) -> None:
        """Counts a command that is applied next into the digest, which tells two histories apart.

        Counting begins with a command that says so, the same one for everybody: snapshots of older versions have none.
        """
        if self.digest:
            self.digest = blake2b(self.digest + command, digest_size=DIGEST_BYTES).digest()

    def _begin_digest(self) -> None:
        self.digest = self.digest or blake2b(self.cluster.encode(), digest_size=DIGEST_BYTES).digest()

    def check(self, command: Command[Any]) -> None:
        """Checks that a command can be applied now. Raises `ControllerError`, as `apply` would."""
        self.plans[type(command)](command)

    def apply(self, command: Command[T]) -> T:
        """Applies one command and returns its answer. Raises `ControllerError`, having changed nothing."""
        change: Change[T] = self.plans[type(command)](command)
        return change()

    def snapshot(self) -> bytes:
        """Returns the whole state, equal for equal states."""
        return msgspec.msgpack.encode(
            _Snapshot(
                version=SNAPSHOT_VERSION,
                next_queue=self.next_queue,
                topics=_by_key(self.topics),
                named=_by_key(self.named),
                groups=_by_key(self.groups),
                removed_groups=tuple(sorted(self._groups.removed)),
                users=_by_key(self.users),
                members=_by_key(self.members),
                removed_members=tuple(sorted(self.removed_members)),
                cluster=self.cluster,
                dropped=tuple(self.dropped.items()),
                generation=self.generation,
                digest=self.digest,
            )
        )

    def recover(self, member: Member) -> None:
        """Continues from the state of one controller, though others may have known more (docs/decisions/0033).

        Numbers are given from far beyond those that were known. Each group elects its master as a new one does, when
        all of its replicas send heartbeats: the replicas in sync since are unknown.
        """
        self.generation += 1
        self.members = {member.id: member}
        self._topics.next_queue = min(self._topics.next_queue + RECOVERED_QUEUES, QUEUE_NUMBER_MAX)
        for number, group in self.groups.items():
            self._groups.groups[number] = msgspec.structs.replace(
                group,
                master=None,
                master_epoch=group.master_epoch + RECOVERED_EPOCHS,
                sync_set=(),
                sync_epoch=group.sync_epoch + RECOVERED_EPOCHS,
            )

    @classmethod
    def restore(cls, snapshot: bytes) -> "MetadataState":
        """Returns the state a snapshot was taken of, by this version or an older one. Raises `ControllerDamaged`.

        Queues placed before there were store groups lie in the home group.
        """
        try:
            held = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ControllerDamaged(f"the snapshot of the metadata cannot be read: {error}") from error
        if held.version > SNAPSHOT_VERSION:
            raise ControllerDamaged(
                f"the metadata has format {held.version}: start the newer version of Headgate that wrote it"
            )
        state = cls()
        for topic in held.topics:
            state._topics.put(topic)
        for queue in held.named:
            state._topics.put_named(queue)
        state._topics.next_queue = held.next_queue
        state._groups.groups.update((group.number, group) for group in held.groups)
        state._groups.removed.update(dict.fromkeys(held.removed_groups))
        state.users = {user.name: user for user in held.users}
        state.members = {member.id: member for member in held.members}
        state.removed_members = dict.fromkeys(held.removed_members)
        state.cluster = held.cluster
        state._topics.dropped.update(held.dropped)
        state.generation, state.digest = held.generation, held.digest
        return state

    def _log_id(self, group: int) -> str:
        """Returns an id for the log of a group: their numbers are given once in a cluster."""
        return f"{self.cluster}.{group}" if self.cluster else ""

    def _placeable(self, group: int | None) -> Sequence[int]:
        """Returns the groups that take new queues, or the one asked for. Raises `UnknownGroup`, `TopicLimit`."""
        if group is None:
            return takes_queues(_by_key(self.groups))
        there = self.groups.get(group)
        if there is None and (group != HOME_GROUP or self.groups):
            raise UnknownGroup(f"there is no store group {group}")
        if there is not None and there.closed:
            raise TopicLimit(f"store group {group} takes no new queues: it is closed")
        return (group,)

    # ---- plans of users, controllers and the cluster

    def _set_user(self, command: SetUser) -> Change[User]:
        user = command.user
        check_name(user.name, USER_NAME_BYTES_MAX)
        check_text(user.password, PASSWORD_BYTES_MAX, "a password's hash")
        try:
            size = len(msgspec.msgpack.encode(user.rights))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise ControllerError(f"the rights of a user cannot be encoded: {error}") from error
        if size > RIGHTS_BYTES_MAX:
            raise ControllerError(f"a user's rights have at most {RIGHTS_BYTES_MAX} bytes, not {size}")
        if user.name not in self.users and len(self.users) >= USERS_MAX:
            raise ControllerError(f"there are {len(self.users)} users, and no more are allowed")

        def change() -> User:
            self.users[user.name] = user
            return user

        return change

    def _delete_user(self, command: DeleteUser) -> Change[None]:
        def change() -> None:
            self.users.pop(command.name, None)

        return change

    def _set_member(self, command: SetMember) -> Change[Member]:
        member = command.member
        check_name(member.node, ADDRESS_BYTES_MAX)
        check_name(member.address, ADDRESS_BYTES_MAX)
        if member.id < 1:
            raise ControllerError(f"a controller's id is 1 or more, not {member.id}")
        if member.id in self.removed_members:
            raise ControllerError(f"there was a controller {member.id}: its id is not given again")
        if member.id not in self.members and len(self.members) >= MEMBERS_MAX:
            raise ControllerError(f"there are {len(self.members)} controllers, and no more are allowed")

        def change() -> Member:
            self.members[member.id] = member
            return member

        return change

    def _delete_member(self, command: DeleteMember) -> Change[None]:
        def change() -> None:
            if self.members.pop(command.id, None) is not None:
                self.removed_members[command.id] = None

        return change

    def _name_cluster(self, command: NameCluster) -> Change[None]:
        check_name(command.id, CLUSTER_BYTES_MAX)

        def change() -> None:
            if not self.cluster:
                self.cluster = command.id
                self._groups.name_logs()
            self._begin_digest()

        return change

    def _raise_queues(self, command: RaiseQueues) -> Change[None]:
        if not 0 <= command.next_queue <= QUEUE_NUMBER_MAX:
            raise ControllerError(f"a queue's number has 32 bits: {command.next_queue}")

        def change() -> None:
            self._topics.next_queue = max(self._topics.next_queue, command.next_queue)
            self._begin_digest()

        return change


def _by_key(table: "Mapping[Any, Any]") -> tuple[Any, ...]:
    return tuple(table[key] for key in sorted(table))
