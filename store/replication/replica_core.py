"""The replica of a store group: follows one master's log, frame by frame, without input or output.

    IDLE --connect--> GREETING --Welcome--> CUTTING --prepared--> STREAMING
                          |                                          |
                          +--needs_snapshot--> SNAPSHOT              +--close, from any of them--> IDLE
                          +--has lost its end, and so has the group--> GIVING_UP (begins anew)
                          +--would cut off confirmed frames--> DIVERGED (for good)

How to drive it. Methods take an event, and the time; `take` then gives the effects, to be carried out in the order
given, each finished before the next one begins:

    Send            encode, and put on the stream that `connect` was called for
    SaveEpochs      `EpochFile.save`
    Prepare         cut the log durably, then `EpochFile.save`, then call `prepared`
    Write           append the frames to the log as they are; when they are synced, call `flushed_to`, once for many
    AcceptLoss      cut the log, give up its lost end, and begin anew: with another `ReplicaCore`
    TakeSnapshot    fetch the master's views and begin anew: with another log, and another `ReplicaCore`
    Close           end the stream; `connect` again when the controller names a master

Everything may be lost at any moment between two of them. The views follow `confirmed` and nothing else.
"""

from enum import Enum, auto

from store.base.errors import CorruptFrame
from store.format.frame import LogOffset
from store.format.placed import Placed
from store.replication.effects import (
    AcceptedLoss,
    AcceptLoss,
    Close,
    Effect,
    Prepare,
    SaveEpochs,
    Send,
    TakeSnapshot,
    Write,
)
from store.replication.epochs import Common, EpochList, LogRank
from store.replication.errors import BadEpochs, BadMessage
from store.replication.messages import (
    DATA_BYTES_MAX,
    Ack,
    Confirmed,
    Data,
    FromMaster,
    Hello,
    Refused,
    Welcome,
    Why,
    listed,
)
from store.replication.pace import ReplicationPace


class Stage(Enum):
    """The stage of a replica's work."""

    IDLE = auto()
    GREETING = auto()
    CUTTING = auto()
    STREAMING = auto()
    SNAPSHOT = auto()
    DIVERGED = auto()
    GIVING_UP = auto()


class ReplicaCore:
    """One replica's log while it is not master. From opening the store as replica until it is closed.

    `epochs` and `promised` come from `EpochFile.load` (nothing was saved: an empty list and 0). All of the log from
    `first` to `end` is on disk. `confirmed` is the end known to be confirmed: where the views are, or, behind a
    snapshot, all of the log until it has caught up with them. With `unclean_election` a master that lacks confirmed
    frames is followed all the same, by way of a snapshot; otherwise such a replica stops: the cluster has lost them.

    All before `held` was on this disk once, and the views have `followed` the log so far, perhaps further than it
    reaches now. It must get back its lost end, except the frames that a master does not have; where the group was
    elected uncleanly in an epoch behind `unclean`, which is the newest such election that the log has followed, the
    rest is given up. `rebuildable`: the views can be made anew. `guessed`: the start of the oldest of `epochs` is
    unknown; where a master seems to lack confirmed frames, and has confirmed as much, the list is wrong, and a snapshot
    takes its place and the log's.
    """

    def __init__(
        self,
        *,
        group: int,
        replica: int,
        epochs: EpochList,
        promised: int,
        first: LogOffset,
        end: LogOffset,
        confirmed: LogOffset,
        unclean_election: bool = False,
        held: LogOffset | None = None,
        followed: LogOffset | None = None,
        rebuildable: bool = True,
        guessed: bool = False,
        unclean: int = 0,
        pace: ReplicationPace | None = None,
    ) -> None:
        assert first <= confirmed <= end
        self.group = group
        self.replica = replica
        self.epochs = epochs.cut(end).trim(first)
        # A replica takes no frames from a master of an older epoch; `promised` never goes back.
        self.promised = max(promised, epochs.newest)
        self.first = first
        self.end = end  # of the frames handed out to be written
        self.flushed = end  # confirmed <= flushed <= end
        self.confirmed = confirmed  # readers may see the frames before it; never goes back
        self.stage = Stage.IDLE
        self.diverged_at: LogOffset | None = None  # of a diverged replica: the master has something else from here on
        self._unclean_election = unclean_election
        self._held = end if held is None else held
        self._followed = confirmed if followed is None else followed
        self._rebuildable = rebuildable
        self._guessed = guessed
        self._unclean = unclean
        self.given_up: AcceptedLoss | None = None  # with the snapshot that was asked for
        self.starting_over = False  # the snapshot takes the place of a log that is part of the group's
        self.reach = self._held  # with a snapshot: frames lost behind it cannot be had again
        self._elected_uncleanly = 0  # the group's newest epoch of that kind
        self._pace = pace if pace is not None else ReplicationPace()
        self._session = 0
        self._master = EpochList()  # of the master's log, from its Welcome
        self._epoch = 0  # the master's
        self._master_confirmed = LogOffset(0)
        self._round = 0  # the newest one that the master has asked
        self._preparing: Prepare | None = None  # handed out and not done; end and epochs are those behind it already
        self._received_ms = 0
        self._answered_ms = 0  # when the master was sent an acknowledgement last
        self._damaged = False
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Returns the effects to carry out, in order, that were added since the last call."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def standing(self) -> LogRank:
        """Returns the rank that an election compares: only frames on disk count."""
        return LogRank(self.epochs.cut(self.flushed).newest, self.flushed)

    # ---- the stream

    def connect(self, epoch: int, *, session: int, now_ms: int, unclean_epoch: int = 0) -> None:
        """Greets the master of an epoch on a stream that is open. `session` is a number by chance, below 2**63.

        `unclean_epoch` is the newest epoch of the group that began with an unclean election.
        """
        self.close()
        self._elected_uncleanly = unclean_epoch
        if self.stage is Stage.DIVERGED:
            self._effects.append(Close(f"the log differs from the group's from {self.diverged_at} on"))
            return
        if epoch < self.promised:
            self._effects.append(Close(f"epoch {epoch} is over, {self.promised} is known"))
            return
        self._promise(epoch)
        self._session = session
        self._epoch = epoch
        self._received_ms = now_ms
        self.stage = Stage.GREETING
        hello = Hello(
            group=self.group,
            replica=self.replica,
            session=session,
            epoch=self.promised,
            epochs=self.epochs.entries,
            first=self.first,
            end=self.end,
        )
        self._effects.append(Send(hello))

    def close(self) -> None:
        """Forgets a stream that has ended, or is given up. Effects that were handed out are done all the same."""
        if self.stage is not Stage.DIVERGED:
            self.stage = Stage.IDLE
        self._session = 0

    def promise(self, epoch: int) -> LogRank:
        """Refuses masters older than an epoch that is being elected, and returns the rank of this replica's log.

        To be answered to the controller when the effects of this call are done. An election by quorum rests on it.
        """
        self._promise(epoch)
        if self.stage is not Stage.IDLE and self._epoch < self.promised:
            self._end(f"epoch {epoch} is being elected", tell=True)
        return self.standing

    def tick(self, *, now_ms: int) -> None:
        """Takes note that time has passed."""
        waiting = self.stage in {Stage.GREETING, Stage.CUTTING, Stage.STREAMING}
        if waiting and now_ms - self._received_ms > self._pace.silent_ms:
            self._end("the master is silent")

    def receive(self, message: FromMaster, *, now_ms: int) -> None:
        """Takes a message from the master; ignores one of another stream."""
        listens = {Stage.GREETING, Stage.CUTTING, Stage.STREAMING}
        if message.session != self._session or self.stage not in listens:
            return
        self._received_ms = now_ms
        if isinstance(message, Refused):  # only the controllers' word on an epoch counts
            self._end(f"refused: {message.why.value} {message.text}")
            return
        if message.epoch < self.promised:
            self._end(f"the master of epoch {message.epoch} is superseded", tell=True)
            return
        if message.epoch != self._epoch:
            self._end(f"a master of epoch {message.epoch} where the controllers say {self._epoch}")
            return
        try:
            match message:
                case Welcome():
                    if self.stage is Stage.GREETING:
                        self._welcome(message)
                case Data():
                    if self.stage is Stage.STREAMING:
                        self._data(message)
                case Confirmed():
                    if self.stage is Stage.STREAMING:
                        self._heartbeat(message)
        except (BadMessage, BadEpochs, CorruptFrame) as error:
            self._refuse(Why.MALFORMED, str(error))

    # ---- results of the driver

    def prepared(self) -> None:
        """Notes that `Prepare` is done: cut, synced and saved."""
        done, self._preparing = self._preparing, None
        assert done is not None
        if done.cut_to is not None:
            self.flushed = self.end
        if self.stage is Stage.CUTTING:
            self.stage = Stage.STREAMING
            self._confirm()
            self._ack()

    def flushed_to(self, end: LogOffset) -> None:
        """Records that the frames of `Write` are on disk up to `end`, and so are the epochs saved before them."""
        if self._preparing is not None:
            end = min(end, self.end)  # it was synced before the cut
        assert end <= self.end
        if end > self.flushed:
            self.flushed = end
            self._confirm()
            self._ack()

    def damaged(self, damaged: bool) -> None:
        """Notes whether the log has damage that excludes this replica from the set, and tells the master at once."""
        if damaged != self._damaged:
            self._damaged = damaged
            self._ack()

    def start_over(self) -> bool:
        """Takes a snapshot in place of all there is; False: not now, as no master is followed that has all of it."""
        if self.stage is not Stage.STREAMING or self._master_confirmed < max(self.confirmed, self._followed):
            return False
        self.reach = max(self.reach, self.end)
        self._snapshot(self._epoch, starting_over=True)
        return True

    def trimmed(self, first: LogOffset) -> None:
        """Notes that retention has deleted the front of the log."""
        assert first <= self.confirmed
        self.first = max(first, self.first)
        self.epochs = self.epochs.trim(self.first)

    # ---- messages

    def _welcome(self, message: Welcome) -> None:
        self._master = listed(message)
        self._round, self._master_confirmed = 0, LogOffset(message.confirmed)
        self.reach = self._reach(message)
        common = self.epochs.common(self.end, self._master, LogOffset(message.end))
        if message.needs_snapshot:
            self._behind(message, common)
            return
        at = LogOffset(message.cut_to)
        if at != (common.at if common is not None else self.first):  # without a common part, all of it is cut
            raise BadMessage(f"cut to {at}, but the logs are the same up to {common}")
        if not self.first <= at <= self.end:
            raise BadMessage(f"cut to {at}, but the log is from {self.first} to {self.end}")
        if self._gives_up and self._give_up(at, message.epoch):
            return
        if at < self.confirmed:
            self._diverge(at, message.epoch)
            return
        cut_to = at if at < self.end else self.reach if self.reach < self._held else None
        kept = self.epochs.until(common.epoch) if common is not None else EpochList()
        epochs = kept.extended(self._master, at)
        self.stage = Stage.CUTTING
        unclean = self._elected_uncleanly if self._elected_uncleanly > self._unclean else 0
        unchanged = cut_to is None and epochs == self.epochs and not unclean
        self._preparing = Prepare(cut_to, epochs, self.promised, unclean)
        self._unclean = max(self._unclean, unclean)
        self._held = min(self._held, at if at < self.end else self.reach)
        self.epochs, self.end, self.flushed = epochs, at, min(self.flushed, at)
        if unchanged:
            self.prepared()
        else:
            self._effects.append(self._preparing)

    def _reach(self, message: Welcome) -> LogOffset:
        """Returns the offset behind which this log has lost only frames that the master never had, none confirmed."""
        if self._elected_uncleanly and self._unclean > self.promised:  # it is not known which election the log followed
            return max(self._held, self._followed)
        return max(LogOffset(message.end), self._followed, self.confirmed)

    @property
    def lacks_end(self) -> bool:
        """Returns whether the log has lost its end."""
        return self._held > self.flushed

    @property
    def _gives_up(self) -> bool:
        """Returns whether the group has accepted the loss of this log's end, and had not done so before."""
        return self.lacks_end and self._elected_uncleanly > self._unclean

    def _give_up(self, at: LogOffset, epoch: int) -> bool:
        """Gives up the frames that the group gave up, with the log up to `at` in common; False: it has them all."""
        start, followed = self._loss_start(), max(self._followed, self.confirmed)
        if at >= followed and start >= self._held:
            return False
        if at < followed and not self._rebuildable:
            self._snapshot(epoch)
            return True
        self.stage = Stage.GIVING_UP
        self._effects.append(AcceptLoss(at if at < self.end else None, start, self._elected_uncleanly))
        return True

    def _loss_start(self) -> LogOffset:
        """Returns the log offset from which on the group has given up its log's frames. Raises `BadMessage`."""
        starts = [entry.start for entry in self._master.entries if entry.epoch >= self._elected_uncleanly]
        if not starts:
            raise BadMessage(f"the master's log does not have epoch {self._elected_uncleanly} nor a newer one")
        return starts[0]

    def _behind(self, message: Welcome, common: Common | None) -> None:
        """Starts from a snapshot, or diverges: the master has trimmed its log, or this one was never a part of it."""
        if common is not None and common.at < self.confirmed:
            self._diverge(common.at, message.epoch)
        elif message.confirmed < self.confirmed:
            self._diverge(LogOffset(message.confirmed), message.epoch)
        else:  # one whose epochs are not known may have acknowledged frames that it throws away
            self._snapshot(message.epoch, starting_over=self._guessed)

    def _diverge(self, at: LogOffset, epoch: int) -> None:
        """Starts over, or stops: the master lacks confirmed frames, by an unclean election or a disk that forgot."""
        if self._unclean_election or self._gives_up:
            self._snapshot(epoch, diverged_at=at)
            return
        if self._guessed:
            if self._master_confirmed < self.confirmed:
                self._end("the epochs of the log are not known, and the master has not confirmed as much yet")
            else:
                self._snapshot(epoch, starting_over=True)
            return
        self.diverged_at = at
        self._end(f"the master of epoch {epoch} lacks confirmed frames from {at} to {self.confirmed}")
        self.stage = Stage.DIVERGED

    def _snapshot(self, epoch: int, *, starting_over: bool = False, diverged_at: LogOffset | None = None) -> None:
        self.starting_over, self.diverged_at = starting_over, diverged_at
        if self._gives_up:
            self.given_up = AcceptedLoss(self._loss_start(), self._elected_uncleanly)
        self.stage = Stage.SNAPSHOT
        self._effects.append(TakeSnapshot(epoch))

    def _data(self, message: Data) -> None:
        start = LogOffset(message.start)
        if start != self.end:
            if start + len(message.frames) <= self.end:
                return  # a second time
            raise BadMessage(f"data at {start}, but the log ends at {self.end}")
        if self.end - self.flushed > self._pace.window_bytes + DATA_BYTES_MAX:
            raise BadMessage(f"{self.end - self.flushed} bytes are not acknowledged yet")
        frames = self._parse(message.frames, start)
        end = frames[-1].end
        epochs = self.epochs.extended(self._master, end)
        if epochs != self.epochs:
            self.epochs = epochs
            self._effects.append(SaveEpochs(epochs, self.promised))  # before the first frame of the epoch
        self._effects.append(Write(start, end, message.frames, frames))
        self.end = end
        self._learn(message.confirmed)

    def _parse(self, data: memoryview, start: LogOffset) -> tuple[Placed, ...]:
        """Returns the frames, checksums verified, each in its place and of the epoch that the master's list says."""
        epoch = self._master.epoch_at(start)
        limit = self._master.end_at(start, LogOffset((1 << 63) - 1))
        frames: list[Placed] = []
        at, size = start, len(data)
        while at - start < size:
            found = Placed.parse(data, at - start, log_offset=at)
            if found is None:
                raise BadMessage(f"the frame at {at} is cut short")
            frame, frame_epoch = found
            if frame_epoch != epoch or frame.end > limit:
                raise BadMessage(f"the frame at {at} is of epoch {frame_epoch}, not {epoch}, which ends at {limit}")
            frames.append(frame)
            at = frame.end
        return tuple(frames)

    def _heartbeat(self, message: Confirmed) -> None:
        if message.sent > self.end:
            raise BadMessage(f"{message.sent} was sent, {self.end} has arrived")
        self._learn(message.confirmed)
        asked = message.round > self._round or message.confirmed < message.sent
        self._round = max(self._round, message.round)
        if asked or self._received_ms - self._answered_ms >= self._pace.answer_ms:
            self._ack()

    # ---- parts

    def _learn(self, confirmed: int) -> None:
        self._master_confirmed = max(self._master_confirmed, LogOffset(confirmed))
        self._confirm()

    def _confirm(self) -> None:
        """Confirms while streaming alone: elsewhere the two logs may differ, and the master's word is no use."""
        if self.stage is Stage.STREAMING:
            self.confirmed = max(self.confirmed, min(self._master_confirmed, self.flushed))

    def _ack(self) -> None:
        if self.stage is Stage.STREAMING:
            message = Ack(
                session=self._session, epoch=self._epoch, flushed=self.flushed, round=self._round, damaged=self._damaged
            )
            self._effects.append(Send(message))
            self._answered_ms = self._received_ms

    def _promise(self, epoch: int) -> None:
        if epoch > self.promised:
            self.promised = epoch
            self._effects.append(SaveEpochs(self.epochs, epoch))

    def _refuse(self, why: Why, text: str) -> None:
        message = Refused(session=self._session, epoch=self.promised, why=why, text=text[:1024])
        self._effects.append(Send(message))
        self._end(text)

    def _end(self, why: str, *, tell: bool = False) -> None:
        if tell:
            message = Refused(session=self._session, epoch=self.promised, why=Why.SUPERSEDED)
            self._effects.append(Send(message))
        self.close()
        self._effects.append(Close(why))
