"""Changes of the membership, one node at a time: thesis, chapter 4."""

import pytest

from controller.raft import (
    BadMessage,
    ChangeKind,
    ChangeRefused,
    Membership,
    MembershipChange,
    MemoryStorage,
    RaftMember,
    Role,
    decode_change,
)
from controller.raft.membership import ADDRESS_BYTES_MAX, MEMBERS_MAX, History, encode_change
from controller.raft.messages import Append, TimeoutNow
from tests.support.controller.raft_rig import ELECTION_TICKS, Net, storage_with


def add(node, address=""):
    return MembershipChange(kind=ChangeKind.ADD_LEARNER, node=node, address=address)


def promote(node):
    return MembershipChange(kind=ChangeKind.PROMOTE, node=node)


def remove(node):
    return MembershipChange(kind=ChangeKind.REMOVE, node=node)


def ids(node):
    return node.status.membership.ids


def voters(node):
    return node.status.membership.voters


# ---- the changes themselves


def test_a_new_cluster_grows_from_one_to_three():
    net = Net(1)
    net.elect(1)
    for id in (2, 3):
        net.join(id)
        net.change(add(id))
        net.tick(4)
        net.change(promote(id))
    assert [voters(node) for node in net.nodes.values()] == [(1, 2, 3)] * 3
    net.isolate(1)
    net.tick(5 * ELECTION_TICKS)
    assert net.leader().id in {2, 3}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (add(1), "already"),
        (add(0), "begin at 1"),
        (add(9, "x" * (ADDRESS_BYTES_MAX + 1)), "address"),
        (promote(1), "votes already"),
        (promote(9), "not a member"),
        (remove(9), "not a member"),
        (MembershipChange(kind=ChangeKind.MOVE, node=9, address="x"), "not a member"),
        (remove(1), "nobody"),
    ],
)
def test_changes_without_sense_are_refused_and_where_they_are_in_the_log_do_nothing(change, why):
    membership = Membership.of(RaftMember(id=1), RaftMember(id=2, learner=True))
    with pytest.raises(ChangeRefused, match=why):
        membership.check(change)
    assert membership.apply(change) is membership


def test_there_is_a_limit_to_members():
    membership = Membership.of(*(RaftMember(id=id) for id in range(1, MEMBERS_MAX + 1)))
    with pytest.raises(ChangeRefused, match="at most"):
        membership.check(add(1000))
    assert Membership.of(*membership.members, RaftMember(id=1000)).problem()


def test_a_node_moves_to_another_address():
    net = Net(3)
    net.elect(1)
    net.change(MembershipChange(kind=ChangeKind.MOVE, node=2, address="elsewhere:1"))
    assert net[3].status.membership.get(2) == RaftMember(id=2, address="elsewhere:1")
    assert voters(net[3]) == (1, 2, 3)
    net.change(add(4, "host:1"))
    assert net[3].status.membership.get(4) == RaftMember(id=4, address="host:1", learner=True)


def test_the_driver_is_told_of_each_membership_once():
    net = Net(2)
    net.elect(1)
    net.change(add(3))
    net.propose(b"x")
    assert [membership.ids for membership in net[2].memberships] == [(1, 2), (1, 2, 3)]


# ---- removal


def test_a_removed_node_knows_and_keeps_still():
    net = Net(3)
    net.elect(1)
    net.change(remove(3))
    assert ids(net[1]) == ids(net[3]) == (1, 2)
    term = net[1].term
    net.tick(10 * ELECTION_TICKS)
    assert (net[1].role, net[1].term) == (Role.LEADER, term)
    assert net[3].role is Role.FOLLOWER
    assert 3 not in net[1].status.progress


def test_a_removed_leader_is_not_needed_any_more():
    """The entry makes a change hold: the last message of node 1 is lost, and then node 1 is."""
    net = Net(2)
    net.elect(1)
    net[1].raft.propose_change(remove(1))
    commit = net[1].status.commit
    net.lost = lambda message: isinstance(message, Append) and message.commit > commit
    net.settle()
    assert net[1].role is Role.FOLLOWER
    assert net[2].status.commit == commit
    net.isolate(1)
    net.tick(3 * ELECTION_TICKS, 2)
    assert net[2].role is Role.LEADER
    net.propose(b"on", 2)
    assert net[2].data == [b"on"]


def test_who_is_being_removed_may_still_be_elected_to_finish_it():
    net = Net(2)
    net.elect(1)
    net.isolate(2)
    net.change(remove(1))  # node 2 has not heard of it, and cannot be elected without node 1
    net.tick(3 * ELECTION_TICKS)
    net.restart(1)
    assert voters(net[1]) == (2,)
    net.heal()
    net.tick(5 * ELECTION_TICKS)
    assert voters(net[2]) == (2,)
    assert net[2].role is Role.LEADER
    assert net[1].role is Role.FOLLOWER


def test_removing_the_one_that_is_handed_the_leadership_ends_the_hand_over():
    net = Net(3)
    net.elect(1)
    net.isolate(2)
    leader = net[1].raft
    leader.propose_change(remove(2))
    with pytest.raises(Exception, match="not another voter"):
        leader.transfer(2)
    net.settle()
    assert net[1].status.transferee is None


# ---- in the log


def test_changes_are_found_again_after_a_restart_whether_committed_or_not():
    net = Net(3, apply_bytes_max=1)
    net.elect(1)
    net.change(add(4))
    net.isolate(2)
    net.isolate(3)
    net.change(add(5))
    net.restart(1)
    assert ids(net[1]) == (1, 2, 3, 4, 5)
    assert net[1].status.commit == 3


def test_whoever_is_asked_votes_for_it_may_be_a_voter_without_knowing():
    net = Net(2, learners=1)
    net.elect(1)
    net.tick(3)
    net.isolate(3)
    net.change(promote(3))
    net.heal()
    net.isolate(1)
    assert voters(net[3]) == (1, 2)
    net.elect(2)
    assert net[2].term > net[1].term
    assert net[2].status.progress[3].active


def test_history():
    first = Membership.of(RaftMember(id=1))
    history = History(5, first)
    history.append(7, add(2))
    history.append(9, add(3))
    assert [history.at(index).ids for index in (5, 6, 7, 8, 9, 99)] == [
        (1,),
        (1,),
        (1, 2),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3),
    ]
    history.cut(9)
    assert history.newest.ids == (1, 2)
    history.forget(6)
    assert history.at(6) is first
    history.forget(8)
    assert history.at(8).ids == (1, 2)


def test_an_uncommitted_promotion_already_needs_the_new_voter():
    net = Net(1, learners=1)
    net.elect(1)
    net.tick(3)
    net.isolate(2)
    net.change(promote(2))
    net.propose(b"x")
    assert net[1].status.commit == 2
    net.heal()
    net.tick(3)
    assert net[1].data == [b"x"]


def test_what_is_no_change_is_refused():
    assert decode_change(encode_change(add(3))) == add(3)
    for data in (b"", b"\xc1", b"\x90", encode_change({"kind": "?", "node": 1})):
        with pytest.raises(BadMessage):
            decode_change(data)


def test_a_disk_without_members_never_stands():
    net = Net(1)
    net.nodes[2] = net.make(2, MemoryStorage())
    net.nodes[3] = net.make(3, storage_with(2, voters=2))
    net[2].raft.step(TimeoutNow(sender=1, to=2, term=1))
    net.tick(5 * ELECTION_TICKS, 2, 3)
    assert net[2].role is net[3].role is Role.FOLLOWER
