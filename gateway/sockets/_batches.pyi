"""The compiled twin of `gateway.sockets.plain_batches`, where there is one."""

import select
from collections.abc import Mapping
from typing import TypeVar

ReaderT = TypeVar("ReaderT")

VERSION: int

def receive(
    epoll: select.epoll, count_max: int, readers: Mapping[int, ReaderT], read_bytes: int, bytes_max: int, /
) -> tuple[list[tuple[ReaderT, bytes]], list[int], list[tuple[int, int]], int]:
    """See `gateway.sockets.batches.BatchCalls`."""

def send(numbers: list[int], data: list[bytes], /) -> list[tuple[int, int]]:
    """See `gateway.sockets.batches.BatchCalls`."""
