"""Consumer groups for adapters: members, the queues they have, and how far they are (`gateway.port.groups`).

All of a group is in the replicated keys (`gateway.groups.state`), so that any proxy answers for any member. The memory
that this process has of members only saves writes, and bounds how many a user may have here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from gateway.base.reserving import reserved
from gateway.base.turns import Turns
from gateway.base.waits import Connected, Waits
from gateway.domain.access import Permissions
from gateway.domain.address import group_address
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.groups.admin import delete, describe, list_groups, list_readable, reset
from gateway.groups.environment import GroupEnvironment
from gateway.groups.joining import (
    QUEUES_COUNT_MAX,
    check_asked,
    check_group_name,
    check_reader,
    check_reads,
    check_room,
    check_same,
    new_group,
)
from gateway.groups.lost_ends import LostEnds
from gateway.groups.reader import GroupRead, QueueReader, ReadLimits
from gateway.groups.state import (
    GroupState,
    MemberRecord,
    QueueRecord,
    cursor_of,
    encode,
    group_key,
    member_key,
    owned,
    plan,
    positions_of,
)
from gateway.groups.store import load_group, queues_of, without_successors
from gateway.groups.wakes import GroupWakes
from gateway.ownership.owners import Spawn
from gateway.port.groups import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    GroupCursor,
    GroupDescription,
    GroupName,
    GroupsPage,
    Joined,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    NotOwned,
    Polled,
    PollGroup,
    Renewed,
    RenewMember,
    ResetGroup,
)
from store.api.keys import EXISTS, Delete, Put
from store.base import logs
from store.base.errors import AppendOutcomeUnknown, CorruptFrame, OffsetOutOfRange, RevisionConflict
from store.format.frame import QueueNumber, QueueOffset

R = TypeVar("R")
T = TypeVar("T")
Method: TypeAlias = Callable[["ConsumerGroups", "GroupClient", R], Awaitable[T]]

TRIES_COUNT_MAX = 16  # of a change, while others change the same
CHANGES_AT_ONCE = 256  # records in one transaction
LOOK_S = 5.0  # a waiting member looks at the group at least so often
SOON_S = 0.5  # the same, while a queue waits until another one is read
RENEWALS = 3  # in one time to live; so a request may find that its member was renewed a third of it before
NEW = ""  # in place of a name: the turn of those that create groups
FORGOTTEN_FROM_COUNT = 1_024  # members remembered, from which on those that are gone are looked for

log = logs.get(__name__)


class GroupConnection(Connected, Protocol):
    """A connection, and its protocol."""

    protocol: str


class GroupClient(NamedTuple):
    """A client that asks, and its connection; one connection may carry the requests of several clients in turn.

    `number` is that of the request in its connection.
    """

    connection: GroupConnection
    principal: Principal
    number: int | None = None


class _RenewedMember(NamedTuple):
    """A member that this process has renewed."""

    principal: str
    until_s: float  # it is there
    renew_s: float


class ConsumerGroups:
    """The groups with members, of this process's store."""

    def __init__(self, environment: GroupEnvironment, *, spawn: Spawn) -> None:
        self.environment = environment
        self._store, self._controller = environment.store, environment.controller
        self._config, self._clock = environment.config, environment.clock
        self.reader = self._reader = QueueReader(self._store, random=environment.random)  # of groups of both kinds
        self.wakes = self._wakes = GroupWakes(self._store, spawn)
        self._lost_ends = LostEnds(self._controller, self._clock)
        self._renewed: dict[tuple[str, str], _RenewedMember] = {}  # by group and member
        self._joining: Counter[str] = Counter()  # members that enter now, by principal
        self.turns = Turns()  # of members that enter, by group, and of new groups: limits count those before
        self._forget_from = FORGOTTEN_FROM_COUNT
        self.waits = Waits()  # of requests for messages, of groups of both kinds
        self._stopping = False
        self._controller.watch(self._wakes.wake_all)

    @property
    def stopping(self) -> bool:
        """Returns whether those who wait for messages are to be answered now."""
        return self._stopping

    def stop(self) -> None:
        """Answers all who wait for messages now."""
        self._stopping = True
        self._wakes.wake_all()

    async def answer(self, method: Method[R, T], asker: GroupClient, request: R) -> T:
        """Answers a request of `gateway.port.groups` by one of the methods below. Raises `Refusal`, `StoreError`."""
        group = getattr(request, "group", None)
        if group is not None:
            check_group_name(group)
        return await method(self, asker, request)

    # ---- members

    async def join(self, asker: GroupClient, request: JoinGroup) -> Joined:
        """See `JoinGroup`."""
        self._check_join(asker, request)
        with reserved(self._joining, asker.principal.name):
            async with self.turns.within(request.group):
                return await self._join(asker, request)

    async def _join(self, asker: GroupClient, request: JoinGroup) -> Joined:
        random = self.environment.random
        id_ = f"{random.getrandbits(64):016x}{random.getrandbits(64):016x}"
        member = MemberRecord(request.topic, asker.principal.name, request.ttl_s * 1_000)
        entering = Put(member_key(request.group, id_), encode(member), ttl_ms=_kept_ms(member))
        for _ in range(TRIES_COUNT_MAX):
            group = await load_group(self._store, request.group)
            asked_s = self._clock()
            try:
                if group.header is None:
                    made = await new_group(self._store, self._controller, request)
                    async with self.turns.within(NEW):
                        await check_room(self._store, self._config.groups_max)
                        await self._store.keys.transact({group_key(group.name): 0}, [*made, entering])
                else:
                    self._check_topic(asker, group.name, group.header.record.topic)
                    check_same(group, request, members_max=self._config.members_max)
                    await self._store.keys.transact({group_key(group.name): group.header.revision}, [entering])
            except RevisionConflict:
                continue
            self._note(group.name, id_, member, asked_s)
            return Joined(member=id_, topic=request.topic, strategy=request.strategy, ttl_s=request.ttl_s)
        raise _busy(request.group)

    def _check_join(self, asker: GroupClient, request: JoinGroup) -> None:
        """Raises `Refusal` for an invalid member, or one too many of this user."""
        self._check_topic(asker, request.group, request.topic)
        check_asked(self._controller, request, may_come=self.environment.may_come)
        self._forget()
        name, limit = asker.principal.name, self._config.memberships_max
        if sum(one.principal == name for one in self._renewed.values()) + self._joining[name] >= limit:
            raise Refusal(Cause.QUOTA, f"one user has at most {limit} memberships here (groups.memberships_max)")

    def _check_topic(self, asker: GroupClient, group: str, topic: str) -> None:
        """Raises `Refusal` (FORBIDDEN) unless all of a group's topic may be read. It does not name the topic.

        A member could only skip messages that it may not read, for the whole group; and offsets count them.
        """
        check_reads(asker.principal.permissions, group, self.environment.patterns_of(topic))

    def _check_reader(self, asker: GroupClient, group: GroupState, member: str) -> None:
        """Raises `Refusal` unless this is the asker's member of a group whose topic it may read."""
        if group.header is not None:
            patterns = self.environment.patterns_of(group.header.record.topic)
            check_reader(asker.principal.permissions, group.name, patterns)
            if group.header.record.terms is not None:
                raise Refusal(Cause.CONFLICT, f"the group {group.name!r} leases messages, and has no members")
        _check_member(asker, group, member)

    async def leave(self, asker: GroupClient, request: LeaveGroup) -> bool:
        """See `LeaveGroup`."""
        for _ in range(TRIES_COUNT_MAX):
            group = await load_group(self._store, request.group)
            if group.header is None or request.member not in group.members:
                return False
            _check_member(asker, group, request.member)
            left = {queue: QueueRecord(record.offset) for queue, record in group.of(request.member).items()}
            operations: list[Put | Delete] = [Delete(member_key(group.name, request.member)), *group.puts(left)]
            try:
                await self._store.keys.transact(group.compares(left, request.member), operations)
            except RevisionConflict:
                continue
            self._renewed.pop((group.name, request.member), None)
            return True
        raise _busy(request.group)

    async def renew(self, asker: GroupClient, request: RenewMember) -> Renewed:
        """See `RenewMember`."""
        self._renewed.pop((request.group, request.member), None)  # so that it is written
        group = await self._settle(asker, request.group, request.member, None)
        queues, revoked = owned(group, request.member)
        ttl_ms = group.members[request.member].record.ttl_ms
        return Renewed(ttl_s=ttl_ms // 1_000, queues=queues, revoked=revoked)

    async def _renew(self, group: GroupState, id_: str) -> None:
        """Renews a member for most of its time to live. Raises `Refusal` where it is not there any more."""
        renewed, now_s = self._renewed.get((group.name, id_)), self._clock()
        if renewed is not None and now_s < renewed.renew_s:
            return
        member = group.members[id_].record
        try:
            key, value = member_key(group.name, id_), encode(member)
            await self._store.keys.put(key, value, expected_revision=EXISTS, ttl_ms=_kept_ms(member))
        except RevisionConflict:
            self._renewed.pop((group.name, id_), None)
            raise _gone(group.name) from None
        self._note(group.name, id_, member, now_s)

    def _note(self, group: str, id_: str, member: MemberRecord, asked_s: float) -> None:
        ttl_s = member.ttl_ms / 1_000
        until_s = asked_s + _kept_ms(member) / 1_000
        self._renewed[group, id_] = _RenewedMember(member.principal, until_s, asked_s + ttl_s / RENEWALS)
        if len(self._renewed) > self._forget_from:
            self._forget()
            self._forget_from = max(FORGOTTEN_FROM_COUNT, 2 * len(self._renewed))

    def _forget(self) -> None:
        now_s = self._clock()
        self._renewed = {key: one for key, one in self._renewed.items() if one.until_s > now_s}

    def _is_there(self, group: str, id_: str) -> bool:
        """Returns whether a member is certainly still a member, by the time of its last request."""
        renewed = self._renewed.get((group, id_))
        return renewed is not None and self._clock() < renewed.until_s

    # ---- who has which queues

    async def _settle(self, asker: GroupClient, name: str, member: str, cursor: GroupCursor | None) -> GroupState:
        """Returns the group once a member has released queues that are not its share, and taken the free ones of it."""
        for last in (False,) * TRIES_COUNT_MAX + (True,):
            group = await load_group(self._store, name)
            self._check_reader(asker, group, member)
            await self._renew(group, member)
            if last:
                break  # others change so much; the member keeps its queues
            assert group.header is not None
            queues = queues_of(self._controller, group.header.record.topic)
            release_ms = int(self._config.release_s * 1_000)
            todo = plan(group, member, queues, cursor, now_ms=self.environment.now_ms(), release_ms=release_ms)
            try:
                for part in todo.parts(CHANGES_AT_ONCE):
                    compares = group.compares(part.changes, member, part.gone.values())
                    done = await self._store.keys.transact(compares, group.puts(part.changes))
                    group = group.changed(part.changes, done.revision)
            except (RevisionConflict, AppendOutcomeUnknown):
                continue
            break
        return group

    # ---- messages

    async def poll(self, asker: GroupClient, request: PollGroup) -> Polled:
        """See `PollGroup`."""
        name, member = request.group, request.member
        asked = cursor = request.after or GroupCursor(0, {})
        until_s = self._clock() + request.wait_ms / 1_000
        with (
            self._wakes.listening(name) if request.wait_ms else nullcontext(asyncio.Event()) as woken,
            self.waits.waiting(asker.connection, asker.number, woken) as wanted,
        ):
            while True:
                woken.clear()
                group = await self._settle(asker, name, member, asked)
                self._wakes.know(name, group.members)
                own = positions_of(group, member, cursor)
                positions = await without_successors(self._store, self._controller, group, own)
                read = await self._reader.read(positions, self._wanted(asker, request.limit))
                if read.beyond or self._lost_ends.any:
                    await self._set_back(group, member, read)
                if not self._is_there(name, member):  # it took so long that the queues may be another's now
                    await self._renew(group, member)
                if read.failed and len(read.failed) == len(positions):
                    raise next(iter(read.failed.values()))
                if not read.messages:  # a member that gets nothing else learns of lost messages, to commit behind them
                    for error in read.failed.values():
                        if isinstance(error, CorruptFrame):
                            raise error
                cursor = cursor_of(group, member, cursor, read.positions)
                left_s = until_s - self._clock()
                if read.messages or left_s <= 0 or self._stopping or not wanted() or asker.connection.ended:
                    queues, revoked = owned(group, member)
                    if read.messages and group.header is not None:
                        self.environment.delivered(
                            asker.connection.protocol, group.header.record.topic, len(read.messages)
                        )
                    return Polled(messages=read.messages, after=cursor, queues=queues, revoked=revoked)
                ttl_s = group.members[member].record.ttl_ms / 1_000
                look_s = LOOK_S if len(positions) == len(own) else SOON_S
                await self._reader.wait(read.positions, woken, min(left_s, ttl_s / RENEWALS, look_s))

    def _wanted(self, asker: GroupClient, limit: int) -> ReadLimits:
        permissions = asker.principal.permissions
        reads = permissions.reads if permissions.access is not None else None
        return ReadLimits(limit, self._config.response_bytes_max, self.environment.now_ms(), reads)

    async def _set_back(self, group: GroupState, member: str, read: GroupRead) -> None:
        """Sets a group back to the new end of a log that lost its end: earlier cursors and commits are void."""
        own = group.of(member)
        for queue in read.positions.keys() - read.beyond.keys() - read.failed.keys():
            self._lost_ends.seen(group.name, queue)
        lower = {queue: end for queue, end in read.beyond.items() if own[queue].offset > end}
        ends = self._lost_ends.certain(group.name, lower)
        if not ends:
            return
        records = {queue: QueueRecord(end, member, group.revision) for queue, end in ends.items()}
        try:
            await self._store.keys.transact(group.compares(records, member), group.puts(records))
        except (RevisionConflict, AppendOutcomeUnknown):
            return  # the next reader does it
        log.warning(
            "a consumer group is set back to the end of its queues, which have lost their end",
            group=group.name,
            queues=sorted(records),
        )

    async def commit(self, asker: GroupClient, request: CommitOffsets) -> Mapping[int, int]:
        """See `CommitOffsets`."""
        generation, offsets = request.cursor
        in_bounds = False
        for _ in range(TRIES_COUNT_MAX):
            group = await load_group(self._store, request.group)
            self._check_reader(asker, group, request.member)
            await self._renew(group, request.member)
            own = group.of(request.member)
            lost = [queue for queue in sorted(offsets) if queue not in own or own[queue].generation > generation]
            if lost:
                raise NotOwned(lost[:QUEUES_COUNT_MAX])
            if not in_bounds:
                await self._check_ends(offsets)
                in_bounds = True
            records = {
                queue: msgspec.structs.replace(own[queue], offset=at)
                for queue, at in offsets.items()
                if at > own[queue].offset
            }
            if records:
                try:
                    await self._store.keys.transact(group.compares(records, request.member), group.puts(records))
                except RevisionConflict:
                    continue
            return {queue: max(at, own[queue].offset) for queue, at in sorted(offsets.items())}
        raise _busy(request.group)

    async def _check_ends(self, offsets: Mapping[int, int]) -> None:
        """Raises `Refusal` for an offset behind a queue's end: the next messages would never be read."""
        bounds = await asyncio.gather(*(self._store.queues.bounds(QueueNumber(queue)) for queue in offsets))
        for (queue, at), found in zip(offsets.items(), bounds, strict=True):
            if at > found.next:
                try:  # a replica near by may know less than who was asked for the messages; the master knows
                    await self._store.queues.fetch(QueueNumber(queue), QueueOffset(at), max_bytes=1, max_rows=1)
                except OffsetOutOfRange as error:
                    refusal = f"offsets: queue {queue} ends at {error.next}, in front of {at}"
                    raise Refusal(Cause.MALFORMED, refusal) from error

    # ---- for operators

    async def list_groups(self, asker: GroupClient, request: ListGroups) -> GroupsPage:
        """See `ListGroups`."""
        permissions = asker.principal.permissions
        if permissions.access is None:
            return await list_groups(self._store, request)
        return await list_readable(self._store, request, partial(self._shows, permissions))

    def _shows(self, permissions: Permissions, found: GroupName) -> bool:
        """Returns whether an asker may know of a group, and of its topic, which the list names."""
        patterns = self.environment.patterns_of(found.topic)
        return permissions.reads(group_address(found.group)) and permissions.reads_all(patterns)

    async def describe(self, asker: GroupClient, request: DescribeGroup) -> GroupDescription:
        """See `DescribeGroup`."""
        return await describe(self._store, self._controller, request, partial(self._check_topic, asker, request.group))

    async def reset(self, asker: GroupClient, request: ResetGroup) -> Mapping[int, int]:
        """See `ResetGroup`."""
        return await reset(self._store, self._controller, request, partial(self._check_topic, asker, request.group))

    async def delete(self, _: GroupClient, request: DeleteGroup) -> bool:
        """See `DeleteGroup`."""
        return await delete(self._store, request)


def _check_member(asker: GroupClient, group: GroupState, member: str) -> None:
    """Raises `Refusal` where there is no such group or member, or it is another principal's."""
    if group.header is None:
        raise Refusal(Cause.NOT_FOUND, f"there is no group {group.name!r}")
    there = group.members.get(member)
    if there is None:
        raise _gone(group.name)
    if there.record.principal != asker.principal.name:
        raise Refusal(Cause.FORBIDDEN, "this member is another user's")


def _kept_ms(member: MemberRecord) -> int:
    """Returns how long a member's key lasts: its time to live after each request, even one that does not renew it."""
    return member.ttl_ms + member.ttl_ms // RENEWALS


def _gone(group: str) -> Refusal:
    return Refusal(Cause.NOT_FOUND, f"the group {group!r} has no such member, or not any more; join again")


def _busy(group: str) -> Refusal:
    return Refusal(Cause.OVERLOAD, f"the group {group!r} is changed too often by others", retry_after_ms=1_000)
