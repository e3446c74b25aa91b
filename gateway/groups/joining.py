"""Admits the members of a consumer group and creates groups."""

import asyncio
import re
from collections.abc import Sequence

from controller.api.client import ControllerClient
from gateway.domain.access import Permissions
from gateway.domain.address import group_address
from gateway.domain.errors import Cause, Refusal
from gateway.groups.assignment import STRATEGIES
from gateway.groups.state import (
    GroupRecord,
    GroupState,
    QueueRecord,
    encode,
    group_key,
    name_key,
    names_range,
    queue_puts,
)
from gateway.groups.store import queues_of
from gateway.port.groups import TTL_S_MAX, TTL_S_MIN, CreateLeaseGroup, JoinGroup
from store.api.client import StoreClient
from store.api.keys import Put
from store.format.frame import QueueNumber

TOPIC_CHARS_MAX = 1_024  # more than a topic's name may have bytes

NAME_CHARS_MAX = 64
QUEUES_COUNT_MAX = 1_000  # of a topic that a group can read: all their records change in one transaction
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}")


def check_group_name(name: str) -> str:
    """Returns the name. Raises `Refusal` (MALFORMED)."""
    if _NAME.fullmatch(name) is None:
        raise Refusal(
            Cause.MALFORMED,
            f"a group's name is a letter or digit, then up to {NAME_CHARS_MAX - 1} letters, digits and . _ -",
        )
    return name


def check_reader(permissions: Permissions, group: str, patterns: Sequence[str]) -> None:
    """Raises `Refusal` (FORBIDDEN) unless an asker may read by a group, and all of its topic.

    The table of requests checks the right to the group when a request begins; it may be revoked while one waits.
    """
    permissions.check("subscribe", group_address(group))
    check_reads(permissions, group, patterns)


def check_reads(permissions: Permissions, group: str, patterns: Sequence[str]) -> None:
    """Raises `Refusal` (FORBIDDEN) unless all of a group's topic may be read. It does not name the topic."""
    if permissions.access is None:
        return
    try:
        for pattern in patterns:
            permissions.check_all("subscribe", pattern)
    except Refusal:
        raise Refusal(Cause.FORBIDDEN, f"not allowed: to read the topic of the group {group!r}") from None


def check_asked(controller: ControllerClient, request: JoinGroup, *, may_come: bool) -> None:
    """Raises `Refusal` for an invalid member. `may_come`: a topic need not be there yet."""
    if request.strategy not in STRATEGIES:
        raise Refusal(Cause.MALFORMED, f"strategy: is one of {', '.join(STRATEGIES)}")
    if not TTL_S_MIN <= request.ttl_s <= TTL_S_MAX:
        raise Refusal(Cause.MALFORMED, f"ttl_s: is a whole number from {TTL_S_MIN} to {TTL_S_MAX}")
    check_read(controller, request, may_come=may_come)


def check_read(controller: ControllerClient, request: JoinGroup | CreateLeaseGroup, *, may_come: bool) -> None:
    """Raises `Refusal` for a topic that no group can read, or no place to begin there."""
    if request.start not in {"earliest", "latest"}:
        raise Refusal(Cause.MALFORMED, "start: is earliest or latest")
    if not 0 < len(request.topic) <= TOPIC_CHARS_MAX:
        raise Refusal(Cause.MALFORMED, f"topic: has 1 to {TOPIC_CHARS_MAX} characters")
    if controller.topic(request.topic) is None and not may_come:
        raise Refusal(Cause.NOT_FOUND, f"there is no topic {request.topic!r}")
    if len(queues_of(controller, request.topic)) > QUEUES_COUNT_MAX:
        raise Refusal(Cause.QUOTA, f"a group reads a topic of at most {QUEUES_COUNT_MAX} queues")


def check_same(group: GroupState, request: JoinGroup, *, members_max: int) -> None:
    """Raises `Refusal` where a group is another one than a new member thinks, or has no room for it."""
    assert group.header is not None
    there = group.header.record
    if there != GroupRecord(request.topic, request.strategy):
        said = f"the group {group.name!r} reads {there.topic!r} by {there.strategy}"
        raise Refusal(Cause.CONFLICT, f"{said}; delete it first")
    if len(group.members) >= members_max:
        raise Refusal(Cause.QUOTA, f"a group has at most {members_max} members (groups.members_max)")


async def check_room(store: StoreClient, groups_max: int) -> None:
    """Raises `Refusal` (QUOTA) where there are as many groups as there may be.

    One after the other (`ConsumerGroups.turns`), each until its group is made: those that are being made do not count.
    """
    if await store.keys.count(*names_range()) >= groups_max:
        raise Refusal(Cause.QUOTA, f"there are {groups_max} groups already (groups.groups_max)")


def group_puts(group: str, record: GroupRecord) -> list[Put]:
    """Returns the changes that write the record of a group."""
    encoded = encode(record)
    return [Put(name_key(group), encoded), Put(group_key(group), encoded)]


async def new_group(store: StoreClient, controller: ControllerClient, request: JoinGroup) -> list[Put]:
    """Returns the changes that create a group; one that begins at the end has queue records. Raises `StoreError`."""
    made = group_puts(request.group, GroupRecord(request.topic, request.strategy))
    if request.start == "latest":
        queues = queues_of(controller, request.topic)
        bounds = await asyncio.gather(*(store.queues.bounds(QueueNumber(queue)) for queue in queues))
        ends = {queue: QueueRecord(found.next) for queue, found in zip(queues, bounds, strict=True)}
        made += queue_puts(request.group, ends)
    return made
