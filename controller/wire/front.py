"""The half of a `ControllerClient` that is the same wherever commands go: reads of the state, calls made commands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from controller.api import commands
from controller.api.client import (
    HOME_GROUP,
    Group,
    GroupChanges,
    GroupConfig,
    Member,
    NamedQueue,
    Replica,
    Service,
    Topic,
    UnknownGroup,
    User,
)
from controller.api.commands import Command
from controller.complaints.messages import Report
from controller.metadata.state import Answer, MetadataState
from controller.wire.wire import AskService, Question

__all__ = ["Limits", "StateClient"]

_T = TypeVar("_T")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on what a cluster may hold."""

    topics_max: int = 10_000
    topics_per_creator_max: int = 1_000  # of `topics_max`; 0: no share is smaller than that
    queues_max: int = 1_000_000
    default_queues: int = 8  # of a topic created without a number


class StateClient:
    """Answers reads from a `MetadataState` in this process; `_command` is where its commands go."""

    def __init__(self, state: MetadataState, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._state = state
        self._limits = limits
        self._now_ms = now_ms
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_listener = 0

    async def _command(self, command: Command | Question) -> Answer:
        """Apply a command when it is safe, and return its answer. Raises `ControllerError`."""
        raise NotImplementedError

    async def _ask(self, command: Command | Question, answer: type[_T]) -> _T:
        found = await self._command(command)
        assert isinstance(found, answer)
        return found

    # ---- reads

    def topic(self, name: str) -> Topic | None:
        """A topic by name."""
        return self._state.topics.get(name)

    def topics(self) -> Sequence[Topic]:
        """All topics, by name."""
        return [self._state.topics[name] for name in sorted(self._state.topics)]

    def topic_of_queue(self, number: int) -> str | None:
        """The name of the topic a queue belongs to."""
        return self._state.owner.get(number)

    def group_of_queue(self, number: int) -> int | None:
        """The group in which a topic's queue or a named queue lies; None for a queue that there is not."""
        return self._state.group_of.get(number)

    def dropped(self, group: int) -> frozenset[int]:
        """The queues of a group that were dropped."""
        return frozenset(number for number, there in self._state.dropped.items() if there == group)

    @property
    def home(self) -> int:
        """The group that holds keys and values."""
        return HOME_GROUP

    @property
    def cluster(self) -> str:
        """The cluster's id, empty as long as that is not known here."""
        return self._state.cluster

    def groups(self) -> Sequence[Group]:
        """All store groups, by number."""
        return [self._state.groups[number] for number in sorted(self._state.groups)]

    def group(self, number: int) -> Group | None:
        """A store group by number."""
        return self._state.groups.get(number)

    def users(self) -> Sequence[User]:
        """All users, by name."""
        return [self._state.users[name] for name in sorted(self._state.users)]

    def user(self, name: str) -> User | None:
        """A user by name."""
        return self._state.users.get(name)

    def members(self) -> Sequence[Member]:
        """The controllers, by id."""
        return [self._state.members[id_] for id_ in sorted(self._state.members)]

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after every change. Returns what stops it."""
        handle, self._next_listener = self._next_listener, self._next_listener + 1
        self._listeners[handle] = listener
        return lambda: self._listeners.pop(handle, None) and None

    # ---- topics and queues

    async def create_topic(
        self, name: str, *, queues: int | None = None, config: Mapping[str, Any] | None = None, creator: str = ""
    ) -> Topic:
        """Create a topic, or return it when it is there and agrees."""
        there = self._state.topics.get(name)
        if there is not None and queues is None and config is None:
            return there
        command = commands.CreateTopic(
            name=name,
            queues=self._limits.default_queues if queues is None else queues,
            config=config or {},
            topics_max=self._limits.topics_max,
            creator=creator,
            creator_topics_max=self._limits.topics_per_creator_max,
            queues_max=self._limits.queues_max,
            time_ms=self._now_ms(),
        )
        return await self._ask(command, Topic)

    async def configure_topic(self, name: str, config: Mapping[str, Any]) -> Topic:
        """Replace a topic's configuration."""
        there = self._state.topics.get(name)
        if there is not None and dict(there.config) == dict(config):
            return there
        return await self._ask(commands.ConfigureTopic(name=name, config=config, time_ms=self._now_ms()), Topic)

    async def delete_topic(self, name: str) -> None:
        """Forget a topic."""
        await self._command(commands.DeleteTopic(name=name, time_ms=self._now_ms()))

    async def grow_topic(self, name: str, queues: int, *, group: int | None = None) -> Topic:
        """Open queues, in `group` or where there is least, until there are so many to write to."""
        command = commands.GrowTopic(
            name=name, queues=queues, group=group, queues_max=self._limits.queues_max, time_ms=self._now_ms()
        )
        return await self._ask(command, Topic)

    async def close_queue(self, number: int) -> Topic:
        """Write no more to a topic's queue; it can be read still."""
        return await self._ask(commands.CloseQueue(number=number, time_ms=self._now_ms()), Topic)

    async def move_queue(self, number: int, group: int) -> Topic:
        """Close a topic's queue and open one in another group in its place."""
        command = commands.MoveQueue(
            number=number, group=group, queues_max=self._limits.queues_max, time_ms=self._now_ms()
        )
        return await self._ask(command, Topic)

    async def drop_queue(self, number: int) -> None:
        """Forget a closed queue, when it is drained."""
        if number in self._state.owner:
            await self._command(commands.DropQueue(number=number, time_ms=self._now_ms()))

    async def name_queue(self, name: str) -> NamedQueue:
        """The number of a named queue, given now when it had none."""
        there = self._state.named.get(name)
        if there is not None:
            return there
        command = commands.NameQueue(name=name, queues_max=self._limits.queues_max, time_ms=self._now_ms())
        return await self._ask(command, NamedQueue)

    async def forget_queue(self, name: str) -> None:
        """Forget a named queue; its number is never given again."""
        if name in self._state.named:
            await self._command(commands.ForgetQueue(name=name, time_ms=self._now_ms()))

    # ---- groups and replicas

    async def add_group(self, number: int, config: GroupConfig) -> Group:
        """Add a group without replicas."""
        return await self._ask(commands.AddGroup(number=number, config=config, time_ms=self._now_ms()), Group)

    async def configure_group(self, number: int, changes: GroupChanges) -> Group:
        """Change some of a group's settings."""
        return await self._ask(commands.ConfigureGroup(number=number, config=changes, time_ms=self._now_ms()), Group)

    async def close_group(self, number: int, *, closed: bool = True) -> Group:
        """Place no new queues on a group, or place them again."""
        return await self._ask(commands.CloseGroup(number=number, closed=closed, time_ms=self._now_ms()), Group)

    async def remove_group(self, number: int) -> None:
        """Forget a group that has no queues."""
        await self._command(commands.RemoveGroup(number=number, time_ms=self._now_ms()))

    async def next_replica_id(self, group: int) -> int:
        """The id that `register_replica` would give next."""
        there = self.group(group)
        if there is None:
            raise UnknownGroup(f"there is no store group {group}")
        return there.next_replica

    async def register_replica(self, group: int, replica: Replica) -> Group:
        """Take an id, or say where the replica of this id and check code is now."""
        return await self._ask(commands.RegisterReplica(group=group, replica=replica, time_ms=self._now_ms()), Group)

    async def forget_replica(self, group: int, replica: int) -> Group:
        """Forget a replica."""
        return await self._ask(commands.ForgetReplica(group=group, replica=replica, time_ms=self._now_ms()), Group)

    async def retire_replica(self, group: int, replica: int, *, forced: bool = False) -> Group:
        """Forget a replica that is not master, also one in sync."""
        command = commands.RetireReplica(group=group, replica=replica, forced=forced, time_ms=self._now_ms())
        return await self._ask(command, Group)

    async def alter_sync_set(
        self, group: int, master: int, master_epoch: int, sync_epoch: int, new_set: Sequence[int]
    ) -> Group:
        """Change the SyncStateSet, as its master, knowing these epochs."""
        command = commands.AlterSyncSet(
            group=group,
            master=master,
            master_epoch=master_epoch,
            sync_epoch=sync_epoch,
            new_set=tuple(sorted(set(new_set))),
            time_ms=self._now_ms(),
        )
        return await self._ask(command, Group)

    async def service(self, group: int) -> Service:
        """Returns whether a group is served, by the word of the controllers' leader."""
        return await self._ask(AskService(group=group), Service)

    async def report(self, report: Report) -> None:
        """Say which masters a proxy cannot reach."""
        await self._command(report)

    # ---- users and controllers

    async def set_user(self, user: User) -> User:
        """Add or replace a user."""
        return await self._ask(commands.SetUser(user=user, time_ms=self._now_ms()), User)

    async def delete_user(self, name: str) -> None:
        """Forget a user."""
        await self._command(commands.DeleteUser(name=name, time_ms=self._now_ms()))

    async def set_member(self, member: Member) -> Member:
        """Say where a controller is."""
        return await self._ask(commands.SetMember(member=member, time_ms=self._now_ms()), Member)

    async def delete_member(self, id_: int) -> None:
        """Forget where a controller was."""
        await self._command(commands.DeleteMember(id=id_, time_ms=self._now_ms()))
