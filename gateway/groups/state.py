"""A consumer group as its keys describe it, and the changes that one member should make: pure.

consumer-groups/names/{group}               `GroupRecord`, for lists
consumer-groups/state/{group}/group         the same
consumer-groups/state/{group}/m/{member}    `MemberRecord`; there while the member is
consumer-groups/state/{group}/q/{queue}     `QueueRecord`
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from gateway.groups.assignment import STRATEGIES
from gateway.port.groups import GroupCursor, LeaseTerms
from store.api.keys import EXISTS, Page, Put

NAMES, STATE = "consumer-groups/names", "consumer-groups/state"
_ABSENT: Final = 0  # as a revision

T = TypeVar("T")

encode = msgspec.msgpack.encode


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """A group's topic, and the strategy that allocates its queues, or `LEASED`.

    A lease group has its terms, and the name by which the store knows its leases: one of the same name that was deleted
    had another. The topic of its dead letters counts in the share of `creator` (`gateway.publishing.topic_shares`).
    """

    topic: str
    strategy: str
    terms: LeaseTerms | None = None
    leases: str = ""
    creator: str = ""


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """A member. `topic` is the one it joined for: one that has joined a group of the same name before is none of it."""

    topic: str
    principal: str
    ttl_ms: int


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    """A group's offset in a queue, and the queue's owner: `member` since `generation`, or none."""

    offset: int
    member: str = ""
    generation: int = 0
    revoked_ms: int = 0  # when it was first found that another member should have it


decode_group = msgspec.msgpack.Decoder(GroupRecord).decode
decode_member = msgspec.msgpack.Decoder(MemberRecord).decode
decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode


class Versioned(NamedTuple, Generic[T]):
    """A record and the revision of its key."""

    record: T
    revision: int


class GroupState(NamedTuple):
    """All keys of a group, as they were at one revision."""

    name: str
    revision: int
    header: Versioned[GroupRecord] | None
    members: dict[str, Versioned[MemberRecord]]  # those that are there
    queues: dict[int, Versioned[QueueRecord]]

    def of(self, member: str) -> dict[int, QueueRecord]:
        """Returns the queues that a member has."""
        return {queue: one.record for queue, one in self.queues.items() if one.record.member == member}

    def compares(self, queues: Iterable[int], member: str, gone: Iterable[str] = ()) -> dict[str, int]:
        """Returns the revisions that keys must have for a member's change of some queues: as they are here.

        The group has to be the same one, the member has to be there, and those that are `gone` must not.
        """
        assert self.header is not None
        found = {queue_key(self.name, queue): _revision(self.queues.get(queue)) for queue in queues}
        found.update((member_key(self.name, one), _ABSENT) for one in gone)
        found[member_key(self.name, member)] = EXISTS
        found[group_key(self.name)] = self.header.revision
        return found

    def puts(self, changes: Mapping[int, QueueRecord]) -> list[Put]:
        """Returns the changes that write records."""
        return queue_puts(self.name, changes)

    def changed(self, done: Mapping[int, QueueRecord], revision: int) -> "GroupState":
        """Returns the same with records that were written at a revision."""
        written = {queue: Versioned(record, revision) for queue, record in done.items()}
        return self._replace(queues={**self.queues, **written})

    def assigned(self, queues: Sequence[int], member: str) -> frozenset[int]:
        """Returns the queues that a member should have, of all those of the topic."""
        assert self.header is not None
        return frozenset(STRATEGIES[self.header.record.strategy](queues, self.members).get(member, ()))


class AssignmentPlan(NamedTuple):
    """The changes that a member is to make of its queues."""

    changes: dict[int, QueueRecord]
    gone: dict[int, str]  # of queues that are taken from members that are gone

    def parts(self, count: int) -> "list[AssignmentPlan]":
        """Returns the same, so many changes at a time."""
        order = sorted(self.changes)
        some = [order[n : n + count] for n in range(0, len(order), count)]
        return [
            AssignmentPlan({q: self.changes[q] for q in part}, {q: self.gone[q] for q in part if q in self.gone})
            for part in some
        ]


def plan(
    group: GroupState, member: str, queues: Sequence[int], cursor: GroupCursor | None, *, now_ms: int, release_ms: int
) -> AssignmentPlan:
    """Returns the queues that a member releases, marks as revoked, and takes.

    `cursor` is the member's position; None: it is unknown, so that nothing is released before its time. Queues that the
    topic does not have any more are released like others.
    """
    wanted = group.assigned(queues, member)
    changes: dict[int, QueueRecord] = {}
    gone: dict[int, str] = {}
    replace = msgspec.structs.replace
    for queue, record in group.of(member).items():
        if queue in wanted:
            if record.revoked_ms:
                changes[queue] = replace(record, revoked_ms=0)
        elif not _outstanding(record, queue, cursor) or 0 < record.revoked_ms <= now_ms - release_ms:
            changes[queue] = QueueRecord(record.offset)
        elif not record.revoked_ms or record.revoked_ms > now_ms:  # or the clock was set back since
            changes[queue] = replace(record, revoked_ms=now_ms)
    for queue in wanted:
        held = group.queues.get(queue)
        owner = held.record.member if held is not None else ""
        if owner == member or owner in group.members:
            continue
        changes[queue] = QueueRecord(held.record.offset if held is not None else 0, member, group.revision)
        if owner:
            gone[queue] = owner
    return AssignmentPlan(changes, gone)


def owned(group: GroupState, member: str) -> tuple[list[int], list[int]]:
    """Returns the queues that a member has, and those of them that are to be another's."""
    own = group.of(member)
    return sorted(own), sorted(queue for queue, record in own.items() if record.revoked_ms)


def positions_of(group: GroupState, member: str, cursor: GroupCursor) -> dict[int, int]:
    """Returns the offsets at which a member reads on in its queues, without those that are to be another's."""
    return {
        queue: max(record.offset, cursor.offsets.get(queue, 0) if record.generation <= cursor.generation else 0)
        for queue, record in group.of(member).items()
        if not record.revoked_ms
    }


def cursor_of(group: GroupState, member: str, before: GroupCursor, positions: Mapping[int, int]) -> GroupCursor:
    """Returns the cursor of a member: the offsets it has read to and not committed, of queues that it still has."""
    own = group.of(member)
    kept = {queue: at for queue, at in before.offsets.items() if queue in own}
    valid = {queue: at for queue, at in kept.items() if own[queue].generation <= before.generation}
    offsets = {queue: at for queue, at in {**valid, **positions}.items() if at > own[queue].offset}
    return GroupCursor(max((record.generation for record in own.values()), default=0), offsets)


def _outstanding(record: QueueRecord, queue: int, cursor: GroupCursor | None) -> bool:
    """Returns whether a member has read messages of a queue that it may still commit."""
    if cursor is None:
        return True
    return record.generation <= cursor.generation and cursor.offsets.get(queue, 0) > record.offset


def _revision(held: Versioned[QueueRecord] | None) -> int:
    return _ABSENT if held is None else held.revision


# ---- keys


def name_key(group: str) -> str:
    """Returns the key under which a group is listed."""
    return f"{NAMES}/{group}"


def group_key(group: str) -> str:
    """Returns the key of the group's own record."""
    return f"{STATE}/{group}/group"


def member_key(group: str, member: str) -> str:
    """Returns the key of a member."""
    return f"{STATE}/{group}/m/{member}"


def queue_key(group: str, queue: int) -> str:
    """Returns the key of a queue's record."""
    return f"{STATE}/{group}/q/{queue}"


def queue_puts(group: str, changes: Mapping[int, QueueRecord]) -> list[Put]:
    """Returns the changes that write records of queues."""
    return [Put(queue_key(group, queue), encode(record)) for queue, record in changes.items()]


def names_range() -> tuple[str, str]:
    """Returns all names of groups: from the first key on, up to the second."""
    return f"{NAMES}/", f"{NAMES}0"  # "0" is the character behind "/"


def group_range(group: str) -> tuple[str, str]:
    """Returns all keys of a group's state: from the first on, up to the second."""
    return f"{STATE}/{group}/", f"{STATE}/{group}0"


def read_group(name: str, page: Page) -> GroupState:
    """Returns the group of a page of all its keys."""
    assert not page.more
    start = len(group_range(name)[0])
    header: Versioned[GroupRecord] | None = None
    members: dict[str, Versioned[MemberRecord]] = {}
    queues: dict[int, Versioned[QueueRecord]] = {}
    for entry in page.entries:
        kind, _, rest = entry.key[start:].partition("/")
        if kind == "q":
            queues[int(rest)] = Versioned(decode_queue(entry.value), entry.revision)
        elif kind == "m":
            members[rest] = Versioned(decode_member(entry.value), entry.revision)
        else:
            header = Versioned(decode_group(entry.value), entry.revision)
    topic = header.record.topic if header is not None else None
    members = {id_: one for id_, one in members.items() if one.record.topic == topic}
    return GroupState(name, page.revision, header, members, queues)
