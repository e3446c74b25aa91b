"""Holds commit batches of a master until the other replicas have them."""

import asyncio
from collections import deque
from collections.abc import Callable

from store.api.log import Appended, OnAppended
from store.base.errors import AppendOutcomeUnknown, StoreError
from store.engine.commit import Committed
from store.format.frame import LogOffset
from store.log.run import FrameRun


class Gate:
    """Lets commit batches through in order: acknowledged frames are answered, confirmed frames can be read.

    Belongs to the thread of the event loop.
    """

    def __init__(self, confirmed: LogOffset, let_through: Callable[[Committed], None]) -> None:
        self._confirmed = confirmed
        self._acknowledged = confirmed  # >= _confirmed
        self._let_through = let_through
        self._answered: deque[FrameRun] = deque()  # and not confirmed; before all that is held
        self._held: deque[Committed] = deque()
        self._passing = False
        self._given_up = False
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, batch: Committed) -> None:
        """Adds the next commit batch. One without a run, of refusals or repeats, waits for those before it alone."""
        self._held.append(batch)
        self._empty.clear()
        self._pass()

    def confirm(self, end: LogOffset, acknowledged: LogOffset) -> None:
        """Records that the frames before these log offsets are where they have to be.

        Neither offset ever goes back.
        """
        self._confirmed = max(self._confirmed, end)
        self._acknowledged = max(self._acknowledged, acknowledged, end)
        self._pass()

    def give_up(self) -> None:
        """Gives up confirming: frames that wait, and later ones, may be stored or not."""
        self._given_up = True
        self._answered.clear()
        self._pass()

    async def emptied(self) -> None:
        """Waits until nothing waits to be answered."""
        await self._empty.wait()

    def _pass(self) -> None:
        if self._passing:  # a listener, told of one batch, may confirm the next
            return
        self._passing = True
        try:
            while (batch := self._next()) is not None:
                self._let_through(batch)
        finally:
            self._passing = False
        if not self._held:
            self._empty.set()

    def _next(self) -> Committed | None:
        """Returns the batch that can be let through now."""
        if self._given_up:
            return _unknown(self._held.popleft()) if self._held else None
        if self._answered and self._answered[0].end <= self._confirmed:
            return Committed([], 0, self._answered.popleft())
        if not self._held:
            return None
        run = self._held[0].run
        if run is None or (run.end <= self._confirmed and not self._answered):
            return self._held.popleft()
        # The outcome of a store's own record is known when it is applied, so a batch with one waits to be confirmed.
        if run.end <= self._acknowledged and not run.records:
            batch = self._held.popleft()
            self._answered.append(run)
            return Committed(batch.outcomes, batch.size_bytes)
        return None


def _unknown(batch: Committed) -> Committed:
    why = AppendOutcomeUnknown("this master went before the other replicas had confirmed it")
    outcomes: list[tuple[OnAppended, Appended | StoreError]] = [
        (done, why if isinstance(outcome, Appended) else outcome) for done, outcome in batch.outcomes
    ]
    return Committed(outcomes, batch.size_bytes)
