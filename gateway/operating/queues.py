"""Topics' queues: where they lie, how much is in them, and who has not read all of a queue that is to be dropped.

Read are the offsets of consumer groups and the cursors of sessions, which are in the store. Readers that keep their
offsets themselves, as Spark does, are not known here.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from controller.api.client import ControllerClient, QueueClosed, Topic, UnknownQueue, UnknownTopic
from controller.api.commands import DeleteTopic, DropQueue
from gateway.domain.cursor import cursor_of_offsets
from gateway.groups.state import names_range
from gateway.groups.store import load_group
from gateway.ownership.owners import CURSORS, decode_cursor
from gateway.ownership.stored_entries import stored_entries
from store.api.client import StoreClient
from store.base.errors import StoreError
from store.format.frame import Position, QueueNumber, QueueOffset, group_of

NAMES_COUNT_MAX = 1_000  # consumer groups in one page
NAMED_COUNT_MAX = 8  # readers that one sentence names
FETCH_BYTES = 1


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as `topics list` shows it. `records` None: its group does not answer.

    `unread` counts the messages that the consumer group furthest behind has not committed.
    """

    number: int
    topic: str
    group: int
    state: str
    records: int | None = None
    unread: int = 0


class Unread(NamedTuple):
    """A reader that has not read all of a queue."""

    reader: str
    records: int


async def lines(controller: ControllerClient, store: StoreClient) -> Sequence[QueueLine]:
    """Returns every queue of every topic. Raises `StoreError`: the home group does not answer."""
    behind = await _of_groups(controller, store)
    found = []
    for topic in controller.topics():
        for number, group in zip(topic.queues, topic.groups, strict=True):
            try:
                bounds = await store.queues.bounds(QueueNumber(number))
                records = bounds.next - bounds.first
                unread = max((_left(offset, *bounds) for _, offset in behind.get(number, ())), default=0)
            except StoreError:
                records, unread = None, 0
            found.append(
                QueueLine(
                    number=number,
                    topic=topic.name,
                    group=group,
                    state=_state(topic, number),
                    records=records,
                    unread=unread,
                )
            )
    return found


async def unread(controller: ControllerClient, store: StoreClient, number: int) -> Sequence[Unread]:
    """Returns the readers that have not read all of a queue, those first that lack most. Raises `StoreError`."""
    first, end = await store.queues.bounds(QueueNumber(number))
    if first >= end:
        return ()
    groups = (await _of_groups(controller, store)).get(number, ())
    found = [Unread(f"consumer group {name!r}", _left(offset, first, end)) for name, offset in groups]
    last = await _position(store, number, QueueOffset(end - 1))
    mine = group_of(last.frame)
    places: dict[Position, int] = {}  # of sessions that have not come to the last record, and how many are there
    names: dict[Position, str] = {}
    async for entry in stored_entries(store, CURSORS):
        for at in cursor_of_offsets(decode_cursor(entry.value)):
            if group_of(at.frame) == mine and at <= last:
                places[at] = places.get(at, 0) + 1
                names.setdefault(at, entry.key.removeprefix(f"{CURSORS}/"))
    for at in sorted(places)[:NAMED_COUNT_MAX]:
        others = f" and {places[at] - 1} more" if places[at] > 1 else ""
        left = end - await _first_at(store, number, at, first, end)
        found.append(Unread(f"session {names[at]!r}{others} (if it subscribes to the topic)", left))
    return sorted([one for one in found if one.records], key=lambda one: -one.records)


async def drop(controller: ControllerClient, store: StoreClient | None, number: int) -> None:
    """Forgets a closed queue that all its readers have read to the end; without a store, in any case.

    Raises `UnknownQueue`, `QueueClosed`, `StoreError`.
    """
    name = controller.topic_of_queue(number)
    topic = None if name is None else controller.topic(name)
    if topic is None:
        raise UnknownQueue(f"no topic has a queue {number}")
    if store is not None and number in topic.closed:
        await _check_read(controller, store, topic, number, "drops it")
    await controller.do(DropQueue(number=number))


async def delete(controller: ControllerClient, store: StoreClient | None, name: str) -> None:
    """Forgets a topic with its queues that all their readers have read to the end; without a store, in any case.

    Raises `UnknownTopic`, `QueueClosed`, `StoreError`.
    """
    topic = controller.topic(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name!r}")
    if store is not None:
        for number in topic.queues:
            await _check_read(controller, store, topic, number, "deletes the topic")
    await controller.do(DeleteTopic(name=name))


async def _check_read(controller: ControllerClient, store: StoreClient, topic: Topic, number: int, forced: str) -> None:
    """Checks that all readers that are known have read all of a queue. Raises `QueueClosed`, `StoreError`."""
    left = await unread(controller, store, number)
    if left:
        who = ", ".join(f"{one.reader}: {one.records}" for one in left[:NAMED_COUNT_MAX])
        more = f" and {len(left) - NAMED_COUNT_MAX} more" if len(left) > NAMED_COUNT_MAX else ""
        raise QueueClosed(
            f"queue {number} of {topic.name} is not read to its end; unread are for {who}{more}; --force {forced}"
        )


def _state(topic: Topic, number: int) -> str:
    if number not in topic.closed:
        return "open"
    return f"closed, moved to {topic.moved[number]}" if number in topic.moved else "closed"


def _left(offset: int, first: int, end: int) -> int:
    return max(end - max(offset, first), 0)


async def _of_groups(controller: ControllerClient, store: StoreClient) -> dict[int, list[tuple[str, int]]]:
    """Returns each consumer group and its offset, by queue of its topic."""
    found: dict[int, list[tuple[str, int]]] = {}
    start, end = names_range()
    after: str | None = None
    while True:
        page = await store.keys.range(start, end, after=after, limit=NAMES_COUNT_MAX)
        names = [entry.key.removeprefix(start) for entry in page.entries]
        for group in await asyncio.gather(*(load_group(store, name) for name in names)):
            topic = None if group.header is None else controller.topic(group.header.record.topic)
            for queue in topic.queues if topic is not None else ():
                held = group.queues.get(queue)
                found.setdefault(queue, []).append((group.name, 0 if held is None else held.record.offset))
        if not page.more:
            return found
        after = page.entries[-1].key


async def _position(store: StoreClient, number: int, offset: QueueOffset) -> Position:
    fetched = await store.queues.fetch(QueueNumber(number), offset, max_bytes=FETCH_BYTES, max_rows=1)
    return Position(fetched.frames[0].start, fetched.rows[0][0])


async def _first_at(store: StoreClient, number: int, at: Position, first: int, end: int) -> int:
    """Returns the offset of the first record at a position of the log or behind it."""
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if await _position(store, number, QueueOffset(middle)) < at:
            low = middle + 1
        else:
            high = middle
    return low
