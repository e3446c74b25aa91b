"""Long-lived streams between processes: the parts that all kinds of them share.

`Backoff` gives the pauses between attempts, `keep_connected` repeats attempts until it is cancelled, `until_one_ends`
runs the parts of one connection side by side, and `wait_at_most` awaits an event with a time limit. `Stream` reads and
writes a call, `Silence` notices a peer that sends nothing, and an `ErrorTable` says how a protocol's errors travel.
Each protocol decides on its messages, and how long a peer may be silent (docs/decisions/0042).

Imported by: store.*, controller.node, controller.remote, controller.wire, gateway.*, spark.publishing.
Imports: none.
"""

from store.base.streams.backoff import Backoff
from store.base.streams.connecting import Silence, keep_connected, until_one_ends
from store.base.streams.errors import ERROR_KEY, ErrorTable
from store.base.streams.event_wait import wait_at_most
from store.base.streams.stream import FIXED_WINDOW, Stream, of_call, open_channel, opened

__all__ = [
    "ERROR_KEY",
    "FIXED_WINDOW",
    "Backoff",
    "ErrorTable",
    "Silence",
    "Stream",
    "keep_connected",
    "of_call",
    "open_channel",
    "opened",
    "until_one_ends",
    "wait_at_most",
]
