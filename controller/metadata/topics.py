"""Topics, named queues and their numbers: the part of the metadata that names the logs to read and write."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from controller.api.client import (
    ControllerError,
    NamedQueue,
    QueueClosed,
    Topic,
    TopicExists,
    TopicLimit,
    UnknownQueue,
    UnknownTopic,
)
from controller.api.commands import (
    CloseQueue,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    DropQueue,
    ForgetQueue,
    GrowTopic,
    MoveQueue,
    NameQueue,
)
from controller.api.names import TOPIC_NAME_BYTES_MAX, check_name
from controller.metadata.placement import place
from controller.metadata.plans import Change, Plans, no_change

FIRST_QUEUE_NUMBER = 16  # lower numbers are the store's own records
QUEUE_NAME_BYTES_MAX = 255  # AMQP 0-9-1, 1.2: a short string
CREATOR_BYTES_MAX = 320  # a user's name, and the kind of creator
QUEUES_PER_TOPIC_MAX = 1024  # to write to
DROPPED_COUNT_MAX = 4096  # queues that are remembered to be no more, so that nothing is written to them

Placeable: TypeAlias = Callable[[int | None], Sequence[int]]


class TopicTable:
    """All topics and named queues, and the plans of the commands about them (`controller.metadata.plans`).

    `placeable` names the groups that take new queues: all that do, or the one asked for, if it does.
    """

    def __init__(self, placeable: Placeable) -> None:
        self._placeable = placeable
        self.next_queue = FIRST_QUEUE_NUMBER  # greater than every number ever given
        self.topics: dict[str, Topic] = {}
        self.named: dict[str, NamedQueue] = {}
        self.owner: dict[int, str] = {}  # queue number -> topic
        self.group_of: dict[int, int] = {}  # queue number -> group, of topics' and named queues alike
        self.load: dict[int, int] = {}  # group -> its queues that are written to
        self.dropped: dict[int, int] = {}  # queue number -> group, the newest last; <= DROPPED_COUNT_MAX
        self.plans: Plans = {
            CreateTopic: self._create,
            ConfigureTopic: self._configure,
            DeleteTopic: self._delete,
            GrowTopic: self._grow,
            CloseQueue: self._close,
            MoveQueue: self._move,
            DropQueue: self._drop,
            NameQueue: self._name,
            ForgetQueue: self._forget,
        }

    def put(self, topic: Topic) -> Topic:
        """Takes a topic as it is now, and returns it."""
        there = self.topics.get(topic.name)
        if there is not None and there.queues == topic.queues and there.closed == topic.closed:
            self.topics[topic.name] = topic
            return topic
        if there is not None:
            self._remove_topic(there)
        self.topics[topic.name] = topic
        self.owner.update(dict.fromkeys(topic.queues, topic.name))
        self.group_of.update(zip(topic.queues, topic.groups, strict=True))
        for group in topic.groups[: len(topic.open)]:
            self._count(group, 1)
        self.next_queue = max(self.next_queue, *(number + 1 for number in topic.queues))
        return topic

    def put_named(self, queue: NamedQueue) -> NamedQueue:
        """Takes a named queue, and returns it."""
        if queue.name not in self.named:
            self.named[queue.name] = queue
            self.group_of[queue.number] = queue.group
            self._count(queue.group, 1)
            self.next_queue = max(self.next_queue, queue.number + 1)
        return queue

    def lies_in(self, group: int) -> bool:
        """Returns whether any queue lies in a group, closed ones included."""
        return bool(self.load.get(group)) or group in self.group_of.values()

    def _remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        for number in topic.queues:
            del self.owner[number], self.group_of[number]
        for group in topic.groups[: len(topic.open)]:
            self._count(group, -1)

    def _count(self, group: int, queues: int) -> None:
        self.load[group] = self.load.get(group, 0) + queues
        if not self.load[group]:
            del self.load[group]

    # ---- plans

    def _create(self, command: CreateTopic) -> Change[Topic]:
        there = self.topics.get(command.name)
        if there is not None:
            if len(there.open) != command.queues or dict(there.config) != dict(command.config):
                raise TopicExists(f"topic {command.name!r} exists with other queues or another configuration")
            return lambda: there
        check_name(command.name, TOPIC_NAME_BYTES_MAX)
        _check_count(command.queues)
        if len(self.topics) >= command.topics_max:
            raise TopicLimit(f"there are {len(self.topics)} topics, and no more are allowed")
        self._check_share(command.creator, command.creator_topics_max)
        numbers, groups = self._new(command.queues, command.queues_max)
        topic = Topic(name=command.name, queues=numbers, config=command.config, groups=groups, creator=command.creator)
        return partial(self.put, topic)

    def _check_share(self, creator: str, topics_max: int) -> None:
        """Raises `ControllerError` for a creator who has reached the limit of topics."""
        if not creator:
            return
        check_name(creator, CREATOR_BYTES_MAX)
        if topics_max and sum(topic.creator == creator for topic in self.topics.values()) >= topics_max:
            raise TopicLimit(f"one user makes at most {topics_max} topics (topics.topics_per_user_max)")

    def _configure(self, command: ConfigureTopic) -> Change[Topic]:
        return partial(self.put, msgspec.structs.replace(self._topic(command.name), config=command.config))

    def _delete(self, command: DeleteTopic) -> Change[None]:
        return partial(self._delete_topic, self._topic(command.name))

    def _delete_topic(self, topic: Topic) -> None:
        for number in topic.queues:
            self._remember_dropped(number)
        self._remove_topic(topic)

    def _grow(self, command: GrowTopic) -> Change[Topic]:
        there = self._topic(command.name)
        _check_count(command.queues)
        numbers, groups = self._new(max(command.queues - len(there.open), 0), command.queues_max, command.group)
        return partial(self.put, _edited(there, open_=(*_opened(there), *zip(numbers, groups, strict=True))))

    def _close(self, command: CloseQueue) -> Change[Topic]:
        there = self._topic_with(command.number)
        if command.number in there.closed:
            return lambda: there
        if len(there.open) == 1:
            raise QueueClosed(f"queue {command.number} is the only queue that {there.name} writes to")
        after = _edited(
            there,
            open_=[pair for pair in _opened(there) if pair[0] != command.number],
            closing=[(command.number, self.group_of[command.number])],
        )
        return partial(self.put, after)

    def _move(self, command: MoveQueue) -> Change[Topic]:
        there = self._topic_with(command.number)
        if command.number in there.closed:
            if self.group_of.get(there.moved.get(command.number, 0)) == command.group:
                return lambda: there  # moved there before
            raise QueueClosed(f"queue {command.number} is closed: it has been moved elsewhere, or is being drained")
        if self.group_of[command.number] == command.group:
            return lambda: there
        (number,), (group,) = self._new(1, command.queues_max, command.group)
        after = _edited(
            there,
            open_=[(number, group) if pair[0] == command.number else pair for pair in _opened(there)],
            closing=[(command.number, self.group_of[command.number])],
        )
        return partial(self.put, msgspec.structs.replace(after, moved={**there.moved, command.number: number}))

    def _drop(self, command: DropQueue) -> Change[None]:
        gone = command.number
        if gone not in self.owner:
            return no_change
        there = self._topic_with(gone)
        if gone not in there.closed:
            raise QueueClosed(f"queue {gone} is open: close it, and drain it")
        kept = [pair for pair in zip(there.queues, there.groups, strict=True) if pair[0] != gone]
        successor = there.moved.get(gone)
        moved = {old: new if new != gone else successor for old, new in there.moved.items() if old != gone}
        after = msgspec.structs.replace(
            there,
            queues=tuple(number for number, _ in kept),
            groups=tuple(group for _, group in kept),
            closed=tuple(number for number in there.closed if number != gone),
            moved={old: new for old, new in moved.items() if new is not None},
        )
        return partial(self._put_without, after, gone)

    def _put_without(self, topic: Topic, gone: int) -> None:
        self._remember_dropped(gone)
        self.put(topic)

    def _remember_dropped(self, number: int) -> None:
        self.dropped[number] = self.group_of[number]
        if len(self.dropped) > DROPPED_COUNT_MAX:
            del self.dropped[next(iter(self.dropped))]

    def _name(self, command: NameQueue) -> Change[NamedQueue]:
        there = self.named.get(command.name)
        if there is not None:
            return lambda: there
        check_name(command.name, QUEUE_NAME_BYTES_MAX)
        (number,), (group,) = self._new(1, command.queues_max, command.group)
        return partial(self.put_named, NamedQueue(name=command.name, number=number, group=group))

    def _forget(self, command: ForgetQueue) -> Change[None]:
        queue = self.named.get(command.name)
        if queue is None or command.number not in {0, queue.number}:
            return no_change
        return partial(self._remove_named, queue)

    def _remove_named(self, queue: NamedQueue) -> None:
        del self.named[queue.name], self.group_of[queue.number]
        self._count(queue.group, -1)

    def _topic(self, name: str) -> Topic:
        there = self.topics.get(name)
        if there is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return there

    def _topic_with(self, number: int) -> Topic:
        name = self.owner.get(number)
        if name is None:
            named = next((repr(one.name) for one in self.named.values() if one.number == number), None)
            hint = "" if named is None else f": it is that of the named queue {named} (headgate amqp move-queue)"
            raise UnknownQueue(f"no topic has a queue {number}{hint}")
        return self.topics[name]

    def _new(self, count: int, queues_max: int, group: int | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns numbers and groups of new queues."""
        there = len(self.group_of)
        if there + count > queues_max:
            raise TopicLimit(f"there are {there} queues, and no more than {queues_max} are allowed")
        numbers = tuple(range(self.next_queue, self.next_queue + count))
        return numbers, place(count, self._placeable(group), self.load)


def _opened(topic: Topic) -> Sequence[tuple[int, int]]:
    """Returns queues to write to, each with its group."""
    return list(zip(topic.open, topic.groups, strict=False))


def _edited(topic: Topic, *, open_: Sequence[tuple[int, int]], closing: Sequence[tuple[int, int]] = ()) -> Topic:
    """Returns the topic with these queues to write to, and one more closed."""
    closed = [*list(zip(topic.queues, topic.groups, strict=True))[len(topic.open) :], *closing]
    pairs = [*open_, *closed]
    return msgspec.structs.replace(
        topic,
        queues=tuple(number for number, _ in pairs),
        groups=tuple(group for _, group in pairs),
        closed=tuple(number for number, _ in closed),
    )


def _check_count(queues: int) -> None:
    if not 1 <= queues <= QUEUES_PER_TOPIC_MAX:
        raise ControllerError(f"a topic has 1 to {QUEUES_PER_TOPIC_MAX} queues, not {queues}")
