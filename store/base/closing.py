"""Closing at the end of a block: `async with` over an object that has a `close`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class AsyncClosing(ABC):
    """An object that `async with` closes at the end of its block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Ends the object's work, and frees its resources."""
