"""What everybody else can ask of the controller, in process or over the network."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

__all__ = [
    "ControllerClient",
    "ControllerDamaged",
    "ControllerError",
    "NamedQueue",
    "Topic",
    "TopicExists",
    "TopicLimit",
    "UnknownTopic",
]


class ControllerError(Exception):
    """The root of what a controller refuses."""


class ControllerDamaged(ControllerError):
    """What the controller keeps cannot be read, and it cannot be made from anything else."""


class UnknownTopic(ControllerError):
    """There is no topic of that name."""


class TopicExists(ControllerError):
    """There is one of that name already, with another configuration."""


class TopicLimit(ControllerError):
    """The cluster has as many topics or queues as its configuration allows."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: the unit of configuration, retention and access. `queues` are its queue numbers, by index."""

    name: str
    queues: tuple[int, ...]
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)


class NamedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with a name of its own: the index behind an AMQP queue."""

    name: str
    number: int


class ControllerClient(Protocol):
    """The metadata of a cluster. Every command is idempotent: the same call again changes nothing and answers the same.

    The synchronous methods answer from a cache that is never behind a command this client has awaited.
    """

    def topic(self, name: str) -> Topic | None:
        """A topic by name."""

    def topics(self) -> Sequence[Topic]:
        """All topics, by name."""

    def topic_of_queue(self, number: int) -> str | None:
        """The name of the topic a queue belongs to."""

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the event loop after every change. Returns what stops it."""

    async def create_topic(
        self, name: str, *, queues: int | None = None, config: Mapping[str, Any] | None = None
    ) -> Topic:
        """Create a topic, or return it when it is there and agrees. Raises `TopicExists`, `TopicLimit`."""

    async def configure_topic(self, name: str, config: Mapping[str, Any]) -> Topic:
        """Replace a topic's configuration. Raises `UnknownTopic`."""

    async def delete_topic(self, name: str) -> None:
        """Forget a topic. Raises `UnknownTopic`."""

    async def name_queue(self, name: str) -> NamedQueue:
        """The number of a named queue, given now when it had none. Raises `TopicLimit`."""

    async def forget_queue(self, name: str) -> None:
        """Forget a named queue; its number is never given again."""
