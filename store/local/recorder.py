"""Appending the store's own records: those of one turn of the event loop share a frame.

A record that no caller waits for is stored with the next append, so that it takes no write and no sync of its
own while there is something else to store.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from store.api.log import Appended, OnAppended
from store.base.errors import BadArgument, StoreError
from store.format.frame import ROW, Position, QueueNumber, UnplacedFrame
from store.format.records import Record, encode_checked, queue_of
from store.recent.recent import Outcome

FRAME_BYTES = 1 << 20  # of records gathered in one frame; a larger record has its own
LINGER_S = 0.005  # that a record which is not urgent waits for others, at most


class _UnwrittenRecord(NamedTuple):
    queue: QueueNumber
    data: bytes
    outcome: asyncio.Future[Outcome]


class Recorder:
    """Turns records into frames, and their outcomes into the results of futures."""

    def __init__(
        self,
        append: Callable[[UnplacedFrame, OnAppended], None],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
    ) -> None:
        self._append = append
        self._loop = loop
        self._now_ms = now_ms
        self._gathered: list[_UnwrittenRecord] = []  # in this turn of the loop, and those that linger
        self._scheduled = False  # the next turn of the loop appends them
        self._lingering: asyncio.TimerHandle | None = None  # appends them if nothing else does: none is urgent
        self._outcomes: Mapping[Position, Outcome] = {}

    def record(self, record: Record, *, urgent: bool = True) -> asyncio.Future[Outcome]:
        """Stores a record; the future ends when it is durable and applied, with the outcome.

        One that is not urgent lingers until something else is appended, and for `LINGER_S` at most.

        It fails with `StoreError`: the append's, or the record's own (`RevisionConflict`), or `BadArgument` for one
        that could not be read again: it would be acknowledged and have no effect.
        """
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        try:
            data = encode_checked(record)
        except ValueError as error:
            outcome.set_exception(BadArgument(f"{type(record).__name__}: {error}"))
            return outcome
        if urgent and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
        elif not (urgent or self._scheduled or self._lingering is not None):
            self._lingering = self._loop.call_later(LINGER_S, self.flush)
        self._gathered.append(_UnwrittenRecord(queue_of(record), data, outcome))
        return outcome

    def report(self, outcomes: Mapping[Position, Outcome]) -> None:
        """Takes the outcomes of the records of the group whose appends are about to be answered."""
        self._outcomes = outcomes

    def appended(self) -> None:
        """Appends the records that linger: something else was appended, with which they go."""
        if self._lingering is not None:
            self.flush()

    def flush(self) -> None:
        """Appends the gathered records."""
        self._scheduled = False
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        gathered, self._gathered = self._gathered, []
        frame: list[_UnwrittenRecord] = []
        size = 0
        for waiting in gathered:
            if frame and size + len(waiting.data) > FRAME_BYTES:
                self._send(frame)
                frame, size = [], 0
            frame.append(waiting)
            size += len(waiting.data)
        if frame:
            self._send(frame)

    def _send(self, frame: list[_UnwrittenRecord]) -> None:
        rows, at, now_ms = [], 0, self._now_ms()
        for queue, data, _ in frame:
            rows.append(ROW.pack(queue, at, len(data), 0, 0, 0, 0, now_ms))
            at += len(data)
        payload = b"".join([waiting.data for waiting in frame])
        futures = [waiting.outcome for waiting in frame]
        self._append(UnplacedFrame.build(b"".join(rows), payload), lambda appended: self._answer(appended, futures))

    def _answer(self, appended: Appended | StoreError, futures: list[asyncio.Future[Outcome]]) -> None:
        for row, future in enumerate(futures):
            if future.done():  # its caller was cancelled
                continue
            outcome = (
                appended if isinstance(appended, StoreError) else self._outcomes.get(Position(appended.frame, row))
            )
            if isinstance(outcome, StoreError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
