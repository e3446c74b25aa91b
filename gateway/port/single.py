"""The part of the adapter port for connections with one message in flight, which needs no effect, token or outcome."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from gateway.domain.principal import Principal
from gateway.port.adapter import Publish
from store.api.message import Message
from store.format.frame import Position


class Single(msgspec.Struct, frozen=True, gc=False):
    """The one message that a read held, and nothing else, with the bytes that acknowledge it.

    Where these bytes say the place of the message, `answer` makes them of this, the place, and ms since 1970.
    """

    message: Message
    acknowledgement: bytes
    who: Principal | None = None  # the publisher; None: the principal that the connection has named last
    answer: Callable[["Single", Position, int], bytes] | None = None
    read: bytes = b""  # as it came, for adapters that read it again where the message takes the general way


# Of reads of different connections, each with its adapter, and the time in ms since 1970: the message of each read that
# is exactly one plain `Publish`; None, with nothing done, for the others.
Singles: TypeAlias = Callable[[Sequence[tuple[Any, bytes]], int], Sequence[Single | None]]


@runtime_checkable
class SingleAdapter(Protocol):
    """An adapter whose peers often have one message in flight: for that one it makes no effect, token and outcome.

    The shell asks only while nothing that the connection has published is in flight. Where the message is stored it
    writes the acknowledgement; where anything else comes of it, it takes the general way: `publish_of`.
    """

    singles: Singles  # the same one for all adapters of a kind, whose reads of one turn it takes together

    def publish_of(self, single: Single) -> Publish:
        """Returns the effect that `receive` would have had for it; its outcome follows."""
