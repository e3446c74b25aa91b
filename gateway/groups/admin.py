"""The operators' requests about consumer groups: list, describe, reset and delete them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from controller.api.client import ControllerClient
from gateway.domain.errors import Cause, Refusal
from gateway.groups.state import (
    GroupRecord,
    GroupState,
    QueueRecord,
    decode_group,
    group_key,
    name_key,
    names_range,
    queue_key,
)
from gateway.groups.store import load_group, queues_of
from gateway.port.groups import (
    DeleteGroup,
    DescribeGroup,
    GroupDescription,
    GroupName,
    GroupsPage,
    ListGroups,
    QueueDescription,
    ResetGroup,
)
from store.api.client import StoreClient
from store.api.keys import Delete
from store.api.queues import Bounds
from store.base import logs
from store.base.errors import RevisionConflict
from store.format.frame import QueueNumber

DELETE_TRIES_COUNT_MAX = 16
GROUPS_AT_ONCE = 1_000  # names asked of the store at a time, where some are left out

CheckTopic: TypeAlias = Callable[[str], None]  # raises `Refusal` for a topic whose offsets the asker may not know

log = logs.get(__name__)


async def list_groups(store: StoreClient, request: ListGroups) -> GroupsPage:
    """See `gateway.port.groups.ListGroups`."""
    start, end = names_range()
    after = name_key(request.after) if request.after else None
    page = await store.keys.range(start, end, after=after, limit=request.limit)
    found = []
    for entry in page.entries:
        record = decode_group(entry.value)
        found.append(GroupName(group=entry.key.removeprefix(start), topic=record.topic, strategy=record.strategy))
    return GroupsPage(groups=found, after=found[-1].group if page.more else None)


async def list_readable(store: StoreClient, request: ListGroups, readable: Callable[[GroupName], bool]) -> GroupsPage:
    """Returns the answer to `ListGroups` for an asker that may know of some groups alone."""
    found: list[GroupName] = []
    asked = msgspec.structs.replace(request, limit=GROUPS_AT_ONCE)
    while True:  # until it is known whether more than a page may be read
        page = await list_groups(store, asked)
        found += [one for one in page.groups if readable(one)]
        if len(found) > request.limit:
            return GroupsPage(groups=found[: request.limit], after=found[request.limit - 1].group)
        if page.after is None:
            return GroupsPage(groups=found, after=None)
        asked = msgspec.structs.replace(asked, after=page.after)


async def describe(
    store: StoreClient, controller: ControllerClient, request: DescribeGroup, check_topic: CheckTopic
) -> GroupDescription:
    """See `gateway.port.groups.DescribeGroup`."""
    group = _there(await load_group(store, request.group))
    assert group.header is not None
    check_topic(group.header.record.topic)
    topic, strategy = group.header.record.topic, group.header.record.strategy
    queues = sorted(queues_of(controller, topic))
    if group.header.record.terms is not None:
        return await _describe_leases(store, group.name, group.header.record, queues)
    described = []
    for queue, bounds in zip(queues, await _bounds(store, queues), strict=True):
        held = group.queues.get(queue)
        record = QueueRecord(bounds.first) if held is None else held.record
        member = record.member if record.member in group.members else ""
        described.append(
            QueueDescription(queue=queue, offset=record.offset, first=bounds.first, end=bounds.next, member=member)
        )
    return GroupDescription(
        group=group.name, topic=topic, strategy=strategy, members=sorted(group.members), queues=described
    )


async def _describe_leases(
    store: StoreClient, name: str, record: GroupRecord, queues: Sequence[int]
) -> GroupDescription:
    """Returns the description of a lease group."""
    leases = store.leases
    waiting = await asyncio.gather(*(leases.waiting(QueueNumber(one), group=record.leases) for one in queues))
    firsts = await asyncio.gather(*(leases.first_waiting(QueueNumber(one), group=record.leases) for one in queues))
    described = [
        QueueDescription(
            queue=queue,
            offset=bounds.next if first is None else first,
            first=bounds.first,
            end=bounds.next,
            member="",
            waiting=count,
        )
        for queue, bounds, first, count in zip(queues, await _bounds(store, queues), firsts, waiting, strict=True)
    ]
    return GroupDescription(
        group=name, topic=record.topic, strategy=record.strategy, members=(), queues=described, terms=record.terms
    )


async def reset(
    store: StoreClient, controller: ControllerClient, request: ResetGroup, check_topic: CheckTopic
) -> Mapping[int, int]:
    """See `gateway.port.groups.ResetGroup`."""
    group = _there(await load_group(store, request.group))
    assert group.header is not None
    check_topic(group.header.record.topic)
    record = group.header.record
    wanted = await _places(store, queues_of(controller, record.topic), request)
    if record.terms is not None:
        return await _settle_all(store, record, request, list(wanted))
    bounds = await _bounds(store, list(wanted))
    places = {
        queue: min(max(at, found.first), found.next) for (queue, at), found in zip(wanted.items(), bounds, strict=True)
    }
    try:  # commits in flight are refused behind it
        operations = group.puts({queue: QueueRecord(at) for queue, at in places.items()})
        await store.keys.transact({group_key(group.name): group.header.revision}, operations)
    except RevisionConflict as conflict:
        raise _absent(group.name) from conflict
    log.info("a consumer group was reset", group=group.name, queues=len(places))
    return places


async def _settle_all(
    store: StoreClient, record: GroupRecord, request: ResetGroup, queues: Sequence[int]
) -> Mapping[int, int]:
    """Settles all messages of queues that a lease group could lease; returns the queues' ends."""
    if request.to != "latest":
        raise Refusal(
            Cause.CONFLICT, f"the group {request.group!r} leases messages, which are settled one by one: to is latest"
        )
    await asyncio.gather(*(store.leases.purge(QueueNumber(queue), group=record.leases) for queue in queues))
    return {queue: found.next for queue, found in zip(queues, await _bounds(store, queues), strict=True)}


async def _places(store: StoreClient, queues: Sequence[int], request: ResetGroup) -> dict[int, int]:
    """Returns the offset a group is to have in each queue, inside of its bounds or not. Raises `Refusal`."""
    given = (bool(request.to), request.time_ms is not None, request.offsets is not None)
    if sum(given) != 1 or (request.offsets is not None and request.queues):
        raise Refusal(Cause.MALFORMED, "a group is reset to one of earliest, latest, a time, and offsets of queues")
    chosen = sorted(request.offsets if request.offsets is not None else request.queues or queues)
    if unknown := [queue for queue in chosen if queue not in queues]:
        raise Refusal(Cause.NOT_FOUND, f"the topic of the group {request.group!r} has no queue {unknown[0]}")
    if request.offsets is not None:
        return {queue: request.offsets[queue] for queue in chosen}
    if (time_ms := request.time_ms) is not None:
        found = await asyncio.gather(*(store.queues.offset_at_time(QueueNumber(queue), time_ms) for queue in chosen))
        return {queue: int(at) for queue, at in zip(chosen, found, strict=True)}
    ends = {"earliest": 0, "latest": (1 << 63) - 1}
    if request.to not in ends:
        raise Refusal(Cause.MALFORMED, f"to: is one of {', '.join(ends)}, timestamp and offset")
    return dict.fromkeys(chosen, ends[request.to])


async def delete(store: StoreClient, request: DeleteGroup) -> bool:
    """See `gateway.port.groups.DeleteGroup`."""
    for _ in range(DELETE_TRIES_COUNT_MAX):
        group = await load_group(store, request.group)
        if group.header is None:
            return False
        if group.members:
            raise Refusal(Cause.CONFLICT, f"the group {group.name!r} has {len(group.members)} members")
        keys = [group_key(group.name), name_key(group.name), *(queue_key(group.name, queue) for queue in group.queues)]
        try:
            await store.keys.transact({keys[0]: group.header.revision}, [Delete(key) for key in keys])
        except RevisionConflict:
            continue
        if group.header.record.terms is not None:
            await store.groups.delete(group.header.record.leases)
        log.info("a consumer group was deleted", group=group.name)
        return True
    raise Refusal(Cause.OVERLOAD, f"others have changed the group {request.group!r} at the same time; try again")


def _there(group: GroupState) -> GroupState:
    if group.header is None:
        raise _absent(group.name)
    return group


def _absent(group: str) -> Refusal:
    return Refusal(Cause.NOT_FOUND, f"there is no group {group!r}")


async def _bounds(store: StoreClient, queues: Sequence[int]) -> list[Bounds]:
    return await asyncio.gather(*(store.queues.bounds(QueueNumber(queue)) for queue in queues))
