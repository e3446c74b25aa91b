"""The client's side of appends: a window of frames in flight, which are sent again to a new master.

Frames are sent in the order of the calls, and the store keeps it. Frames in flight when the connection broke are
perhaps stored. A frame of an idempotent producer is sent again to the master of that moment, in its place in the order:
the store recognizes repeated frames, so the caller sees one result. Any other frame ends with `AppendOutcomeUnknown`.
Frames that the store has refused because it is no master, or takes nothing for now, are kept and sent again too. All of
that for `budget_s`.

No input or output here: the owner asks for messages to send, and hands over those that come.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store.api.log import Appended, OnAppended
from store.base.errors import (
    AppendOutcomeUnknown,
    FrameTooLarge,
    NotMaster,
    SequenceOutOfOrder,
    StoreClosed,
    StoreError,
    StoreOverloaded,
    StoreUnreachable,
)
from store.format.frame import FRAME_BYTES_MAX, Buffer, UnplacedFrame
from store.rpc.frames import KEPT, AppendAck, outcome_of, packed, packed_message
from store.rpc.wire import BadAnswer

logger = logging.getLogger(__name__)

PENDING_BYTES_MAX = 64 << 20  # handed to `append` and not answered
WINDOW_BYTES = 16 << 20  # sent and not answered
FRAMES_COUNT_MAX = 1024  # sent and not answered: how far back the store recognises repeated frames
MESSAGE_BYTES = 1 << 20
PAUSE_S = 0.05  # before frames are sent again to a store that takes nothing for now

_LEAVE = NotMaster | StoreClosed  # after these the store takes no frames any more; other refusals may pass


@dataclass(slots=True, eq=False)
class _Pending:
    """A frame that was handed over and not answered."""

    parts: tuple[Buffer, Buffer, Buffer]
    size: int
    done: OnAppended
    idempotent: bool
    order: int
    since: float | None = None  # when it first met trouble; None: all is well
    sent_s: float = 0.0  # when it was first sent; 0: it was not
    perhaps: bool = False  # it may be stored
    error: StoreError | None = None  # why it was refused the last time


class Appender:
    """Frames of one client on their way. Belongs to the thread of the event loop.

    `soon` calls something on the loop's next turn, `after` in so many seconds, `now_s` is a clock that never goes back,
    `wake` says that there may be something to send.
    """

    def __init__(
        self,
        *,
        soon: Callable[..., object],
        after: Callable[[float, Callable[[], None]], object],
        now_s: Callable[[], float],
        wake: Callable[[], None],
        budget_s: float,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self._soon = soon
        self._after = after
        self._now_s = now_s
        self._wake = wake
        self._budget_s = budget_s
        self._pending_bytes_max = pending_bytes_max
        self.pending_bytes = 0
        self._waiting: deque[_Pending] = deque()  # not sent on this connection
        self.sent: dict[int, _Pending] = {}  # by number on this connection, ascending; at most FRAMES_COUNT_MAX
        self._sent_bytes = 0
        self._held: list[_Pending] = []  # refused, to be sent again when everything sent is answered
        self._paused = False
        self._number = 0  # of the next frame on this connection
        self._order = 0
        self._round = 0  # how often frames were put back
        self._down_since: float | None = now_s()  # None: connected
        self._closed: StoreError | None = None

    # ---- from the caller

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `LogCalls.append`."""
        size = frame.size_bytes
        refused = self._refusal(size)
        if refused is not None:
            self._soon(done, refused)
            return
        self.pending_bytes += size
        self._order += 1
        since = self._now_s() if self._held or self._down_since is not None else None
        self._waiting.append(_Pending(packed(frame), size, done, frame.producer_id != 0, self._order, since))
        self._wake()

    def _refusal(self, size: int) -> StoreError | None:
        if self._closed is not None:
            return self._closed
        if size > FRAME_BYTES_MAX:
            return FrameTooLarge(f"{size} bytes in one frame, which may have {FRAME_BYTES_MAX}")
        if self.pending_bytes and self.pending_bytes + size > self._pending_bytes_max:
            return StoreOverloaded(f"{self.pending_bytes} bytes wait to be written")
        if self._down_since is not None and self._now_s() - self._down_since > self._budget_s:
            return StoreUnreachable(f"the store group has had no master within reach for {self._budget_s:g} s")
        return None

    # ---- to and from the store

    def connected(self) -> None:
        """Begins on a new connection, and numbers anew."""
        assert not self.sent
        self._number = 0
        self._paused = False
        self._down_since = None
        self._wake()

    def take_message(self) -> bytes | None:
        """Returns the next frames to send; None when there are none, or those in flight have to be answered first."""
        if self._held or self._paused or self._down_since is not None:
            return None
        parts: list[Buffer] = []
        size = 0
        waiting, sent, now_s = self._waiting, self.sent, self._now_s()
        while waiting and len(sent) < FRAMES_COUNT_MAX:
            pending = waiting[0]
            if (sent and self._sent_bytes + pending.size > WINDOW_BYTES) or (
                size and size + pending.size > MESSAGE_BYTES
            ):
                break
            waiting.popleft()
            pending.sent_s = pending.sent_s or now_s
            sent[self._number] = pending
            self._number += 1
            self._sent_bytes += pending.size
            size += pending.size
            parts += pending.parts
        return packed_message(self._round, parts) if parts else None

    def answered(self, acks: Sequence[AppendAck]) -> StoreError | None:
        """Ends the frames of some acknowledgements; returns the reason to give up the connection, if any.

        Raises `BadAnswer` for acknowledgements of frames that were not sent.
        """
        leave: StoreError | None = None
        for ack in acks:
            pending = self.sent.pop(ack.number, None)
            if pending is None:
                raise BadAnswer(f"frame {ack.number} is acknowledged, which is not in flight")
            self._sent_bytes -= pending.size
            outcome = outcome_of(ack)
            if isinstance(outcome, StoreError) and self._is_kept(pending, outcome):
                self._hold(pending, outcome)
                if isinstance(outcome, _LEAVE):
                    leave = outcome
            else:
                self._finish(pending, outcome)
        if self._held and not self.sent:
            self._put_back()
            self._paused = True
            self._after(PAUSE_S, self._resume)
        self._wake()
        return leave

    def _resume(self) -> None:
        """Sends refused frames again. Told, not read from a clock: a timer may be early by its rounding."""
        self._paused = False
        self._wake()

    def _is_kept(self, pending: _Pending, error: StoreError) -> bool:
        """Returns whether a frame that was refused is sent again."""
        if pending.since is not None and self._now_s() - pending.since > self._budget_s:
            return False
        if isinstance(error, AppendOutcomeUnknown):
            return pending.idempotent
        if isinstance(error, SequenceOutOfOrder):
            return bool(self._held)  # the one in front of it is to be sent again, and then this one is in order
        return isinstance(error, KEPT)

    def _hold(self, pending: _Pending, error: StoreError) -> None:
        pending.error = error
        pending.perhaps = pending.perhaps or isinstance(error, AppendOutcomeUnknown)
        if pending.since is None:
            pending.since = self._now_s()
        self._held.append(pending)

    def _put_back(self) -> None:
        """Puts held frames in front of those that were never sent."""
        self._round += 1
        held, self._held = sorted(self._held, key=lambda one: one.order), []
        self._waiting.extendleft(reversed(held))

    def lost(self) -> None:
        """Keeps frames in flight of a broken connection, to send them again on the next one where that is safe."""
        now_s = self._now_s()
        if self._down_since is None:
            self._down_since = now_s
        sent, self.sent = list(self.sent.values()), {}
        self._sent_bytes = 0
        for pending in sent:
            pending.perhaps = True
            if pending.idempotent:
                self._held.append(pending)
            else:
                self._finish(pending, AppendOutcomeUnknown("the connection to the store broke"))
        self._put_back()
        for pending in self._waiting:
            if pending.since is None:
                pending.since = now_s
        self.expire()

    def expire(self) -> None:
        """Fails frames that have been in trouble for too long; to be called now and then while something is wrong."""
        limit = self._now_s() - self._budget_s
        waiting = self._waiting
        while waiting and (since := waiting[0].since) is not None and since < limit:
            pending = waiting.popleft()
            self._finish(pending, pending.error or StoreUnreachable(f"no master within reach for {self._budget_s:g} s"))

    def expire_held(self) -> None:
        """Fails frames that have waited too long while the connection stands; to be called now and then.

        A frame that the master wrote and that too few replicas have is neither stored nor refused, perhaps forever.
        Its caller learns that the outcome is unknown; the frame stays in the queue, as its producer's later frames are
        behind it. Refused frames are sent again when all frames in flight are answered, so that waits for them too.
        """
        self._expire_sent()
        limit = self._now_s() - self._budget_s
        held, self._held = self._held, []
        for pending in held:
            if pending.since is not None and pending.since < limit and pending.error is not None:
                self._finish(pending, pending.error)
            else:
                self._held.append(pending)
        if held and not self._held:
            self._wake()

    def _expire_sent(self) -> None:
        """Answers the frames that were first sent longer ago than `budget_s`."""
        limit = self._now_s() - self._budget_s
        late = []
        for pending in self.sent.values():
            if pending.sent_s > limit:
                break  # the later ones were first sent later, except repeated frames, which are in front
            if pending.done is not _ignored:
                late.append(pending)
        for pending in late:
            unknown = AppendOutcomeUnknown(f"written, and not confirmed by enough replicas within {self._budget_s:g} s")
            done, pending.done = pending.done, _ignored
            self._call_back(done, unknown)

    def refuse(self, why: StoreError) -> None:
        """Takes nothing any more."""
        self._closed = why

    def close(self, why: StoreError) -> None:
        """Answers everything: nothing more is sent."""
        self.refuse(why)
        sent, self.sent = list(self.sent.values()), {}
        for pending in sent:
            pending.perhaps = True
        self._held += sent
        self._put_back()
        while self._waiting:
            self._finish(self._waiting.popleft(), why)

    @property
    def trouble(self) -> str:
        """Returns why the oldest frame that was refused is not stored yet; empty: none was."""
        oldest = self._held[0] if self._held else self._waiting[0] if self._waiting else None
        return "" if oldest is None or oldest.error is None else str(oldest.error)

    @property
    def unsure(self) -> bool:
        """Returns whether the outcome of something would be unknown if the connection broke now."""
        return any(not pending.idempotent for pending in self.sent.values())

    def _finish(self, pending: _Pending, outcome: Appended | StoreError) -> None:
        self.pending_bytes -= pending.size
        if isinstance(outcome, StoreError) and pending.perhaps and not isinstance(outcome, AppendOutcomeUnknown):
            outcome = AppendOutcomeUnknown(f"perhaps stored before the connection broke; then: {outcome}")
        self._call_back(pending.done, outcome)

    def _call_back(self, done: OnAppended, outcome: Appended | StoreError) -> None:
        try:
            done(outcome)
        except Exception:
            logger.exception("an append's callback has failed")


def _ignored(_outcome: Appended | StoreError) -> None:
    """Takes the outcome of a frame whose caller does not wait any more."""
