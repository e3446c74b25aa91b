"""The part of the adapter port for connections with one message under way, which needs no effect, token or outcome."""

from typing import NamedTuple, Protocol, runtime_checkable

from gateway.port.adapter import Publish
from store.api.message import Message

__all__ = ["Single", "SingleAdapter"]


class Single(NamedTuple):
    """The one message that a read held, and nothing else, with the bytes that acknowledge it."""

    message: Message
    acknowledgement: bytes


@runtime_checkable
class SingleAdapter(Protocol):
    """An adapter whose peers often have one message under way: for that one it makes no effect, token and outcome.

    The shell asks only while nothing that the connection has published is under way. Where the message is stored it
    writes the acknowledgement; where anything else comes of it, it goes the way of all: `publish_of`.
    """

    def single(self, data: bytes, *, now_ms: int) -> Single | None:
        """Returns the message of a read that is exactly one plain `Publish`; None, with nothing done, otherwise."""

    def publish_of(self, single: Single) -> Publish:
        """Returns the effect that `receive` would have had for it; its outcome follows."""
