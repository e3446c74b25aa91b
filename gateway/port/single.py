"""The part of the adapter port for reads of one message each, which needs no effect, token or outcome."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from gateway.domain.principal import Principal
from gateway.port.adapter import Publish
from store.api.message import Message
from store.format.frame import Position


class Single(msgspec.Struct, frozen=True, gc=False):
    """One plain message of a read that holds nothing else than such messages, with the bytes that acknowledge it.

    Where these bytes say the place of the message, `answer` makes them of this, the place, and ms since 1970.
    """

    message: Message
    acknowledgement: bytes
    who: Principal | None = None  # the publisher; None: the principal that the connection has named last
    answer: Callable[["Single", Position, int], bytes] | None = None
    read: bytes = b""  # its bytes as they came, for adapters that read them again where it takes the general way


# Of reads of different connections, each with its adapter, and the time in ms since 1970: the messages of each read
# that is nothing else than a few plain messages; none, with nothing done, for the others.
Singles: TypeAlias = Callable[[Sequence[tuple[Any, bytes]], int], Sequence[Sequence[Single]]]


@runtime_checkable
class SingleAdapter(Protocol):
    """An adapter whose peers often send one message at a time: for that one it makes no effect, token and outcome.

    The shell asks only while nothing else that the connection has published is in flight. Where the message is stored
    it writes the acknowledgement, in the order of the reads; where anything else comes of it, it takes the general way,
    and those before and behind it, too: `publish_of`, in the order of the reads.
    """

    singles: Singles  # the same one for all adapters of a kind, whose reads of one turn it takes together
    singles_max: int  # of one connection: while so many are in flight, the shell does not ask for those of a read

    def publish_of(self, single: Single) -> Publish:
        """Returns the effect that `receive` would have had for it; its outcome follows."""
