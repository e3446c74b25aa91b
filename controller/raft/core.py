"""A Raft node without input, output, clock or thread (Ongaro and Ousterhout 2014, the paper; Ongaro 2014, the thesis).

The shape is etcd's: messages and ticks go in, a `Ready` with the effects to carry out comes out, and `advance` confirms
that they are done. One `Ready` is out at a time; `step`, `tick` and proposals may come while it is being dealt with.
Four methods, `_become_*`, own every change of role.

Chosen where there is a choice: elections are preceded by a pre-vote (thesis, 9.6); a leader without a majority steps
down (6.2), and a node that hears from a leader ignores candidates (4.2.3), unless the leader has asked for the
election. Reads are confirmed by a quorum and never by a clock (6.4). Only the leader takes proposals; a follower raises
`NotLeader`, which names the leader. The membership changes by one node at a time (see membership.py).
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from controller.raft import follower
from controller.raft.errors import BadMessage, NotLeader
from controller.raft.identity import LastReports, is_accepted, signed
from controller.raft.leader import Leader
from controller.raft.membership import Membership, MembershipChange
from controller.raft.messages import (
    CONTEXT_BYTES_MAX,
    NOBODY,
    NUMBER_MAX,
    Append,
    AppendReply,
    EntryId,
    HeartbeatReply,
    InstallSnapshot,
    LeaderHeartbeat,
    Message,
    ReadReply,
    ReadRequest,
    Snapshot,
    TimeoutNow,
    Vote,
    VoteReply,
    check,
)
from controller.raft.node import Node
from controller.raft.quorum import Tally, tally
from controller.raft.ready import Compaction, LastReport, RaftStatus, ReadState, Ready, Role
from controller.raft.settings import RaftSettings
from controller.raft.storage import Storage, first_snapshot

_FROM_LEADER = (Append, LeaderHeartbeat, InstallSnapshot)
LAST_TICKS = 4  # before an election, taken one by one: a process that stood still reads its messages between them
_Handlers: TypeAlias = Mapping[type, Callable[["Raft", Any], None]]


class Raft:
    """The Raft state machine of one node.

    `storage` holds the saved state; a new cluster's first members begin with `first_snapshot`, later ones with nothing.
    `random` decides election timeouts. Entries applied before a restart are applied again, from the snapshot on.
    """

    def __init__(
        self, node_id: int, storage: Storage, *, settings: RaftSettings | None = None, random: random.Random
    ) -> None:
        if not 1 <= node_id <= NUMBER_MAX:
            raise ValueError(f"{node_id} is not the id of a controller")
        self.node = Node(node_id, storage, settings or RaftSettings())
        self._random = random
        self.role = Role.FOLLOWER
        self.leadership: Leader | None = None  # set exactly in the role of that name
        self._votes: dict[int, bool] = {}  # for us as a candidate, real or pre
        self.ticks = 0  # since the start
        self.elapsed = 0  # ticks since the leader's last message, a vote was given, or a candidacy began
        self.election_timeout = 0  # ticks; after so many, an election
        self._last_reports = LastReports()
        self._out: Ready | None = None  # handed out
        self._compaction: tuple[Snapshot, int] | None = None  # with how many entries to keep
        self.become_follower(self.node.term, NOBODY)

    # ---- inputs

    def tick(self, count: int = 1) -> None:
        """Advances time by one tick, or by up to `rest_ticks` at once."""
        assert count == 1 or count <= self.rest_ticks
        self.ticks += count
        if self.leadership is not None:
            if not self.leadership.tick(count):
                self.become_follower(self.node.term, NOBODY)
            return
        self.elapsed += count
        if self.elapsed >= self.election_timeout:
            self.node.leader = NOBODY
            if self.may_stand():
                self.become_pre_candidate()

    @property
    def rest_ticks(self) -> int:
        """Returns the number of ticks that may be taken at once, as nothing is to be done in any of them."""
        if self.leadership is not None:
            return self.leadership.rest_ticks
        return max(0, self.election_timeout - self.elapsed - LAST_TICKS)

    @property
    def at_rest(self) -> bool:
        """Returns whether this node follows a leader and has nothing to say, as after most ticks."""
        node = self.node
        return self.role is Role.FOLLOWER and node.leader != NOBODY and not (node.early or node.outbox or node.reads)

    @property
    def has_work(self) -> bool:
        """Returns whether `ready` may have work, as of every node but a follower at rest."""
        node, saved = self.node, self.node.saved
        known = (node.term, node.vote, node.log.committed) == (saved.term, saved.vote, saved.commit)
        idle = known and node.membership is node.reported and self._compaction is None and not node.log.has_work
        return not (idle and self.at_rest)

    def step(self, message: Message) -> None:
        """Takes in a peer's message. Raises `BadMessage` where no correct peer sends it; the log stays as it is."""
        node = self.node
        if message.to != node.id or message.sender == node.id:
            raise BadMessage(f"a message of controller {message.sender} to controller {message.to}")
        check(message)
        if not is_accepted(node, message):
            return
        self._last_reports.note(message)
        if message.term > node.term:
            if not self._enter_term(message):
                return
        elif message.term < node.term:
            self._answer_late(message)
            return
        handler = self._HANDLERS[self.role].get(type(message))
        if handler is not None:
            handler(self, message)

    def last_report(self, node_id: int) -> LastReport | None:
        """Returns a node's progress as last heard since this node started; None when nothing was heard."""
        return self._last_reports.get(node_id)

    def form(self, membership: Membership, data: bytes = b"") -> None:
        """Begins a new cluster of these members, by the member that has asked all the others (decision 33).

        Raises ValueError where this node knows of a cluster already.
        """
        if not self.is_fresh:
            raise ValueError(f"controller {self.node.id} knows of a cluster already")
        snapshot = first_snapshot(membership, data)
        self.become_follower(snapshot.term, NOBODY)
        self.node.log.restore(snapshot)

    @property
    def is_fresh(self) -> bool:
        """Returns whether this node has never taken part in any cluster."""
        return (self.node.term, self.node.log.last_index) == (0, 0)

    def renew(self, incarnation: str) -> None:
        """Becomes a new incarnation with the same id and log, unknown to the others; the storage has recorded it."""
        if self.leadership is not None or self.role is not Role.FOLLOWER:
            self.become_follower(self.node.term, NOBODY)
        self.node.incarnation, self.node.legacy, self.node.proven = incarnation, False, True
        self.node.early, self.node.outbox = [], []  # they were the other one's

    def prove(self, *, proven: bool, term: int = 0, floor: tuple[int, int] = (0, 0)) -> None:
        """Says whether this node's memory may be relied on; until then it neither votes nor stands.

        Of a memory that may be an old one, `term` is the newest in which it may have voted, and `floor` the term and
        the index of the last entry that it may have had: it votes in later terms only, and for candidates with that
        entry.
        """
        node = self.node
        node.proven, node.floor = proven, floor
        if term:
            if term > node.term:
                self.become_follower(term, NOBODY)
            node.vote = node.vote or node.id

    def propose(self, data: bytes) -> EntryId:
        """Appends a command, and returns its entry. Raises `NotLeader`, `ProposalDropped`, `ProposalTooLarge`.

        It has happened when an entry of that index and term is applied, and never will when one of another term is.
        """
        return self._require_leader().propose(data)

    def propose_change(self, change: MembershipChange) -> EntryId:
        """Appends a change of the membership. Raises `NotLeader`, `ChangeRefused`, `ProposalDropped`."""
        return self._require_leader().propose_change(change)

    def read_index(self, context: bytes) -> None:
        """Asks for the index a linearizable read waits for; `Ready.reads` answers.

        A follower asks its leader. Messages get lost: without an answer in an election timeout, ask again. `context`
        tells the reads of a node apart and has at most `CONTEXT_BYTES_MAX`; an answer may come twice.

        Raises `NotLeader`, `ProposalDropped`.
        """
        node = self.node
        if len(context) > CONTEXT_BYTES_MAX:
            raise ValueError(f"a read's context has at most {CONTEXT_BYTES_MAX} bytes")
        if self.leadership is not None:
            self.leadership.read(node.id, context)
        elif node.leader == NOBODY:
            raise NotLeader(None)
        else:
            node.outbox.append(ReadRequest(sender=node.id, to=node.leader, term=node.term, context=context))

    def transfer(self, to: int) -> None:
        """Hands the leadership to a voter, within an election timeout or not at all.

        Raises `NotLeader`, `TransferRefused`.
        """
        self._require_leader().transfer(to)

    def compact(self, index: int, data: bytes, *, keep: int = 0) -> None:
        """Lets a snapshot of the state machine after the entry of `index` stand for the log up to it.

        `keep` more entries stay for followers that are a little behind. Raises ValueError for one not applied.
        """
        log = self.node.log
        if index > log.applied or keep < 0:
            raise ValueError(f"index {index} is not applied, or {keep} is negative")
        if index <= log.snapshot_index:
            return
        term = log.term(index)
        assert term is not None
        membership = log.history.at(index)
        self._compaction = Snapshot(index=index, term=term, membership=membership, data=data), keep

    def unreachable(self, node_id: int) -> None:
        """Notes that recent messages to a node are lost, a snapshot included.

        A hint: without it, the core finds out later.
        """
        if self.leadership is not None:
            self.leadership.unreachable(node_id)

    # ---- outputs

    def ready(self) -> Ready | None:
        """Returns the work to do now; None when there is none. `advance` has to be called before the next call."""
        assert self._out is None, "the last Ready is not done"
        if self.leadership is not None:
            self.leadership.flush()
            if self.leadership.is_gone():
                self.become_follower(self.node.term, NOBODY)
        node, log = self.node, self.node.log
        hard, saved = node.hard_state(), node.saved
        entries, committed, compaction = log.unstable(), log.to_apply(), self._take_compaction()
        membership = node.membership if node.membership is not node.reported else None
        if not (
            (hard != saved or entries or committed or compaction or log.pending or membership)
            or (node.early or node.outbox or node.reads)
        ):
            return None
        node.reported = node.membership
        self._out = Ready(
            early=signed(node, node.early),
            hard_state=hard if hard != saved else None,
            entries=entries,
            snapshot=log.pending,
            compaction=compaction,
            must_sync=bool(entries or log.pending or compaction) or (hard.term, hard.vote) != (saved.term, saved.vote),
            messages=signed(node, node.outbox),
            committed=committed,
            reads=tuple(node.reads),
            membership=membership,
        )
        node.early, node.outbox, node.reads = [], [], []
        return self._out

    def advance(self, ready: Ready) -> None:
        """Notes that all that the `Ready` asked for is done."""
        assert ready is self._out, "another Ready is to be done"
        self._out = None
        node, log = self.node, self.node.log
        log.saved(ready)
        if ready.hard_state is not None:
            node.saved = ready.hard_state
        if ready.snapshot is not None:
            log.applied_to(ready.snapshot.index)
        if ready.committed:
            log.applied_to(ready.committed[-1].index)
            if self.leadership is not None:
                self.leadership.applied(ready.committed)
        if self.leadership is not None:
            self.leadership.persisted()
        elif self.role is Role.CANDIDATE and (node.saved.term, node.saved.vote) == (node.term, node.id):
            self._count(node.id, granted=True)  # only now: after a crash it could have been another's

    def status(self) -> RaftStatus:
        """Returns the node as it sees itself."""
        node, log, leader = self.node, self.node.log, self.leadership
        return RaftStatus(
            id=node.id,
            incarnation=node.incarnation,
            fresh=self.is_fresh,
            votes=node.votes,
            role=self.role,
            term=node.term,
            vote=node.vote or None,
            leader=node.leader or None,
            first_index=log.first_index,
            last_index=log.last_index,
            last_term=log.last_term,
            commit=log.committed,
            applied=log.applied,
            snapshot_index=log.snapshot_index,
            membership=node.membership,
            transferee=(leader.transferee or None) if leader is not None else None,
            progress={id: peer.status() for id, peer in leader.peers.items()} if leader is not None else {},
        )

    # ---- roles

    def become_follower(self, term: int, leader: int) -> None:
        """Follows a leader, or `NOBODY` yet, in this term. The reads of a lost leadership are given up."""
        node = self.node
        if self.leadership is not None:
            node.reads += [ReadState(context=context, index=None) for context in self.leadership.lost_reads()]
        if term > node.term:
            node.term, node.vote = term, NOBODY
        node.leader = leader
        self._enter(Role.FOLLOWER)

    def become_pre_candidate(self) -> None:
        """Asks whether an election could be won, before disturbing the cluster with a new term (thesis, 9.6)."""
        self.node.leader = NOBODY
        self._enter(Role.PRE_CANDIDATE)
        self._ask_for_votes(self.node.term + 1)
        self._count(self.node.id, granted=True)

    def become_candidate(self, *, forced: bool = False) -> None:
        """Stands for election in a new term. The vote for ourselves counts when it is on disk."""
        node = self.node
        node.term, node.vote, node.leader = node.term + 1, node.id, NOBODY
        self._enter(Role.CANDIDATE)
        self._ask_for_votes(node.term, forced=forced)

    def become_leader(self) -> None:
        """Leads from now on, in the term whose election it has won."""
        self.node.leader = self.node.id
        self._enter(Role.LEADER)
        self.leadership = Leader(self.node, self.ticks)

    def _enter(self, role: Role) -> None:
        self.role = role
        self.leadership = None
        self._votes = {}
        self.elapsed = 0
        ticks = self.node.settings.election_ticks
        self.election_timeout = self._random.randrange(ticks, 2 * ticks)  # so that votes are seldom split (paper, 5.2)

    def _require_leader(self) -> Leader:
        if self.leadership is None:
            raise NotLeader(self.node.leader or None)
        return self.leadership

    # ---- elections

    def may_stand(self) -> bool:
        """Returns whether this node may stand for election now."""
        node = self.node
        return node.may_lead() and node.log.pending is None and node.term < NUMBER_MAX

    def _has_live_leader(self) -> bool:
        return self.node.leader != NOBODY and self.elapsed < self.node.settings.election_ticks

    def _ask_for_votes(self, term: int, *, forced: bool = False) -> None:
        node, log = self.node, self.node.log
        for voter in node.membership.voters:
            if voter != node.id:
                node.outbox.append(
                    Vote(
                        sender=node.id,
                        to=voter,
                        term=term,
                        last_index=log.last_index,
                        last_term=log.last_term,
                        pre=self.role is Role.PRE_CANDIDATE,
                        forced=forced,
                    )
                )

    def _count(self, voter: int, *, granted: bool) -> None:
        """Counts a vote, and draws the conclusion when there is one. A voter's first answer stands."""
        if voter != self.node.id or self.node.votes:  # our id may be another incarnation's
            self._votes.setdefault(voter, granted)
        result = tally(self.node.membership.voters, self._votes)
        if result is Tally.LOST:
            self.become_follower(self.node.term, NOBODY)
        elif result is Tally.WON and self.role is Role.PRE_CANDIDATE:
            self.become_candidate()
        elif result is Tally.WON:
            self.become_leader()

    # ---- messages

    def _enter_term(self, message: Message) -> bool:
        """Deals with a later term (paper, 5.1). Returns whether the message is to be dealt with then."""
        if isinstance(message, Vote):
            if not message.forced and self._has_live_leader():
                return False  # a removed node, or one that was cut off, does not disturb (thesis, 4.2.3)
            if message.pre:
                return True  # it asks about a term that may never come
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            return True  # likewise
        self.become_follower(message.term, message.sender if isinstance(message, _FROM_LEADER) else NOBODY)
        return True

    def _answer_late(self, message: Message) -> None:
        """Deals with an earlier term: tell a leader or a pre-candidate of ours, and leaves the rest.

        A node whose term has run ahead would otherwise be stuck: it is not heard as a candidate while there is a
        leader, and does not follow one of an earlier term.
        """
        node = self.node
        if isinstance(message, _FROM_LEADER):
            node.outbox.append(
                AppendReply(sender=node.id, to=message.sender, addressee=message.incarnation, term=node.term, index=0)
            )
        elif isinstance(message, Vote) and message.pre:
            node.outbox.append(
                VoteReply(
                    sender=node.id,
                    to=message.sender,
                    addressee=message.incarnation,
                    term=node.term,
                    granted=False,
                    pre=True,
                )
            )

    def _on_vote(self, message: Vote) -> None:
        if follower.on_vote(self.node, message):
            self.elapsed = 0

    def _on_vote_reply(self, message: VoteReply) -> None:
        pre = self.role is Role.PRE_CANDIDATE
        if message.pre == pre and (not message.granted or message.term == self.node.term + pre):
            self._count(message.sender, granted=message.granted)

    def _on_leader(self, message: Append | LeaderHeartbeat | InstallSnapshot) -> None:
        """Notes that the leader of this term has spoken."""
        node = self.node
        if self.role is Role.LEADER or node.leader not in {NOBODY, message.sender}:
            raise BadMessage(f"controllers {node.leader} and {message.sender} both lead term {node.term}")
        if self.role is not Role.FOLLOWER:
            self.become_follower(node.term, message.sender)
        node.leader = message.sender
        self.elapsed = 0
        if isinstance(message, Append):
            follower.on_append(node, message)
        elif isinstance(message, LeaderHeartbeat):
            follower.on_heartbeat(node, message)
        else:
            follower.on_install_snapshot(node, message)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """Begins an election without pre-vote, as the leader hands over (thesis, 3.10)."""
        if message.sender == self.node.leader and self.may_stand():
            self.become_candidate(forced=True)

    def _on_read_reply(self, message: ReadReply) -> None:
        follower.on_read_reply(self.node, message)

    def _on_follower(self, message: AppendReply | HeartbeatReply | ReadRequest) -> None:
        assert self.leadership is not None
        self.leadership.step(message)

    def _take_compaction(self) -> Compaction | None:
        held, self._compaction = self._compaction, None
        log = self.node.log
        if held is None or held[0].index <= log.snapshot_index:
            return None
        snapshot, keep = held
        log.snapshot_index = snapshot.index
        return Compaction(snapshot=snapshot, first_index=max(log.first_index, snapshot.index + 1 - keep))

    # ---- who takes which message in which role; a message that is not here is nothing to that role

    _EVERYBODY: ClassVar[_Handlers] = {
        Vote: _on_vote,
        Append: _on_leader,
        LeaderHeartbeat: _on_leader,
        InstallSnapshot: _on_leader,
    }
    _CANDIDATES: ClassVar[_Handlers] = {**_EVERYBODY, VoteReply: _on_vote_reply}
    _HANDLERS: ClassVar[Mapping[Role, _Handlers]] = {
        Role.FOLLOWER: {**_EVERYBODY, TimeoutNow: _on_timeout_now, ReadReply: _on_read_reply},
        Role.PRE_CANDIDATE: _CANDIDATES,
        Role.CANDIDATE: _CANDIDATES,
        Role.LEADER: {**_EVERYBODY, **dict.fromkeys((AppendReply, HeartbeatReply, ReadRequest), _on_follower)},
    }
