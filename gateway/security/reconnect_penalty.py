"""Clients that lose their connection again and again for the same: they are logged once, and let in more slowly.

A client of MQTT 3.1.1 that sends a message over a limit can be told so by nothing but the end of its connection. Most
of them connect again and send it again, forever and as fast as they can.

A client is recognised by its address and its user, besides the client identifier, which any client can claim: a client
that uses another's identifier does not slow down the other.
"""

from collections import OrderedDict
from typing import NamedTuple

from store.base import logs

FREE_COUNT = 3  # ends in a row before a client is slowed down
FORGET_MS = 600_000  # after so long without another, a client begins anew
FIRST_DELAY_MS = 250  # doubled with every further one
DELAY_MS_MAX = 4_000  # clients give up waiting for a CONNACK after 5 s and more
CLIENTS_COUNT_MAX = 10_000  # remembered; of more, those are forgotten that ended longest ago

log = logs.get(__name__)


class ReconnectingClient(NamedTuple):
    """A client: of one protocol, one network, one user ("" without a name), and one client identifier."""

    protocol: str
    network: str
    user: str
    client: str


class _Record(NamedTuple):
    times: int
    last_ms: int


class ReconnectPenalty:
    """Counts, by client, connections that ended for an error that the client is likely to repeat."""

    def __init__(self) -> None:
        self._records: OrderedDict[ReconnectingClient, _Record] = OrderedDict()  # the latest last

    def note(self, who: ReconnectingClient, reason: str, *, now_ms: int) -> None:
        """Notes that a connection of a client ends."""
        count = self._count(who, now_ms) + 1
        self._records[who] = _Record(count, now_ms)
        self._records.move_to_end(who)
        if len(self._records) > CLIENTS_COUNT_MAX:
            self._records.popitem(last=False)
        if count == FREE_COUNT:
            log.warning("a client is disconnected for the same reason again and again", **who._asdict(), why=reason)

    def delay_ms(self, who: ReconnectingClient, *, now_ms: int) -> int:
        """Returns how long a client waits before it is let in."""
        beyond = self._count(who, now_ms) - FREE_COUNT
        return 0 if beyond < 0 else min(FIRST_DELAY_MS << min(beyond, 16), DELAY_MS_MAX)

    def _count(self, who: ReconnectingClient, now_ms: int) -> int:
        record = self._records.get(who)
        return 0 if record is None or now_ms - record.last_ms >= FORGET_MS else record.times
