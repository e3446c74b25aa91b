"""One read of each of many sockets, and one write to each of many, in one call: compiled where that is possible.

The compiled calls (`_batches.c`) are built when the project is installed, if there is a C compiler; without them, or
with `HEADGATE_PURE` in the environment, `plain_batches` does the same in Python (docs/decisions/0057).
"""

import os
import select
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from gateway.sockets import plain_batches

PURE: Final = "HEADGATE_PURE"  # an environment variable; set, nothing compiled is used
SOCKETS_MAX: Final = 1_024  # of one call

ReaderT = TypeVar("ReaderT")


class BatchCalls(Protocol):
    """The calls, which are one thread's at a time. None of them waits, or gives the interpreter's lock away."""

    VERSION: int  # of this interface; a build of another is not used

    def receive(
        self, epoll: select.epoll, count_max: int, readers: Mapping[int, ReaderT], read_bytes: int, bytes_max: int, /
    ) -> tuple[list[tuple[ReaderT, bytes]], list[int], list[tuple[int, int]], int]:
        """Looks once at the sockets of an epoll object, and reads each that has something and a reader, once.

        At most `count_max` sockets are looked at (`SOCKETS_MAX`), `read_bytes` taken from one (`calls.READ_BYTES`), and
        none is read any more when `bytes_max` were. Returns the reads; the numbers of sockets that had `read_bytes` or
        more; the number and events of each that was not read, as it has no reader, other events, nothing, or an error;
        and how many bytes the reads have. Raises OSError for a file that is no epoll object, and ValueError. After any
        other error it is unknown which sockets were read.
        """

    def send(self, numbers: list[int], data: list[bytes], /) -> list[tuple[int, int]]:
        """Writes to each socket the bytes at the same place in the other list.

        Returns of each that did not take all: the index, and how many bytes it took, or its error's number below 0.
        Raises ValueError and TypeError, with nothing written; after any other error it is unknown how much was written.
        """


def chosen(environment: Mapping[str, str] = os.environ) -> BatchCalls:
    """Returns the compiled calls, or those in Python where there are none of this version or they are disabled."""
    if environment.get(PURE):
        return plain_batches
    try:
        from gateway.sockets import _batches  # noqa: PLC0415 - it may not have been built
    except ImportError:
        return plain_batches
    return _batches if _batches.VERSION == plain_batches.VERSION else plain_batches


CALLS: Final = chosen()
COMPILED: Final = CALLS is not plain_batches
