"""The write path of a replica: its master's frames are written and synced as they are, and applied when confirmed.

One thread writes whatever has arrived since its last sync, and syncs it; the next frames arrive meanwhile. Another one
follows with the frames that the master has confirmed, as far as they are on this disk: it builds the runs that readers
and views see.
"""

import logging
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread

from store.base.errors import CorruptFrame, StoreError, StoreFull
from store.disk.space import LOOK_S, NO_FILES, NO_ROOM, Space
from store.engine.commit import Committed
from store.format.frame import LogOffset
from store.format.placed import Placed
from store.log.log import CommitLog
from store.log.run import RunBuilder
from store.log.tail import LogTail

logger = logging.getLogger(__name__)

RUN_BYTES = 8 << 20  # applied at a time
GATHER_S = 0.02  # before confirmed frames are applied: most of them together with the frames confirmed next


class ReplicaReceiver:
    """The only writer of a replica's log. `receive` and `confirm` are called by one thread.

    On this object's threads `flushed` is called with how far the log is on disk, and `report` with each run that
    readers may see, in log order. The views have all frames before `applied` already. `before_run` may block. `fail` is
    called with the first error, after which nothing more is done; `error` returns the first error of any part of the
    store.

    After a frame that did not fit on the disk the log has to be opened again: from then on nothing is written, and
    `dropped` returns the reason. `flushed` is called once more then.
    """

    def __init__(
        self,
        log: CommitLog,
        builder: RunBuilder,
        tail: LogTail,
        space: Space,
        *,
        applied: LogOffset,
        flushed: Callable[[LogOffset], None],
        report: Callable[[Committed], None],
        before_run: Callable[[], None],
        fail: Callable[[Exception], None],
        error: Callable[[], StoreError | None],
    ) -> None:
        self._log = log
        self._builder = builder
        self._tail = tail
        self._space = space
        self.dropped: StoreFull | None = None
        self._applied = applied
        self._flushed = flushed
        self._report = report
        self._before_run = before_run
        self._fail = fail
        self._error = error
        self._arrived: SimpleQueue[Sequence[Placed] | None] = SimpleQueue()
        self._goal = log.confirmed  # the master's confirmed offset, which may be ahead of this log's end
        self._go_on = Event()  # there is more to follow, or an end to it
        self._ending = Event()
        self._receiving = Thread(target=self._receive_forever, name="store-receive", daemon=True)
        self._following = Thread(target=self._follow_forever, name="store-follow", daemon=True)

    def start(self) -> None:
        """Begins both threads."""
        self._receiving.start()
        self._following.start()

    def receive(self, placed: Sequence[Placed]) -> None:
        """Writes and syncs frames, the first of which is the log's next."""
        self._arrived.put(placed)

    def confirm(self, end: LogOffset) -> None:
        """Confirms the frames before a log offset, as the master has."""
        if end > self._goal:
            self._goal = end
            self._go_on.set()

    def repaired(self) -> None:
        """Lets work that waits in front of a damaged range go on, as the range is sound again."""
        self._go_on.set()

    def end(self) -> None:
        """Writes and syncs the received frames, and applies no more. A second call does nothing."""
        self._arrived.put(None)
        self._receiving.join()
        self._ending.set()
        self._go_on.set()
        self._following.join()

    # ---- the receiving thread

    def _receive_forever(self) -> None:
        stopping = False
        while not stopping:
            item = self._arrived.get()
            gathered: list[Placed] = []
            while item is not None:
                gathered += item
                try:
                    item = self._arrived.get_nowait()
                except Empty:
                    break
            stopping = item is None
            if gathered and self._error() is None and self.dropped is None:
                self._write(gathered)

    def _write(self, gathered: list[Placed]) -> None:
        """Syncs, and then says so: the order is the promise.

        Frames that fail here are cut off when the log is opened again.
        """
        full = self._space.before_write(sum([placed.size_bytes for placed in gathered]))
        if full is not None:
            self._drop(full)
            return
        try:
            try:
                for placed in gathered:
                    self._log.put(placed)
                self._log.write()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._drop(self._space.ran_out(str(error.strerror)))
                return
            self._tail.add(gathered)
            self._log.sync()
        except Exception as error:
            logger.exception("frames from the master cannot be written")
            self._fail(error)
            return
        self._flushed(self._log.flushed)
        self._go_on.set()

    def _drop(self, full: StoreFull) -> None:
        """Drops unwritten frames, for want of room: the master sends them again when the log is open again."""
        logger.warning("frames from the master are dropped, and sent again later: %s", full)
        self.dropped = full
        self._flushed(self._log.flushed)

    # ---- the following thread

    def _follow_forever(self) -> None:
        while not self._ending.is_set():
            self._go_on.wait()
            self._ending.wait(GATHER_S)
            self._go_on.clear()
            try:
                while not self._ending.is_set() and self._error() is None and self._follow():
                    pass
            except Exception as error:
                logger.exception("confirmed frames cannot be applied")
                self._fail(error)

    def _follow(self) -> bool:
        """Lets readers see some more of the confirmed frames; returns whether there was any."""
        log, at = self._log, self._log.confirmed
        end = min(self._goal, log.flushed)
        if end <= at:
            return False
        if at < self._applied:
            log.confirm(min(end, self._applied))
            return True
        placed = self._tail.frames(at, end, RUN_BYTES) or self._read(at, end)
        if not placed:
            return False
        self._before_run()
        run = self._builder.build(placed)
        log.confirm(run.end)
        self._report(Committed([], 0, run))
        return True

    def _read(self, at: LogOffset, end: LogOffset) -> list[Placed]:
        """Returns the frames that the log has there, or none for now.

        Running out of file descriptors says nothing of the disk's health, so it is tried again later. Damaged frames
        wait for their repair.
        """
        try:
            return [Placed.of(one) for one in self._log.frames(at, end, RUN_BYTES)]
        except OSError as error:
            if error.errno not in NO_FILES:
                raise
            logger.warning("confirmed frames cannot be read for now: %s", error)
            self._ending.wait(LOOK_S)
            self._go_on.set()
            return []
        except CorruptFrame as error:  # known from here on, and to be repaired from another replica
            logger.warning("confirmed frames wait for the repair of the log: %s", error)
            return []
