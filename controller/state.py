"""The metadata of a cluster as a deterministic state machine.

Commands are values that carry everything they need, their time included; `MetadataState.apply` turns one command into
an answer or a `ControllerError` and never looks at a clock, at chance, or at anything but itself. Every command is
idempotent. Replicas that apply the same commands in the same order hold equal snapshots.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from controller.client import ControllerError, NamedQueue, Topic, TopicExists, TopicLimit, UnknownTopic

__all__ = [
    "FIRST_QUEUE_NUMBER",
    "Command",
    "ConfigureTopic",
    "CreateTopic",
    "DeleteTopic",
    "ForgetQueue",
    "MetadataState",
    "NameQueue",
    "decode_command",
    "encode_command",
]

FIRST_QUEUE_NUMBER = 16  # lower numbers are the store's own records
TOPIC_NAME_BYTES_MAX = 255
QUEUE_NAME_BYTES_MAX = 255  # AMQP 0-9-1, 1.2: a short string
QUEUES_PER_TOPIC_MAX = 1024


class CreateTopic(msgspec.Struct, frozen=True, kw_only=True, tag="create_topic"):
    """Create a topic with so many queues, numbered from the next free number on. Answer: `Topic`."""

    name: str
    queues: int
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    topics_max: int
    queues_max: int
    time_ms: int


class ConfigureTopic(msgspec.Struct, frozen=True, kw_only=True, tag="configure_topic"):
    """Replace a topic's configuration. Answer: `Topic`."""

    name: str
    config: Mapping[str, Any]
    time_ms: int


class DeleteTopic(msgspec.Struct, frozen=True, kw_only=True, tag="delete_topic"):
    """Forget a topic. Its queue numbers are never given again. Answer: None."""

    name: str
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


Command: TypeAlias = CreateTopic | ConfigureTopic | DeleteTopic | NameQueue | ForgetQueue

encode_command = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    next_queue: int
    topics: tuple[Topic, ...]
    named: tuple[NamedQueue, ...]


class MetadataState:
    """Topics, named queues, and the numbers given to them."""

    def __init__(self) -> None:
        self.next_queue = FIRST_QUEUE_NUMBER  # greater than every number ever given
        self.topics: dict[str, Topic] = {}
        self.named: dict[str, NamedQueue] = {}
        self.owner: dict[int, str] = {}  # queue number -> topic

    def check(self, command: Command) -> None:
        """Whether a command can be applied now. Raises `ControllerError`, as `apply` would."""
        match command:
            case CreateTopic():
                self._check_topic(command)
            case ConfigureTopic() | DeleteTopic():
                if command.name not in self.topics:
                    raise UnknownTopic(command.name)
            case NameQueue() if command.name not in self.named:
                _check_name(command.name, QUEUE_NAME_BYTES_MAX)
                self._check_room(1, command.queues_max)
            case _:
                return

    def apply(self, command: Command) -> Topic | NamedQueue | None:
        """Apply one command and return its answer. Raises `ControllerError`, having changed nothing."""
        self.check(command)
        match command:
            case CreateTopic():
                return self._create_topic(command)
            case ConfigureTopic():
                there = self.topics[command.name]
                topic = self.topics[command.name] = msgspec.structs.replace(there, config=command.config)
                return topic
            case DeleteTopic():
                for number in self.topics.pop(command.name).queues:
                    del self.owner[number]
                return None
            case NameQueue():
                return self._name_queue(command)
            case ForgetQueue():
                self.named.pop(command.name, None)
                return None

    def snapshot(self) -> bytes:
        """The whole state, equal for equal states."""
        return msgspec.msgpack.encode(
            _Snapshot(
                next_queue=self.next_queue,
                topics=tuple(self.topics[name] for name in sorted(self.topics)),
                named=tuple(self.named[name] for name in sorted(self.named)),
            )
        )

    @classmethod
    def restore(cls, snapshot: bytes) -> "MetadataState":
        """The state a snapshot was taken of."""
        held = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        state = cls()
        state.next_queue = held.next_queue
        state.topics = {topic.name: topic for topic in held.topics}
        state.named = {queue.name: queue for queue in held.named}
        state.owner = {number: topic.name for topic in held.topics for number in topic.queues}
        return state

    def _check_topic(self, command: CreateTopic) -> None:
        there = self.topics.get(command.name)
        if there is not None:
            if len(there.queues) != command.queues or dict(there.config) != dict(command.config):
                raise TopicExists(command.name)
            return
        _check_name(command.name, TOPIC_NAME_BYTES_MAX)
        if not 1 <= command.queues <= QUEUES_PER_TOPIC_MAX:
            raise ControllerError(f"a topic has 1 to {QUEUES_PER_TOPIC_MAX} queues, not {command.queues}")
        if len(self.topics) >= command.topics_max:
            raise TopicLimit(f"there are {len(self.topics)} topics, and no more are allowed")
        self._check_room(command.queues, command.queues_max)

    def _create_topic(self, command: CreateTopic) -> Topic:
        there = self.topics.get(command.name)
        if there is not None:
            return there
        numbers = tuple(range(self.next_queue, self.next_queue + command.queues))
        self.next_queue += command.queues
        topic = Topic(name=command.name, queues=numbers, config=command.config)
        self.topics[command.name] = topic
        self.owner.update(dict.fromkeys(numbers, command.name))
        return topic

    def _name_queue(self, command: NameQueue) -> NamedQueue:
        there = self.named.get(command.name)
        if there is not None:
            return there
        queue = NamedQueue(name=command.name, number=self.next_queue)
        self.next_queue += 1
        self.named[command.name] = queue
        return queue

    def _check_room(self, queues: int, queues_max: int) -> None:
        there = len(self.owner) + len(self.named)
        if there + queues > queues_max:
            raise TopicLimit(f"there are {there} queues, and no more than {queues_max} are allowed")


def _check_name(name: str, bytes_max: int) -> None:
    if not name or len(name.encode("utf-8", "surrogatepass")) > bytes_max:
        raise ControllerError(f"a name has 1 to {bytes_max} bytes")
