"""The calls of `gateway.sockets.batches` in Python, for machines where they were not compiled."""

import ctypes
import select
from collections.abc import Mapping
from typing import Final, TypeVar

from gateway.sockets import calls

VERSION: Final = 1

ReaderT = TypeVar("ReaderT")

_READABLE: Final = select.EPOLLIN


def receive(
    epoll: select.epoll, count_max: int, readers: Mapping[int, ReaderT], read_bytes: int, bytes_max: int, /
) -> tuple[list[tuple[ReaderT, bytes]], list[int], list[tuple[int, int]], int]:
    """See `gateway.sockets.batches.BatchCalls`."""
    receive_one, buffer = calls.receive, calls.BUFFER
    reads: list[tuple[ReaderT, bytes]] = []
    full: list[int] = []
    others: list[tuple[int, int]] = []
    size_bytes = 0
    for number, events in epoll.poll(0, count_max):
        if (
            events == _READABLE
            and size_bytes < bytes_max
            and (reader := readers.get(number)) is not None
            and (size := receive_one(number, buffer, read_bytes, 0)) > 0
        ):
            reads.append((reader, buffer[:size]))
            size_bytes += size
            if size == read_bytes:
                full.append(number)
        else:
            others.append((number, events))
    return reads, full, others, size_bytes


def send(numbers: list[int], data: list[bytes], /) -> list[tuple[int, int]]:
    """See `gateway.sockets.batches.BatchCalls`."""
    send_one = calls.send
    short: list[tuple[int, int]] = []
    for index, (number, said) in enumerate(zip(numbers, data, strict=True)):
        size = len(said)
        taken: int = send_one(number, said, size, calls.NO_SIGNAL)
        if taken != size:
            if taken < 0:
                error = ctypes.get_errno()
                taken = 0 if error in calls.NOTHING_YET else -error
            short.append((index, taken))
    return short
