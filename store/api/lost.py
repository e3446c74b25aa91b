"""Messages that damage has taken, as `/status` lists them."""

import msgspec


class LostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a queue that damage has taken: the first offset and the one behind the last.

    `topic` is empty for a queue of sessions or of AMQP.
    """

    topic: str
    queue: int
    first: int
    next: int
