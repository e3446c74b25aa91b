"""Checks what must be true of Raft nodes after every step, whatever has happened (paper, figure 3; thesis, 6.4)."""

from controller.raft.messages import Vote, VoteReply
from controller.raft.ready import Role


class Checks:
    """Watches all hosts of a simulation. Looks at what is new only, so that it can look after every step."""

    def __init__(self):
        self.leaders = {}  # term -> who was it
        self.votes = {}  # (term, voter, its incarnation) -> candidate
        self.entries = {}  # (index, term) -> kind, data, term of the entry before
        self.committed = {}  # index -> term of the entry
        self.committed_in = {}  # index -> term of the first node that knew
        self.commit = 0  # the greatest index committed anywhere
        self.states = {}  # index -> the state machine after it
        self.memberships = {}  # index -> the membership after it

    def said(self, message):
        """Checks a message that leaves a node: a node votes once in a term (paper, 5.2)."""
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            vote = (message.term, message.sender, message.incarnation), message.to
        elif isinstance(message, Vote) and not message.pre:
            vote = (message.term, message.sender, message.incarnation), message.sender
        else:
            return
        assert self.votes.setdefault(*vote) == vote[1], f"node {vote[0][1]} votes twice in term {vote[0][0]}"

    def look(self, host):
        """Checks a host after a step."""
        raft, seen = host.raft, host.seen
        node, log = raft.node, raft.node.log
        assert log.applied <= log.committed <= log.last_index
        assert log.stable <= log.last_index
        assert node.term >= seen.term, "a term has fallen"
        seen.term = node.term
        self._log(log, seen)
        if log.committed != seen.commit:
            self._commit(node, log, seen)
        if raft.role is Role.LEADER:
            self._leader(node, log)
            for progress in raft.leadership.peers.values():
                assert progress.match < progress.next
                assert len(progress.inflight) <= node.settings.inflight_max

    def _log(self, log, seen):
        """Checks Log Matching: an entry's index and term name it and, by induction, all before it."""
        tail, offset = log.tail, log.offset
        last = log.last_index
        if last < seen.last:
            for index in range(last + 1, seen.last + 1):
                seen.terms.pop(index, None)
        seen.last = last
        for at in range(len(tail) - 1, -1, -1):
            entry = tail[at]
            assert entry.index == offset + at
            if seen.terms.get(entry.index) == entry.term:
                return
            seen.terms[entry.index] = entry.term
            before = tail[at - 1].term if at else log.term(offset - 1)
            held = self.entries.setdefault((entry.index, entry.term), (entry.kind, entry.data, before))
            assert held == (entry.kind, entry.data, before), f"two entries of index {entry.index}, term {entry.term}"

    def _commit(self, node, log, seen):
        """Checks that committed entries never change, and are the same everywhere (paper, 5.4.3: State Machine)."""
        assert log.committed > seen.commit, "a commit index has fallen"
        for index in range(seen.commit + 1, log.committed + 1):
            term = log.term(index)
            if term is not None:
                held = self.committed.setdefault(index, term)
                assert held == term, f"entry {index} was committed with term {held} and now with {term}"
                self.committed_in.setdefault(index, node.term)
        assert log.committed in self.committed
        seen.commit = log.committed
        self.commit = max(self.commit, seen.commit)

    def _leader(self, node, log):
        """Checks Election Safety and Leader Completeness (paper, 5.2 and 5.4.3)."""
        me = node.id, node.incarnation
        if node.term in self.leaders:
            assert self.leaders[node.term] == me, f"two leaders in term {node.term}"
            return
        self.leaders[node.term] = me
        history = log.history
        assert history.newest.votes(*me) or history.at(log.committed).votes(*me), "a leader that cannot vote"
        index = self.commit
        while index and self.committed_in.get(index, 0) >= node.term:
            index -= 1
        if index in self.committed and index >= log.first_index - 1:
            assert log.term(index) == self.committed[index], f"the leader of term {node.term} lacks entry {index}"

    def applied(self, index, state, membership):
        """Checks that a host's state after the entry of `index` is that of all others."""
        assert self.states.setdefault(index, state) == state, f"state machines differ after {index}"
        assert self.memberships.setdefault(index, membership) == membership, f"memberships differ after {index}"


class Seen:
    """The position up to which one incarnation of a host was looked at."""

    def __init__(self, term=0):
        self.term = term
        self.commit = 0
        self.last = 0
        self.terms = {}  # index -> the term of what was looked at
