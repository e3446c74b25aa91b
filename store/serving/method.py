"""A method of a session: the decoder of its arguments, and the function that runs it."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from store.rpc.budget import Share

VALUE_BYTES = 64 << 10  # reserved for an answer whose size is not known

# Runs a method with the session, its arguments, the number of the call, and a share of the budget for its reads.
Run: TypeAlias = Callable[[Any, Any, int, Share], Awaitable[bytes]]


class Method(NamedTuple):
    """A method of a session: the decoder of its arguments, and the function that runs it."""

    decode: Callable[[msgspec.Raw], Any]
    run: Run
    anywhere: bool  # a replica may answer it
    waits: bool  # it changes nothing, and may take forever
