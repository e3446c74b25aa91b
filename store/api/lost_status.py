"""Messages that damage has taken, as `/status` lists them. Commands load this, and no numpy."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class LostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a queue that damage has taken: the first offset and the one behind the last.

    `topic` is empty for a queue of sessions or of AMQP, and for one of a deleted topic until its messages are deleted.
    """

    topic: str
    queue: int
    first: int
    next: int


class LostList(NamedTuple):
    """The lost messages that `/status` lists, and the number of ranges that it leaves out."""

    ranges: Sequence[LostStatus] = ()
    more: int = 0
