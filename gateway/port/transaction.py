"""Messages that are stored and leased messages that are settled, all of them or none."""

from collections.abc import Sequence

import msgspec

from store.format.frame import QueueNumber, QueueOffset


class SettlingTransaction(msgspec.Struct, frozen=True):
    """The settlements that belong to a `Publish`: in one frame for each store group concerned.

    If one message is refused, nothing is done, and all are refused. Where several store groups are concerned, each does
    its part or nothing, and a failure of one leaves the others' done: the outcome says so (Cause.UNKNOWN).
    """

    settled: Sequence[tuple[QueueNumber, Sequence[QueueOffset]]] = ()  # each queue once
