"""Marks: notes on a session's messages in its log, so that none is stored twice (MQTT's QoS 2).

A mark travels in the same frame as its message: a log has both or neither, whatever happens to the gateway meanwhile.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec


class Fence(NamedTuple):
    """The fence of a session's owner: frames of earlier owners are not stored (`store.guards`)."""

    name: bytes
    epoch: int


class Marks(msgspec.Struct, frozen=True, gc=False):
    """The marks of some messages of one `Publish`.

    They replace the marks of the session's logs in the same slot; the adapter may reuse the slot once its saved session
    holds the same.
    """

    key: str  # as `OpenedMarks` says
    slot: int
    of: Mapping[int, bytes]  # by the message's index, bytes that only the adapter reads
    stored: frozenset[int] = frozenset()  # the store groups that have the message already, which is the only one
    fence: Fence | None = None  # as `OpenedMarks` says


class Mark(NamedTuple):
    """A mark that was found in the log of a store group. Its message is in so many groups, each with such a mark."""

    slot: int
    group: int
    mark: bytes
    groups: int


class OpenedMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The marks of a durable session when it is opened. `found` is empty unless the session had said it uses them."""

    key: str = ""  # for `Marks`; "": there can be none
    fence: Fence | None = None  # for `Marks`; None where no other proxy can own the session
    used: bool = False
    found: Sequence[Mark] = ()


NO_MARKS: Final = OpenedMarks()
