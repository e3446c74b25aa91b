"""The dispatcher: a thread that follows the log with the views, off the path of an acknowledgement.

Runs gather for a moment, so that one transaction, and its sync, is for all of them; but no transaction is for more than
`TRANSACTION_BYTES` of the log or a single run, because until it has ended LMDB uses no page again that it changes. On a
disk without room the views stay where they are and are brought up when there is some: nothing is lost by that, as the
log has it all.
"""

import logging
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread

from store.base.errors import StoreFull
from store.disk.space import Space
from store.format.frame import LogOffset
from store.log.run import FrameRun, joined
from store.views import Views

logger = logging.getLogger(__name__)

LINGER_S = 0.1  # how long runs gather
EAGER_BYTES = 16 << 20  # when the views are so far behind, they do not wait for more to gather
LAG_BYTES_MAX = 256 << 20  # the views may be behind before writers wait for them: bounds the memory held for them
TRANSACTION_BYTES = 16 << 20  # of the log in one transaction
# The most that the views take for a row and for a byte of the log, with the pages that a transaction copies: rows of
# one byte in many queues, all indexed, took 570; keys and timers hold values themselves.
VIEWS_ROW_BYTES, VIEWS_FACTOR = 600, 2
RETRY_S = 10.0  # between two tries on a disk that is full, unless it gets more room earlier
LOOK_S = 0.5  # between two looks whether it has


class Dispatcher:
    """Applies runs to the views, in the order they are given.

    `ahead` returns how far the views could have come. On the dispatcher's thread `applied` is called with how far they
    have come, and `fail` with an error after which they stay where they are until the store is opened again.
    """

    def __init__(
        self,
        views: Views,
        space: Space,
        *,
        linger_s: float,
        ahead: Callable[[], LogOffset],
        applied: Callable[[LogOffset], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._views = views
        self._space = space
        self._linger_s = linger_s
        self._ahead = ahead
        self._applied = applied
        self._fail = fail
        self._failed = False  # the log gives the rest again after a restart
        self._given: SimpleQueue[FrameRun | None] = SimpleQueue()
        self._given_bytes = 0  # that the views will have taken for all runs given
        self._applied_bytes = 0  # and for those applied; <= _given_bytes
        self._waiting: deque[FrameRun] = deque()  # taken from there and not applied
        self._wanted = LogOffset(0)  # a caller waits until the views are here
        self._hurry = Event()  # wakes the thread when _wanted has grown
        self._ending = Event()
        self._progress = Event()  # the views have got on, or it is no use to wait for them
        self._thread = Thread(target=self._dispatch_forever, name="store-dispatch", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def give(self, run: FrameRun) -> None:
        """Applies a run, the next one."""
        self._given_bytes += _views_bytes(run)
        self._given.put(run)

    @property
    def owed_bytes(self) -> int:
        """Returns the bytes that the views will take, at most, for the runs they lack."""
        return self._given_bytes - self._applied_bytes

    def apply_views(self, until: LogOffset) -> None:
        """Brings the views soon up to a log offset that a caller waits for."""
        self._wanted = max(self._wanted, until)
        self._hurry.set()

    def is_near(self) -> bool:
        """Returns whether the views are so near that they need not hurry."""
        return self._ahead() - self._views.dispatched <= EAGER_BYTES

    def wait_until_near(self, *, unless: Callable[[], bool]) -> None:
        """Blocks while the views are too far behind, but not when that is no use, which `wake` lets ask again."""
        lag = self._ahead() - self._views.dispatched
        if lag > EAGER_BYTES:
            self.apply_views(self._ahead())
        while lag > LAG_BYTES_MAX and not unless():
            self._progress.wait()
            self._progress.clear()
            lag = self._ahead() - self._views.dispatched

    def wake(self) -> None:
        """Lets `wait_until_near` check again whether waiting is of any use."""
        self._progress.set()

    def end(self) -> None:
        """Applies the runs given, as far as there is room for them. A second call does nothing."""
        self._ending.set()
        self._given.put(None)
        self.apply_views(self._ahead())
        self._thread.join()

    # ---- the thread

    def _dispatch_forever(self) -> None:
        ending = False
        while not ending:
            run = self._given.get()  # the first of those to gather
            if run is not None and self._wanted <= self._views.dispatched:
                self._hurry.wait(self._linger_s)
            self._hurry.clear()
            while run is not None:
                self._waiting.append(run)
                try:
                    run = self._given.get_nowait()
                except Empty:
                    break
            ending = run is None
            self._work_off()

    def _work_off(self) -> None:
        short = False
        while self._waiting and not self._failed:
            some = self._next(TRANSACTION_BYTES if not short else 0)
            try:
                self._views.apply(joined(some))
            except StoreFull as full:
                if not self._wait_for_room(full):
                    return
                short = True
                continue
            except Exception as error:
                logger.exception("the views cannot be applied up to the end of the log")
                self._failed = True
                self._fail(error)
                break
            short = False
            for _ in some:
                self._applied_bytes += _views_bytes(self._waiting.popleft())
            self._progress.set()
            self._applied(self._views.dispatched)
        if self._failed:
            self._waiting.clear()

    def _next(self, size: int) -> list[FrameRun]:
        """Returns the runs for one transaction, without a gap: of about that many bytes of the log, at least one."""
        some: list[FrameRun] = []
        for run in self._waiting:
            if some and (run.end - some[0].start > size or some[-1].end < run.start):
                break
            some.append(run)
        return some

    def _wait_for_room(self, full: StoreFull) -> bool:
        """Refuses writes until there is room. Returns whether to try again, False when the store is closing."""
        self._space.ran_out(str(full))
        self._progress.set()
        free = self._space.free_bytes
        for _ in range(int(RETRY_S / LOOK_S)):
            if self._ending.wait(LOOK_S):
                return False
            if (now := self._space.free_bytes) > free:
                return True
            free = now
        return True


def _views_bytes(run: FrameRun) -> int:
    return VIEWS_ROW_BYTES * len(run.rows) + VIEWS_FACTOR * (run.end - run.start)
