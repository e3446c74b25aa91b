"""The settings of a topic: read from `[[topics.configure]]`, kept by the controller, and applied elsewhere.

The controller holds a topic's configuration as plain values, so that every node can read it. The store gets its part
queue by queue, as records of its log.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from controller.api.client import Topic
from store.format.frame import QueueNumber
from store.format.queue_config import FOREVER, QueueConfig

_Limit = Annotated[int, Meta(ge=FOREVER)]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[[topics.configure]]`: a topic, made when it is missing.

    Settings that are left out are as `[topics]` and `[store]` say.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9$_.-]{1,127}$", description="the topic")]
    queues: Annotated[int, Meta(ge=1, le=1024, description="of a new topic")] | None = None
    retention_ms: Annotated[_Limit, Meta(description="how long messages are kept; -1: for ever")] | None = None
    retention_bytes: (
        Annotated[_Limit, Meta(description="bytes kept, in equal shares for its queues; -1: no limit")] | None
    ) = None
    flush: Annotated[
        Literal["sync", "async"], Meta(description="whether a message is on disk before it is acknowledged")
    ] = "sync"
    compact: Annotated[bool, Meta(description="keep the newest message of each key and address for ever")] = False
    prefer: (
        Annotated[Literal["zone"], Meta(description="messages without a key go to queues in the zone of their proxy")]
        | None
    ) = None
    index: Annotated[tuple[Literal["key", "address"], ...], Meta(description="the indexes of its messages")] | None = (
        None
    )

    def config(self) -> dict[str, Any]:
        """Returns the topic's configuration for the controller: the settings that are not the default."""
        said = msgspec.structs.asdict(self)
        values = {
            key: said[key] for key in ("retention_ms", "retention_bytes", "prefer", "index") if said[key] is not None
        }
        if "index" in values:
            values["index"] = list(values["index"])
        if self.flush != "sync":
            values["flush"] = self.flush
        if self.compact:
            values["compact"] = True
        return values


def is_async(config: Mapping[str, Any]) -> bool:
    """Returns whether a topic's messages may be acknowledged before they are on disk."""
    return config.get("flush") == "async"


def is_compacted(config: Mapping[str, Any]) -> bool:
    """Returns whether a topic keeps the newest message of each key."""
    return config.get("compact") is True


def prefers_zone(config: Mapping[str, Any]) -> bool:
    """Returns whether a topic's messages without a key stay in the zone they are published in."""
    return config.get("prefer") == "zone"


def queue_configs(topic: Topic) -> Sequence[QueueConfig]:
    """Returns the store's settings of a topic's queues; a topic without settings has empty ones."""
    config = topic.config
    size = config.get("retention_bytes")
    if size is not None and size >= 0:
        size = -(-size // len(topic.queues))
    return [
        QueueConfig(QueueNumber(queue), config.get("retention_ms"), size, is_compacted(config))
        for queue in topic.queues
    ]


def summary(config: Mapping[str, Any]) -> str:
    """Returns a topic's configuration in a line, "" for one that says nothing."""
    return " ".join(f"{key}={_shown(value)}" for key, value in sorted(config.items()))


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value).lower()
