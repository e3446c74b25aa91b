"""Lease policies: the kinds of consumer groups, and their limits.

There are three kinds. A *cursor* group (`commit_offsets`) has one offset a queue; it costs a few bytes however long the
queue is, and messages are done with in order. A *lease* group takes single messages and settles each on its own
(`take`); it costs memory for messages that are leased or wait for another try, and disk for each gap between settled
ones. An *ordered* lease group leases no two messages of one key at the same time, and those of one key in their order;
it looks ahead of a blocked key by at most `PASSED_OVER_MAX` messages.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from store.format.frame import QueueNumber

INVISIBLE_MS_MAX = 12 * 3600 * 1000  # how long one lease may be asked for; it can be extended again and again
BACKOFF_MS_MAX = 24 * 3600 * 1000  # how long a message may be kept back before it is leased again
TIMED_LEASES_MAX = 100_000  # messages of one queue that a group has leased for a time, or keeps back
PASSED_OVER_MAX = 10_000  # messages an ordered group holds back, of one queue, behind those of their keys

_Milliseconds = Annotated[int, Meta(ge=0, le=BACKOFF_MS_MAX)]


class LeasePolicy(msgspec.Struct, frozen=True, array_like=True):
    """The rules of a group's leases of one queue. Stored with the queue: they outlive their author.

    A message that comes back `max_deliveries` times is given up: it goes to `dead_letter_queue`, or is settled where
    there is none. One that comes back is leased again after `backoff_ms`, twice that the next time, and so on up to
    `backoff_max_ms`, unless its consumer says when.
    """

    max_deliveries: Annotated[int, Meta(ge=0, le=1 << 31)] = 0  # 0: it may come back forever
    dead_letter_queue: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] = 0  # 0: none
    invisible_ms: Annotated[int, Meta(ge=0, le=INVISIBLE_MS_MAX)] = 0  # of a take that does not say; 0: forever
    backoff_ms: _Milliseconds = 0
    backoff_max_ms: _Milliseconds = 0  # 0: `backoff_ms` every time
    ordered: bool = False

    def delay_ms(self, deliveries: int) -> int:
        """Returns how long a message is kept back that has come back `deliveries` times."""
        if not self.backoff_ms or deliveries <= 0:
            return 0
        longest = max(self.backoff_ms, self.backoff_max_ms)
        return min(self.backoff_ms << min(deliveries - 1, 40), longest)

    def exhausted(self, deliveries: int) -> bool:
        """Returns whether a message that has come back `deliveries` times is given up."""
        return 0 < self.max_deliveries <= deliveries

    @property
    def target(self) -> QueueNumber | None:
        """Returns the queue to which dead letters go; None: there is none."""
        return QueueNumber(self.dead_letter_queue) if self.dead_letter_queue else None


DEFAULT = LeasePolicy()
