"""The retention of a queue's records: a record of the log, and the argument of `configure_queues`."""

from typing import Annotated

import msgspec
from msgspec import Meta

FOREVER = -1

_Queue = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_Limit = Annotated[int, Meta(ge=FOREVER, le=(1 << 63) - 1)]


class QueueConfig(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The retention of a queue's records, from the end of its frame on; it replaces the configuration before.

    None: the store's default. -1: without end. With `compact` the newest record of each key is kept without end. With
    `until_settled` the default is to keep only the messages that the queue's own consumers (the group "") have not
    settled. Once it is `closed` nothing more is written to the queue, also after it was deleted.
    """

    queue: _Queue
    retention_ms: _Limit | None = None
    retention_bytes: _Limit | None = None
    compact: bool = False
    until_settled: bool = False
    closed: bool = False
