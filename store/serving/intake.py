"""The server's side of an append stream: frames in, acknowledgements out, in the order in which appends end."""

import asyncio
from collections.abc import Callable
from functools import partial

from store.api.client import StoreClient
from store.api.log import Appended
from store.api.timers import TimersHeld
from store.base.errors import CorruptFrame, NotMaster, SequenceOutOfOrder, StoreError
from store.format.frame import ONCE_PRODUCER, UnplacedFrame
from store.rpc.budget import Budget
from store.rpc.calls import encode
from store.rpc.frames import KEPT, Acks, AppendAck, ack_of, parse_appends
from store.serving.dropped import check_rows

PENDING_BYTES = 48 << 20  # of frames that a node's clients may have with its store, less than the store refuses at
ACKS_COUNT_MAX = 1 << 14  # that a client has not taken: beyond, its frames wait
ACKS_IN_MESSAGE = 4_096
GAPS_COUNT_MAX = 1_024  # a client begins another sequence behind each


class Intake:
    """The appends of one client. Belongs to the thread of the event loop.

    `master` is asked before each frame: a node that is no longer master stores nothing. `dropped` are queues that are
    no more; a client that does not know it yet would have its messages acknowledged that are never read.
    """

    def __init__(
        self,
        store: StoreClient,
        budget: Budget,
        master: Callable[[], NotMaster | None],
        dropped: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._store = store
        self._append = store.log.append
        self._budget = budget
        self._master = master
        self._dropped = dropped
        self._number = 0  # of the next frame
        self._round = 0
        self._refused: StoreError | None = None  # of a frame that the client sends again in its next round
        self._gaps: dict[int, None] = {}  # producers of which a frame was refused, the newest last; <= GAPS_COUNT_MAX
        self._acks: list[AppendAck] = []
        self._timers_sent: TimersHeld | None = None
        self.pending = 0  # frames whose outcome is not known
        self.news = asyncio.Event()  # there are acknowledgements to send
        self._taken = asyncio.Event()  # some were taken to be sent

    async def received(self, message: bytes) -> None:
        """Appends the frames of a message; returns when all of them are in flight. Raises `BadRequest`."""
        round_, frames = parse_appends(message)
        if round_ != self._round:
            self._round, self._refused = round_, None
        for frame in frames:
            while len(self._acks) >= ACKS_COUNT_MAX:
                self._taken.clear()
                await self._taken.wait()
            number = self._number
            self._number += 1
            if isinstance(frame, StoreError):
                self._ended(number, 0, frame)
                continue
            size = await self._budget.acquire(frame.size_bytes)
            refused = self._master() or self._refused or self._refusal(frame)
            if refused is not None:
                self._ended(number, size, refused)
                continue
            self.pending += 1
            self._append(frame, partial(self._done, number, size, round_))

    def _refusal(self, frame: UnplacedFrame) -> StoreError | None:
        """Returns why a frame is refused: for queues that are no more, as its client decided by older news.

        The later frames of its producer are refused, too, so that none overtakes it, also those of a producer whose
        first frame it was: of that the store knows no sequence.
        """
        producer = frame.producer_id
        if producer in self._gaps:
            return SequenceOutOfOrder(f"producer {producer:x}: an earlier frame was refused")
        try:
            check_rows(frame.rows, lambda: frame.plain_payload, self._dropped())
        except StoreError as refused:
            if producer and not producer & ONCE_PRODUCER:
                self._gaps[producer] = None
                if len(self._gaps) > GAPS_COUNT_MAX:
                    del self._gaps[next(iter(self._gaps))]
            return refused
        except ValueError as error:
            return CorruptFrame(0, f"its payload cannot be read: {error}")
        return None

    def _done(self, number: int, size: int, round_: int, outcome: Appended | StoreError) -> None:
        self.pending -= 1
        if isinstance(outcome, KEPT) and round_ == self._round:
            self._refused = outcome
        self._ended(number, size, outcome)

    def _ended(self, number: int, size: int, outcome: Appended | StoreError) -> None:
        self._budget.release(size)
        self._acks.append(ack_of(number, outcome))
        self.news.set()

    def take_message(self) -> bytes | None:
        """Returns the next message to send, None when there is none."""
        if not self._acks:
            return None
        sent, self._acks = self._acks[:ACKS_IN_MESSAGE], self._acks[ACKS_IN_MESSAGE:]
        self._taken.set()
        held, said = self._store.timers.held, self._timers_sent
        self._timers_sent = held
        return encode(Acks(self._store.log.confirmed, sent, held if held != said else None))
