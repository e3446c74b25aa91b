"""Linearizable reads: thesis, 6.4."""

import pytest

from controller.raft import NotLeader, ProposalDropped, Role
from controller.raft.messages import Append, HeartbeatReply, LeaderHeartbeat, ReadReply, ReadRequest
from controller.raft.reads import Read, Reads
from tests.support.controller.raft_rig import ELECTION_TICKS, Net


def test_who_knows_no_leader_cannot_read():
    net = Net(3)
    with pytest.raises(NotLeader) as error:
        net[1].raft.read_index(b"r")
    assert error.value.leader is None
    with pytest.raises(ValueError, match="context"):
        net[1].raft.read_index(b"r" * 2000)


def test_a_lone_voter_reads_at_once():
    net = Net(1, learners=1)
    net.elect(1)
    net[1].raft.read_index(b"r")
    net.isolate(2)
    net.settle()
    assert net[1].reads == {b"r": 2}
    net[1].raft.read_index(b"s")
    net.tick(1, 1)
    assert net[1].reads == {b"r": 2, b"s": 2}


def test_an_old_leader_behind_a_partition_answers_no_read():
    net = Net(5)
    net.elect(1)
    net.propose(b"old")
    net.cut = {(a, b) for a in net.nodes for b in net.nodes if (a in {1, 2}) != (b in {1, 2})}
    net[1].raft.read_index(b"r")
    net[2].raft.read_index(b"s")
    net.settle()
    for id in (3, 4, 5):
        net[id].raft.elapsed = ELECTION_TICKS
    net.elect(3)
    net.propose(b"new", 3)
    assert net[3].data == [b"old", b"new"]
    assert net[1].reads == net[2].reads == {}
    net.tick(2 * ELECTION_TICKS)
    assert net[1].reads == {b"r": None}  # its leadership is over: ask again
    net.heal()
    net.tick(3)
    net[1].raft.read_index(b"again")
    net.settle()
    assert net[1].reads[b"again"] == net[3].status.commit


def test_a_new_leader_reads_after_it_has_committed_an_entry_of_its_term():
    net = Net(3)
    net.elect(1)
    net.lost = lambda message: message.to == 2 and message.sender == 1 and not getattr(message, "entries", True)
    net.propose(b"a")  # node 2 has it, and does not know that it is committed
    net.lost = lambda message: isinstance(message, Append)
    net.isolate(1)
    net[3].raft.elapsed = ELECTION_TICKS
    net.elect(2)
    net[2].raft.read_index(b"r")
    net.tick(2, 2)
    assert net[2].reads == {}
    net.lost = lambda message: False
    net.tick(4, 2)
    assert net[2].reads == {b"r": 4}


def test_heartbeats_from_before_a_read_do_not_confirm_it():
    net = Net(3)
    net.elect(1)
    net.lost = lambda message: isinstance(message, HeartbeatReply)
    net.tick(1, 1)
    late = [message for message in net.seen if isinstance(message, HeartbeatReply)]
    net[1].raft.read_index(b"r")
    net[1].work()
    for message in late:
        net[1].raft.step(message)
    net.settle()
    assert net[1].reads == {}
    net.lost = lambda message: False
    net.tick(1, 1)
    assert net[1].reads == {b"r": 2}


def test_many_reads_cost_one_round():
    net = Net(3)
    net.elect(1)
    net.seen.clear()
    for n in range(1000):
        net[1].raft.read_index(b"%d" % n)
    net.settle()
    assert len(net[1].reads) == 1000
    assert len([message for message in net.seen if isinstance(message, LeaderHeartbeat)]) == 2


def test_waiting_reads_are_limited():
    net = Net(3, reads_max=2)
    net.elect(1)
    net.isolate(1)
    net[1].raft.read_index(b"a")
    net[1].raft.read_index(b"b")
    with pytest.raises(ProposalDropped):
        net[1].raft.read_index(b"c")
    net[1].raft.step(ReadRequest(sender=2, to=1, term=net[1].term, context=b"d"))  # is not answered
    assert net[1].role is Role.LEADER


def test_answers_are_taken_by_followers_of_their_term_only():
    net = Net(3)
    net.elect(1)
    net[2].raft.step(ReadReply(sender=1, to=2, term=1, context=b"r", index=9))
    net[1].raft.step(ReadReply(sender=2, to=1, term=net[1].term, context=b"r", index=9))
    net.settle()
    assert net[1].reads == net[2].reads == {}


def test_reads_counted():
    reads = Reads()
    reads.add(Read(1, b"early"), None)
    assert reads.next_number() is None
    reads.term_committed(5)
    assert reads.next_number() == 1
    reads.add(Read(2, b"later"), 6)
    reads.answered(2, 99)  # more than was ever asked counts as all that was
    assert reads.confirmed([1, 2, 3], 1) == [(5, Read(1, b"early"))]
    assert len(reads) == 1
    assert reads.lost(1) == []
    assert reads.lost(2) == [b"later"]
