"""The master of a store group for one epoch: frames to send, the confirmed end, the SyncStateSet. No input or output.

How to drive it. When the controller has named this replica master of an epoch: sync the log, make a `Master`, save its
`epochs` (`EpochFile.save(master.epochs, master.epoch)`), and only then take appends, each after a look at `refusal`. A
node that was master before a restart no longer is: it asks the controller to be elected anew.

    in      receive, left           from the replicas' streams, by replica
            written, flushed_to     how far the log is handed to the operating system, and on disk
            trimmed                 retention has deleted its front
            damaged                 its own log has damage, or none any more
            tick                    the time, every 50 ms or so
            set_altered, set_refused, controller_contacted, configure, fenced
                                    from the controller
            ask_round, hand_over    from any caller
    out     confirmed               readers see, and views follow, up to here
            acknowledged            appends are answered up to here
            refusal                 why nothing is taken now; asked before an append is placed
            take                    messages to send, by replica
            batch, sent             what to read from the log next for a replica, and the message to put it in
            ask                     the change of the SyncStateSet to ask the controller for
            round_agreed            which linearizable reads may be answered
            handover                whom to have elected, when a switch-over is ready
            ended                   the newer epoch that is known to supersede this one: close, open again as replica

After whatever came in: first `batch` and `sent` for each replica until there is nothing more, then `take`, then `ask`;
messages for one replica go on its stream in that order. A repeated append that was found in the log is treated like a
new one: refused where that is, and answered when its end is `acknowledged`. Frames placed and not acknowledged when the
master ends may be stored or not.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from store.base.errors import NotMaster, StoreError
from store.format.frame import LogOffset
from store.replication.agreement import Acknowledge, agreed, needed
from store.replication.epochs import EpochList, LogRank
from store.replication.errors import BadMessage, CannotSwitchOver, NotEnoughInSync, SwitchingOver
from store.replication.messages import (
    Ack,
    Confirmed,
    Data,
    FromMaster,
    FromReplica,
    Hello,
    Refused,
    Welcome,
    Why,
    listed,
)
from store.replication.pace import ReplicationPace
from store.replication.peer import NEVER_MS, Peer, PeerStream
from store.replication.sync_set import AlterSet, SyncSet


class FramesToSend(NamedTuple):
    """The frames to send to a replica: all that begin from `start` on and before `end`, all of one epoch."""

    start: LogOffset
    end: LogOffset


class Master:
    """One epoch of one replica as master. Of the same epoch there is never a second one, in this process or another.

    `end` is where the log ends, all of it on disk: the epoch begins there. `replicas` are the group's, with whether
    each is a learner, which follows but is never waited for. `sync_set` and `sync_epoch` are the controller's.
    """

    def __init__(
        self,
        *,
        group: int,
        replica: int,
        epoch: int,
        epochs: EpochList,
        first: LogOffset,
        end: LogOffset,
        confirmed: LogOffset,
        replicas: Mapping[int, bool],
        sync_set: Collection[int],
        sync_epoch: int,
        min_in_sync: int,
        acknowledge: Acknowledge = Acknowledge.ALL_IN_SYNC,
        now_ms: int,
        pace: ReplicationPace | None = None,
    ) -> None:
        assert replica in sync_set
        assert first <= confirmed <= end
        self.group = group
        self.replica = replica
        self.epoch = epoch
        self.epochs = epochs.cut(end).trim(first).append(epoch, end)
        self.start = end
        self.first = first
        self.end = end  # of the written frames
        self.flushed = end  # confirmed <= flushed <= end
        self.confirmed = confirmed  # never goes back
        self.ended: int | None = None  # the newer epoch
        self._pace = pace if pace is not None else ReplicationPace()
        self._now_ms = now_ms
        self._set = SyncSet(sync_set, sync_epoch, self._pace)
        self._held: frozenset[int] = frozenset()  # about to be asked for: confirming waits for them too
        self._held_ms = NEVER_MS
        self._one_joins = False  # the controller has refused to take in several at once: one may hold up the others
        self._refused_ms: dict[int, int] = {}  # when it refused to take in a replica alone
        self._round = 0
        self._round_sent = False
        self._damaged = False  # its own log
        self.successor: int | None = None  # the replica that it is about to hand over to
        self._target_ms = NEVER_MS
        self._out: list[tuple[int, FromMaster]] = []
        self.peers: dict[int, Peer] = {}
        self.configure(replicas, min_in_sync=min_in_sync, acknowledge=acknowledge)
        self._advance()

    def configure(self, replicas: Mapping[int, bool], *, min_in_sync: int, acknowledge: Acknowledge) -> None:
        """Takes in another configuration of the group.

        With another `acknowledge` it makes the set the master alone, so that no replica is elected that has only the
        frames that the former rule asked for.
        """
        self._min_in_sync = min_in_sync
        self._acknowledge = acknowledge
        self._known = frozenset(replicas)
        for replica, learner in sorted(replicas.items()):
            if replica == self.replica:
                continue
            if replica in self.peers:
                self.peers[replica].learner = learner
            else:
                self.peers[replica] = Peer(replica, learner=learner, now_ms=self._now_ms)
        self._forget()

    # ---- promises

    @property
    def acknowledged(self) -> LogOffset:
        """Appends that end here or before are answered."""
        if self._acknowledge is Acknowledge.MASTER and self.ended is None:
            return max(self.confirmed, self.flushed)
        return self.confirmed

    @property
    def refusal(self) -> StoreError | None:
        """Returns why an append is not taken now; None: it is. Nothing that is refused is stored."""
        if self.ended is not None:
            return NotMaster(f"store group {self.group} is at epoch {self.ended}, this is the master of {self.epoch}")
        if self.successor is not None:
            return SwitchingOver(self.successor)
        for members in self._set.both():
            live = sum(self._behind_ms(member) <= self._pace.stall_ms for member in members)
            need = max(needed(len(members), self._acknowledge, self._min_in_sync), self.least)
            if live < need:
                shrinks = self._acknowledge is Acknowledge.ALL_IN_SYNC and live < self.least  # to `least`, not below
                return NotEnoughInSync(live, self.least if shrinks else need)
            if (sound := sum(self._sound(member) for member in members)) < self.least:
                return NotEnoughInSync(sound, self.least, damaged=live - sound)
        return None

    @property
    def writable(self) -> bool:
        """Returns whether an append is taken now."""
        return self.refusal is None

    @property
    def sync_set(self) -> frozenset[int]:
        """The set in force, as far as is known here."""
        return self._set.members

    @property
    def standing(self) -> LogRank:
        """Returns the rank that an election compares; `fenced` has told this master of the election before."""
        return LogRank(self.epoch, self.flushed)

    def is_damaged(self, replica: int) -> bool:
        """Returns whether another replica has reported that its log is damaged."""
        return replica in self.peers and self.peers[replica].damaged

    def positions(self) -> Mapping[int, LogOffset]:
        """Returns how much of the log each replica has on disk, as far as this master knows."""
        return {self.replica: self.flushed} | {replica: peer.acked for replica, peer in self.peers.items()}

    # ---- the log

    def written(self, end: LogOffset) -> None:
        """Notes that the log was written up to here: it may be sent. Nothing in front of it is ever taken back."""
        assert end >= self.end
        self.end = end

    def flushed_to(self, end: LogOffset) -> None:
        """Notes that the log is on disk up to here."""
        assert self.flushed <= end <= self.end
        self.flushed = end
        self._advance()

    def trimmed(self, first: LogOffset) -> None:
        """Notes that retention has deleted the front of the log: a replica that needs it starts from a snapshot."""
        self.first = max(first, self.first)
        self.epochs = self.epochs.trim(self.first)
        for peer in self.peers.values():
            if peer.stream is not None and peer.stream.sent < self.first:
                self._refuse(peer.replica, peer.stream.session, Why.TRIMMED, f"the log begins at {self.first}")
                peer.stream = None

    def damaged(self, damaged: bool) -> None:
        """Notes whether this replica's log has damage that excludes it from the set."""
        self._damaged = damaged

    # ---- the replicas

    def receive(self, replica: int, message: FromReplica, *, now_ms: int) -> None:
        """Takes a message from the stream of a replica, whose identity the caller has checked."""
        self._now_ms = max(now_ms, self._now_ms)
        peer = self.peers.get(replica)
        if isinstance(message, Hello):
            self._hello(replica, peer, message)
            return
        if peer is None or peer.stream is None or message.session != peer.stream.session:
            return
        self.fenced(message.epoch)
        if self.ended is not None:
            return
        peer.stream.received_ms = self._now_ms
        if isinstance(message, Refused):
            peer.stream = None
        elif message.epoch != self.epoch or message.flushed > peer.stream.sent or message.round > self._round:
            self._refuse(replica, message.session, Why.MALFORMED, f"{message.flushed} was never sent")
            peer.stream = None
        else:
            self._ack(peer, message)

    def left(self, replica: int) -> None:
        """Notes that the stream of a replica has ended."""
        if replica in self.peers:
            self.peers[replica].stream = None

    def _hello(self, replica: int, peer: Peer | None, message: Hello) -> None:
        """Answers a Hello. Checks the sender before the epoch: an epoch from elsewhere would end this one."""
        if message.group != self.group:
            self._refuse(replica, message.session, Why.WRONG_GROUP, f"this is store group {self.group}")
        elif peer is None or message.replica != replica:
            self._refuse(replica, message.session, Why.UNKNOWN_REPLICA, f"replica {message.replica}")
        else:
            self.fenced(message.epoch)
            if self.ended is not None:
                self._refuse(replica, message.session, Why.SUPERSEDED)
            else:
                self._welcome(peer, message)

    def _welcome(self, peer: Peer, message: Hello) -> None:
        """Says where both logs are the same, and goes on from there when the replica is ready."""
        common = listed(message).common(LogOffset(message.end), self.epochs, self.end)
        if common is not None:
            at, snapshot = common.at, common.at < self.first
        else:  # of one beginning, and nothing in common; if not even that, its log is unknown
            at, snapshot = self.first, message.first != self.first
        peer.greet(message.session, at, now_ms=self._now_ms)
        welcome = Welcome(
            session=message.session,
            epoch=self.epoch,
            epochs=self.epochs.entries,
            first=self.first,
            end=self.end,
            cut_to=at,
            confirmed=self.confirmed,
            needs_snapshot=snapshot,
        )
        self._out.append((peer.replica, welcome))
        self._consider()

    def _ack(self, peer: Peer, message: Ack) -> None:
        peer.damaged = message.damaged
        peer.acknowledge(
            LogOffset(message.flushed), message.round, end=self.end, confirmed=self.confirmed, now_ms=self._now_ms
        )
        self._consider()
        self._advance()

    # ---- sending

    def take(self) -> list[tuple[int, FromMaster]]:
        """Returns messages to send, with the replica each is for, in order."""
        if self.ended is None:
            for peer in self.peers.values():
                if peer.stream is not None and peer.stream.ready:
                    self._send_confirmed(peer, peer.stream)
        out, self._out = self._out, []
        return out

    def _send_confirmed(self, peer: Peer, stream: PeerStream) -> None:
        """Sends a replica the confirmed end: with data where there are some; alone when it is quiet, or time is up."""
        idle = stream.sent == self.end == peer.acked and self._now_ms - stream.sent_ms >= self._pace.quiet_ms
        due = self._now_ms - stream.confirmed_sent_ms >= self._pace.heartbeat_ms * 3 // 4
        if not (due or stream.round_sent < self._round or (idle and stream.confirmed_sent < self.confirmed)):
            return
        stream.confirmed_sent, stream.round_sent, stream.confirmed_sent_ms = self.confirmed, self._round, self._now_ms
        self._round_sent = True
        message = Confirmed(
            session=stream.session, epoch=self.epoch, confirmed=self.confirmed, sent=stream.sent, round=self._round
        )
        self._out.append((peer.replica, message))

    def batch(self, replica: int) -> FramesToSend | None:
        """Returns the range of the log to read for a replica now; None: nothing is left, or enough is in flight.

        Call it until it returns None, after every write and acknowledgement: no batch waits for the one before.
        """
        peer = self.peers.get(replica)
        if peer is None or peer.stream is None or not peer.stream.ready or self.ended is not None:
            return None
        sent = peer.stream.sent
        if sent >= self.end or sent - peer.acked >= self._pace.window_bytes:
            return None
        limit = self.epochs.end_at(sent, self.end)
        return FramesToSend(sent, min(limit, LogOffset(sent + self._pace.batch_bytes)))

    def sent(self, replica: int, start: LogOffset, frames: bytes) -> Data:
        """Returns the message for the frames that were read. From here on it counts as sent.

        `start` is that of the `batch`. Raises `BadMessage` when the stream has ended or begun anew since.
        """
        peer = self.peers.get(replica)
        stream = peer.stream if peer is not None else None
        if stream is None or not stream.ready or stream.sent != start or self.ended is not None:
            raise BadMessage(f"nothing is to be sent from {start} any more")
        assert frames
        stream.sent = LogOffset(start + len(frames))
        assert stream.sent <= self.epochs.end_at(start, self.end)
        stream.confirmed_sent, stream.sent_ms = self.confirmed, self._now_ms
        view = memoryview(frames)
        return Data(session=stream.session, epoch=self.epoch, start=start, confirmed=self.confirmed, frames=view)

    # ---- linearizable reads

    def ask_round(self) -> int:
        """Begins a linearizable read: if enough follow this epoch still, nothing was acknowledged in a newer one.

        When `round_agreed` reaches the number returned, `confirmed` is the newest state there is. Reads that begin
        before the next `take` share a round.
        """
        if self._round_sent or not self._round:
            self._round += 1
            self._round_sent = False
        return self._round

    @property
    def round_agreed(self) -> int:
        """The newest round in which enough replicas, asked after it had begun, followed this master.

        None before all of the log that it was elected with is confirmed: the master before may have confirmed more.
        """
        if self.ended is not None or self.confirmed < self.start:
            return 0
        rounds = {replica: peer.round for replica, peer in self.peers.items()} | {self.replica: self._round}
        return min(self._agreed(rounds, members) for members in self._set.both())

    # ---- the controller

    def tick(self, *, now_ms: int) -> None:
        """Takes note that time has passed."""
        self._now_ms = max(now_ms, self._now_ms)
        for peer in self.peers.values():
            if peer.stream is not None and self._now_ms - peer.stream.received_ms > self._pace.silent_ms:
                peer.stream = None
        if self.successor is not None and self._now_ms - self._target_ms > self._pace.drain_ms:
            self.successor = None
        self._consider()
        self._advance()

    @property
    def calm(self) -> bool:
        """Returns whether there is nothing to do but to send heartbeats, unless something comes in.

        Everything is confirmed and every replica knows it, every voter is in sync, and all have lately said that they
        have everything.
        """
        changing = self.ended is not None or self.successor is not None or self._held or self._set.pending is not None
        if changing or self._damaged or self.end != self.confirmed or self.round_agreed < self._round:
            return False
        since_ms, members = self._now_ms - self._pace.lag_ms // 2, self._set.members
        return all(
            (peer.learner or id_ in members)
            and not peer.damaged
            and peer.caught_up_ms >= since_ms
            and peer.stream is not None
            and peer.stream.ready
            and peer.stream.confirmed_sent >= self.confirmed
            for id_, peer in self.peers.items()
        )

    def ask(self) -> AlterSet | None:
        """Returns the command the controller is to be given now; None: none, or it was asked a moment ago."""
        members = self._set.due(now_ms=self._now_ms) if self.ended is None else None
        if members is None:
            return None
        return AlterSet(self.group, self.replica, self.epoch, self._set.epoch, members)

    def controller_contacted(self, *, now_ms: int) -> None:
        """Notes that the controller has answered something, with a majority behind it."""
        self._now_ms = max(now_ms, self._now_ms)
        self._set.contacted(now_ms=self._now_ms)

    def set_altered(self, sync_set: Collection[int], sync_epoch: int) -> None:
        """Takes in a set in force, with this replica master of this epoch: an answer to `ask`, or news; no old one."""
        if self.ended is None and self._set.altered(sync_set, sync_epoch):
            assert self.replica in sync_set
            self._one_joins = False
            self._forget()
            self._advance()
            self._consider()

    def set_refused(self, sync_epoch: int) -> None:
        """Takes the final refusal of a request on a sync epoch: no copy of the question is in flight.

        A question that a controller may still receive is unanswered; to one that was overtaken, `set_altered` is the
        answer.
        """
        added = self._set.refused(sync_epoch, now_ms=self._now_ms)
        self._one_joins = self._one_joins or len(added) > 1
        if len(added) == 1:
            self._refused_ms |= dict.fromkeys(added, self._now_ms)
        self._advance()

    def fenced(self, epoch: int) -> None:
        """Ends the epoch for a newer one: nothing more is confirmed, sent or taken."""
        if epoch > self.epoch:
            self.ended = max(epoch, self.ended or 0)
            self.successor = None

    # ---- switching over

    def hand_over(self, target: int, *, now_ms: int) -> None:
        """Takes nothing more, and has `target` elected when it has everything.

        It is called off after `ReplicationPace.drain_ms`. Raises `CannotSwitchOver`.
        """
        self._now_ms = max(now_ms, self._now_ms)
        if target == self.replica:
            raise CannotSwitchOver(f"replica {target} is master already")
        peer = self.peers.get(target)
        if peer is None or target not in self._set.members or peer.learner or not peer.ready:
            raise CannotSwitchOver(f"replica {target} is not in sync")
        if peer.damaged:
            raise CannotSwitchOver(f"the log of replica {target} is damaged, and not repaired yet")
        if self.ended is not None or self.successor not in {None, target}:
            raise CannotSwitchOver("this master is handing over already")
        self.successor, self._target_ms = target, self._now_ms

    def call_off(self) -> None:
        """Ends a hand-over: appends are taken again. An election that was asked for may happen all the same."""
        self.successor = None

    @property
    def handover(self) -> int | None:
        """Returns the replica that is ready to take over, to be named to the controller; None while there is none.

        It is ready when everything is acknowledged and the replica has all of it.
        """
        target = self.successor
        if target is None or self._set.pending is not None or target not in self._set.members:
            return None
        peer = self.peers[target]
        return target if peer.acked == self.end == self.confirmed and not peer.damaged else None

    # ---- parts

    @property
    def least(self) -> int:
        """Returns how many replicas a set must have for frames of this epoch to be acknowledged."""
        return 1 if self._acknowledge is Acknowledge.MASTER else self._min_in_sync

    def _agreed(self, values: Mapping[int, int], members: Collection[int]) -> int:
        return agreed(values, members, self._acknowledge, min_in_sync=self._min_in_sync)

    def _advance(self) -> None:
        """Confirms the frames that every electable replica of the set has.

        Frames from before this epoch are confirmed when the set in force has them, however small it is after an
        election; later ones only by a set of `min_in_sync`. A quorum counts from this epoch on: its frames of an older
        one may yet lose an election (Raft, 5.4.2).
        """
        if self.ended is not None:
            return
        acked = self.positions()
        reached = min(self.flushed, *(self._agreed(acked, members) for members in self._set.both()))
        reached = min([reached, *(acked[replica] for replica in self._held)])
        if min(map(len, self._set.both())) < self.least:
            reached = min(reached, self.start)
        if self._acknowledge is not Acknowledge.QUORUM or reached >= self.start:
            self.confirmed = max(self.confirmed, LogOffset(reached))

    def _sound(self, replica: int) -> bool:
        """Returns whether a member of the set answers and has a log without damage.

        A master from which one copy is enough counts all the same: its damage is in frames acknowledged before.
        """
        if replica == self.replica or replica not in self.peers:
            return self.least == 1 or not self._damaged
        return not self.peers[replica].damaged and self._behind_ms(replica) <= self._pace.stall_ms

    def _behind_ms(self, replica: int) -> int:
        return self._now_ms - self.peers[replica].caught_up_ms if replica in self.peers else 0

    def _stays(self, replica: int) -> bool:
        """Returns whether a member of the set is to remain one."""
        if replica == self.replica:
            return True
        peer = self.peers.get(replica)
        if peer is None:
            return False
        patience_ms = self._pace.lag_ms if peer.stream is not None else self._pace.gone_ms
        sound = replica in self._known and not peer.learner and not peer.lost and not peer.damaged
        return sound and self._now_ms - peer.caught_up_ms <= patience_ms

    def _consider(self) -> None:
        """Asks for another set where the set should be another one."""
        if self.ended is not None or not self._set.may_change(now_ms=self._now_ms):
            return
        members = self._set.members
        wanted = {replica for replica in members if self._stays(replica)} | self._joining()
        if len(wanted) < min(self.least, len(members)):  # which could acknowledge nothing either
            wanted |= {replica for replica in members if replica not in self.peers or not self.peers[replica].lost}
        acked = self.positions()
        for change in self._changes(members, frozenset(wanted)):
            if self._agreed(acked, change) >= self.confirmed:
                self._set.want(change)
                self._held = frozenset()
                return

    def _changes(self, members: frozenset[int], wanted: frozenset[int]) -> list[frozenset[int]]:
        """Returns the next set on the way to the one wanted: majorities of two sets meet if one member differs."""
        if wanted == members or self._acknowledge is not Acknowledge.QUORUM:
            return [wanted] if wanted != members else []
        more = [members | {replica} for replica in sorted(wanted - members)]
        return more or [members - {replica} for replica in sorted(members - wanted)]

    def _joining(self) -> set[int]:
        """Returns replicas that can join: they have the confirmed frames, and have reached this epoch.

        Under load they are always a little behind. So confirming waits for those that are near, for a moment.
        """
        if self._held and self._now_ms - self._held_ms > self._pace.hold_ms:
            self._held = frozenset()
        if not self._set.may_grow(now_ms=self._now_ms):
            return set()
        near = [peer for peer in self.peers.values() if self._near(peer)]
        ready = {peer.replica for peer in near if peer.acked >= self.confirmed}
        if self._one_joins and ready:
            ready = {min(ready)}
        if not ready and self._now_ms - self._held_ms > self._pace.hold_again_ms:
            self._held = frozenset(peer.replica for peer in near)
            self._held_ms = self._now_ms if near else self._held_ms
        return ready

    def _near(self, peer: Peer) -> bool:
        outside = peer.replica in self._known and peer.replica not in self._set.members and not peer.learner
        outside = outside and self._now_ms - self._refused_ms.get(peer.replica, NEVER_MS) >= self._pace.refused_ms
        fresh = self._now_ms - peer.caught_up_ms <= self._pace.lag_ms
        return outside and peer.ready and fresh and not peer.damaged and peer.acked >= self.start

    def _forget(self) -> None:
        """Forgets replicas that are no more, but for those that still count."""
        for replica in [n for n in self.peers if n not in self._known and n not in self._set.all()]:
            del self.peers[replica]
            self._refused_ms.pop(replica, None)
        self._held &= self.peers.keys()

    def _refuse(self, replica: int, session: int, why: Why, text: str = "") -> None:
        epoch = max(self.epoch, self.ended or 0)
        self._out.append((replica, Refused(session=session, epoch=epoch, why=why, text=text[:1024])))
