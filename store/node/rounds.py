"""Reads of a master that wait for a round: until enough replicas have said that they follow it still."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from store.base.errors import NotMaster, NotWritable
from store.node.replica.context import ReplicaContext
from store.replication.master import Master


class _Read(NamedTuple):
    """A read that waits for a round."""

    round: int
    agreed: "asyncio.Future[None]"


class Rounds:
    """The waiting reads of one master. `answer` is called after every event of the core, `end` when its role ends."""

    def __init__(self, core: Master, context: ReplicaContext, asked: Callable[[], None]) -> None:
        self._core = core
        self._context = context
        self._asked = asked
        self._reads: list[_Read] = []
        self._over = False

    async def agreed(self) -> None:
        """Returns when it is certain that no newer master existed at the call. Raises `NotMaster`, `NotWritable`."""
        core = self._core
        if core.ended is not None or self._over:
            raise NotMaster(f"this node is not the master of store group {self._context.group} any more")
        number = core.ask_round()
        if core.round_agreed >= number:
            return
        read = _Read(number, asyncio.get_running_loop().create_future())
        self._reads.append(read)
        self._asked()
        try:
            async with asyncio.timeout(self._context.pace.stall_ms / 1000):
                await read.agreed
        except TimeoutError as error:
            raise NotWritable("too few replicas confirm that this is still the master") from error
        finally:
            with suppress(ValueError):
                self._reads.remove(read)

    def answer(self) -> None:
        """Lets those read whose round is agreed."""
        if not self._reads:
            return
        agreed = self._core.round_agreed
        for read in self._reads:
            if read.round <= agreed and not read.agreed.done():
                read.agreed.set_result(None)

    def end(self, why: NotMaster) -> None:
        """Refuses all that wait, and all later ones."""
        self._over = True
        for read in self._reads:
            if not read.agreed.done():
                read.agreed.set_exception(why)
        self._reads.clear()
