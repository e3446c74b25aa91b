"""The leader's side of its term: begun when it is elected, gone when it steps down."""

from controller.raft.errors import (
    BadMessage,
    ChangeRefused,
    Compacted,
    ProposalDropped,
    ProposalTooLarge,
    TransferRefused,
)
from controller.raft.membership import ChangeKind, MembershipChange
from controller.raft.messages import (
    NOBODY,
    Append,
    AppendReply,
    Entry,
    EntryId,
    EntryKind,
    HeartbeatReply,
    Index,
    InstallSnapshot,
    LeaderHeartbeat,
    Message,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    entry_bytes,
    make_change,
)
from controller.raft.node import Node
from controller.raft.progress import Progress, ProgressState
from controller.raft.quorum import majority_index
from controller.raft.reads import Read, Reads
from controller.raft.ready import ReadState


class Leader:
    """Replication, commitment, reads, hand-over and changes of the membership.

    Messages are not sent as soon as they are possible but in `flush`, before a `Ready` is handed out: entries that came
    together go out together.
    """

    def __init__(self, node: Node, ticks: int) -> None:
        """Begins; `ticks` is the node's count, at whose multiples of `heartbeat_ticks` heartbeats are due."""
        log = node.log
        self._node = node
        self.peers: dict[int, Progress] = {}  # all others, by id
        self.match = log.stable  # the entries on this node's disk, which count like a follower's
        self.first = log.last_index + 1  # of this term; earlier entries are committed with it (paper, 5.4.2)
        self._change = self.first  # the next change is proposed when all up to it is committed (see membership.py)
        self._reads = Reads()
        self._uncommitted_bytes = 0  # of this term's proposals
        self._ticks = ticks
        self._quorum_elapsed = 0  # ticks
        self.transferee = NOBODY
        self._leaving = False  # one of the peers is being removed
        self._follow_membership()
        log.append([Entry(node.term, self.first, EntryKind.EMPTY)])

    # ---- time

    @property
    def rest_ticks(self) -> int:
        """Returns the number of ticks before the one in which something is due."""
        settings = self._node.settings
        heartbeat = settings.heartbeat_ticks - self._ticks % settings.heartbeat_ticks
        return max(0, min(heartbeat, settings.election_ticks - self._quorum_elapsed) - 1)

    def tick(self, count: int = 1) -> bool:
        """Sends due heartbeats. Returns False when no majority has answered for an election timeout (thesis, 6.2)."""
        settings = self._node.settings
        self._ticks += count
        self._quorum_elapsed += count
        for progress in self.peers.values():
            progress.tick(count)
        if self._quorum_elapsed >= settings.election_ticks:
            self._quorum_elapsed = 0
            self.transferee = NOBODY  # a hand-over that takes longer has failed (thesis, 3.10)
            if not self._has_quorum():
                return False
        if self._ticks % settings.heartbeat_ticks == 0:
            self._send_heartbeats(self._reads.next_number() or self._reads.number)
        return True

    def _has_quorum(self) -> bool:
        """Returns whether a majority was active since the last call."""
        active = [self._is_me(id) or (id in self.peers and self.peers[id].active) for id in self._voters]
        for progress in self.peers.values():
            progress.begin_look()
        return 2 * sum(active) > len(active)

    # ---- calls of the driver

    def propose(self, data: bytes) -> EntryId:
        """Appends a command. Raises `ProposalDropped`, `ProposalTooLarge`."""
        if len(data) > self._node.settings.proposal_bytes_max:
            raise ProposalTooLarge(f"a proposal has at most {self._node.settings.proposal_bytes_max} bytes")
        return self._append(Entry(self._node.term, self._node.log.last_index + 1, EntryKind.COMMAND, data))

    def propose_change(self, change: MembershipChange) -> EntryId:
        """Appends a change of the membership. Raises `ChangeRefused`, `ProposalDropped`."""
        node = self._node
        if self._change > node.log.committed:
            raise ChangeRefused(
                "the leader or another change of the controllers is not confirmed by a majority yet; try again"
            )
        node.membership.check(change)
        if change.kind is ChangeKind.ADD_LEARNER and change.node == node.id:
            raise ChangeRefused(f"controller {node.id} is the leader, and cannot be replaced")
        if change.kind is ChangeKind.PROMOTE:
            self._check_caught_up(change.node)
        entry = make_change(node.term, node.log.last_index + 1, change)
        found = self._append(entry)
        self._change = entry.index
        if change.kind is ChangeKind.ADD_LEARNER:
            self.peers.pop(change.node, None)  # another incarnation has none of the entries of the one before
            self._reads.forget(change.node)
        self._follow_membership()
        self._commit()
        return found

    def read(self, node_id: int, context: bytes) -> None:
        """Begins a read of a node. Raises `ProposalDropped`."""
        if len(self._reads) >= self._node.settings.reads_max:
            raise ProposalDropped(f"{len(self._reads)} reads are waiting")
        committed = self._node.log.committed
        self._reads.add(Read(node_id, context), committed if committed >= self.first else None)

    def transfer(self, to: int) -> None:
        """Hands the leadership over; until it has happened or failed nothing is taken. Raises `TransferRefused`."""
        if to not in self.peers or to not in self._node.membership.voters:
            raise TransferRefused(f"controller {to} is not another voter")
        if self.transferee == to:
            return
        self.transferee = to
        self._quorum_elapsed = 0
        self._hand_over()

    def lost_reads(self) -> list[bytes]:
        """Returns the contexts of this node's own reads that will not be answered."""
        return self._reads.lost(self._node.id)

    def _append(self, entry: Entry) -> EntryId:
        if self.transferee != NOBODY:
            raise ProposalDropped(f"the leadership is being handed over to controller {self.transferee}")
        size = entry_bytes(entry)
        if self._uncommitted_bytes and self._uncommitted_bytes + size > self._node.settings.uncommitted_bytes_max:
            raise ProposalDropped(f"{self._uncommitted_bytes} bytes are not committed yet")
        self._uncommitted_bytes += size
        self._node.log.append([entry])
        return EntryId(entry.term, entry.index)

    def _check_caught_up(self, learner: int) -> None:
        """Checks that a new voter is not far behind, which could hold up commitment (thesis, 4.2.1)."""
        progress = self.peers[learner]
        behind = self._node.log.last_index - progress.match
        if progress.state is not ProgressState.REPLICATE or behind > self._node.settings.promote_lag_max:
            raise ChangeRefused(f"controller {learner} is {behind} entries behind")

    # ---- followers' messages

    def step(self, message: Message) -> None:
        """Handles a follower's message to its leader. Raises `BadMessage`."""
        if isinstance(message, AppendReply):
            self._on_append_reply(message)
        elif isinstance(message, HeartbeatReply):
            self._on_heartbeat_reply(message)
        elif isinstance(message, ReadRequest):
            self._on_read_request(message)

    def _on_append_reply(self, message: AppendReply) -> None:
        """Handles a follower's report of the entries that it has or lacks. Raises `BadMessage`."""
        progress = self.peers.get(message.sender)
        if progress is None:
            return
        log = self._node.log
        if not message.refused and message.index > log.last_index:
            raise BadMessage(f"entry {message.index} is acknowledged, and the log ends at {log.last_index}")
        progress.active = True
        if message.refused:
            hint = message.hint_index
            if message.hint_term:
                hint, _ = log.last_not_above(hint, message.hint_term)
            progress.refused(message.index, hint)
        elif progress.acknowledged(message.index, log.first_index):
            self._commit()
            if message.sender == self.transferee:
                self._hand_over()

    def _on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        """Notes that a follower is there, which confirms the reads before the heartbeat."""
        progress = self.peers.get(message.sender)
        if progress is None:
            return
        progress.active = True
        progress.heartbeat_answered(self._node.log.last_index)
        self._reads.answered(message.sender, message.read)
        self._release_reads()

    def _on_read_request(self, message: ReadRequest) -> None:
        """Begins a read for a follower, which has to ask again where there are too many."""
        try:
            self.read(message.sender, message.context)
        except ProposalDropped:
            return

    def unreachable(self, node_id: int) -> None:
        """Treats everything in flight to a node as lost."""
        progress = self.peers.get(node_id)
        if progress is not None and progress.state is not ProgressState.PROBE:
            progress.become_probe()

    # ---- local events

    def persisted(self) -> None:
        """Notes that this node's disk has more of the log."""
        self.match = self._node.log.stable
        self._commit()

    def applied(self, entries: tuple[Entry, ...]) -> None:
        """Counts entries that are applied no longer as uncommitted."""
        own = sum(entry_bytes(entry) for entry in entries if entry.term == self._node.term)
        self._uncommitted_bytes = max(0, self._uncommitted_bytes - own)

    def is_gone(self) -> bool:
        """Returns whether this node's removal is committed: until then it leads, and does not count (thesis, 4.2.2)."""
        return not self._node.votes and self._change <= self._node.log.committed

    @property
    def _voters(self) -> tuple[int, ...]:
        return self._node.membership.voters

    def _is_me(self, id: int) -> bool:
        return id == self._node.id and self._node.votes

    def _follow_membership(self) -> None:
        """Keeps in touch with the members, and with one that is being removed, until it can know that it is."""
        node, old = self._node, self.peers
        agreed = node.log.history.at(node.log.committed)
        self._leaving = not set(agreed.ids) <= set(node.membership.ids)
        others = sorted({*agreed.ids, *node.membership.ids} - {node.id})
        next_index = node.log.last_index + 1
        self.peers = {id: old.get(id) or Progress(node.settings, next_index=next_index) for id in others}
        for id, progress in self.peers.items():  # one that is leaving keeps the name it had
            progress.incarnation = node.membership.incarnation_of(id) or progress.incarnation
        if self.transferee not in node.membership.voters:
            self.transferee = NOBODY

    def _commit(self) -> None:
        """Commits the entries that a majority has on disk, if the last is of this term (paper, 5.4.2 and figure 8)."""
        node, peers = self._node, self.peers
        index = majority_index([self.match if self._is_me(id) else _match(peers.get(id)) for id in self._voters])
        if index > node.log.committed and node.log.term(index) == node.term:
            node.log.commit_to(index)
            self._reads.term_committed(index)

    def _release_reads(self) -> None:
        node = self._node
        for index, (asker, context) in self._reads.confirmed(self._voters, node.id if node.votes else NOBODY):
            if asker == node.id:
                node.reads.append(ReadState(context=context, index=index))
            else:
                to = self.peers[asker].incarnation if asker in self.peers else ""
                node.outbox.append(
                    ReadReply(sender=node.id, to=asker, addressee=to, term=node.term, context=context, index=index)
                )

    def _hand_over(self) -> None:
        node = self._node
        peer = self.peers[self.transferee]
        if peer.match == node.log.last_index:
            node.early.append(
                TimeoutNow(sender=node.id, to=self.transferee, addressee=peer.incarnation, term=node.term)
            )

    # ---- sending

    def flush(self) -> None:
        """Sends every follower the entries that it can take, and heartbeats for new reads."""
        node = self._node
        for id, progress in self.peers.items():
            if progress.state is ProgressState.SNAPSHOT:
                self._ask_for_snapshot(id, progress)
            else:
                try:
                    self._send_entries(id, progress)
                except Compacted:
                    self._send_snapshot(id, progress)
        number = self._reads.next_number()
        if number is not None:
            self._send_heartbeats(number)
        self._release_reads()  # where this node alone votes, no other one has to answer
        if self._leaving and self._change <= node.log.committed:
            self._follow_membership()  # the removed node has been told

    def _send_entries(self, to: int, progress: Progress) -> None:
        """Sends entries until there are none, too many are in flight, or it is not known whether they fit."""
        node, log = self._node, self._node.log
        last, commit, bytes_max = log.last_index, log.committed, node.settings.append_bytes_max
        empty = progress.state is ProgressState.PROBE or progress.nudge or progress.commit_sent < commit
        progress.nudge = False
        while not progress.paused:
            prev_index = progress.next - 1
            held = progress.next <= last and not progress.full
            if not held and not empty:
                return
            prev_term = log.term(prev_index)
            if prev_term is None:
                raise Compacted(f"entry {prev_index} is not held")
            entries = tuple(log.entries(progress.next, last + 1, bytes_max)) if held else ()
            self._send_append(to, progress, prev_term, entries)
            progress.sent(prev_index + len(entries), sum(map(entry_bytes, entries)))
            progress.commit_sent = commit
            empty = False

    def _send_append(self, to: int, progress: Progress, prev_term: int, entries: tuple[Entry, ...] = ()) -> None:
        node = self._node
        node.early.append(
            Append(
                sender=node.id,
                to=to,
                addressee=progress.incarnation,
                term=node.term,
                prev_index=progress.next - 1,
                prev_term=prev_term,
                commit=node.log.committed,
                entries=entries,
            )
        )

    def _send_snapshot(self, to: int, progress: Progress) -> None:
        if not progress.active:
            return  # it is large: first it has to be there
        node = self._node
        snapshot = node.storage.snapshot()
        progress.become_snapshot(snapshot.index)
        node.early.append(
            InstallSnapshot(sender=node.id, to=to, addressee=progress.incarnation, term=node.term, snapshot=snapshot)
        )

    def _ask_for_snapshot(self, to: int, progress: Progress) -> None:
        """Finds out whether a snapshot has arrived, where the answer was lost: a follower without it refuses."""
        prev_term = self._node.log.term(progress.next - 1)
        if progress.nudge and prev_term is not None:
            self._send_append(to, progress, prev_term)
        progress.nudge = False

    def _send_heartbeats(self, number: int) -> None:
        """Sends heartbeats. A follower that is up to date answers one of each check-quorum, and those for reads."""
        node, reading, last = self._node, len(self._reads) > 0, self._node.log.last_index
        for id, progress in self.peers.items():
            commit = min(progress.match, node.log.committed)
            node.early.append(
                LeaderHeartbeat(
                    sender=node.id,
                    to=id,
                    addressee=progress.incarnation,
                    term=node.term,
                    commit=commit,
                    read=number,
                    quiet=progress.active and progress.holds(last) and not reading,
                )
            )


def _match(progress: Progress | None) -> Index:
    """Returns the last index that a follower has on disk; 0 where its id is another incarnation's."""
    return 0 if progress is None else progress.match
