"""The telemetry job in a process of its own, and what its tables say."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.demo.children import Child
from deploy.demo.plan import Target
from deploy.demo.view import Aggregate

__all__ = ["SparkJob"]


class SparkJob:
    """`headgate spark telemetry`, and its progress as of the last `look`."""

    def __init__(self, child: Child, root: Path) -> None:
        self.child = child
        self.counts: Mapping[str, int] = {}
        self.words = "starting"
        self.aggregates: Sequence[Aggregate] = ()
        self._root = root

    @classmethod
    async def start(cls, target: Target, root: Path, logs: Path) -> "SparkJob | None":
        """Start it; None when there is no Java runtime for it."""
        return None

    def look(self) -> None:
        """Read its tables. Blocking."""

    async def stop(self) -> None:
        """End it."""
        await self.child.stop()
