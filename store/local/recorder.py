"""Appending the store's own records: those of one turn of the event loop share a frame."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from store.api.log import Appended, OnAppended
from store.base.errors import BadArgument, StoreError
from store.format.frame import ROW, Position, QueueNumber, UnplacedFrame
from store.format.records import Record, encode_checked, queue_of
from store.recent.recent import Outcome

FRAME_BYTES = 1 << 20  # of records gathered in one frame; a larger record has its own


class _UnwrittenRecord(NamedTuple):
    queue: QueueNumber
    data: bytes
    outcome: asyncio.Future[Outcome]


class Recorder:
    """Turns records into frames, and what became of them into the results of futures."""

    def __init__(
        self,
        append: Callable[[UnplacedFrame, OnAppended], None],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
    ) -> None:
        self._append = append
        self._loop = loop
        self._now_ms = now_ms
        self._gathered: list[_UnwrittenRecord] = []  # in this turn of the loop
        self._outcomes: Mapping[Position, Outcome] = {}

    def record(self, record: Record) -> asyncio.Future[Outcome]:
        """Stores a record; the future ends when it is durable and applied, with what became of it.

        It fails with `StoreError`: the append's, or the record's own (`RevisionConflict`), or `BadArgument` for one
        that could not be read again: it would be acknowledged and have no effect.
        """
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        try:
            data = encode_checked(record)
        except ValueError as error:
            outcome.set_exception(BadArgument(f"{type(record).__name__}: {error}"))
            return outcome
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(_UnwrittenRecord(queue_of(record), data, outcome))
        return outcome

    def report(self, outcomes: Mapping[Position, Outcome]) -> None:
        """Takes the outcomes of the records of the group whose appends are about to be answered."""
        self._outcomes = outcomes

    def flush(self) -> None:
        """Appends what was gathered."""
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
