"""A node is an id with a memory: what another memory of the same id says is not counted."""

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
    WentBack,
    first_snapshot,
)
from controller.raft.file_mark import mark_of
from controller.raft.messages import AppendReply, LeaderHeartbeat, VoteReply
from tests.support.controller.raft_rig import Net

ADD, NAME, PROMOTE, REMOVE = ChangeKind.ADD_LEARNER, ChangeKind.NAME, ChangeKind.PROMOTE, ChangeKind.REMOVE


@pytest.fixture
def net():
    """Returns three nodes, "1a", "2a" and "3a"."""
    net = Net()
    first = first_snapshot(Membership.of(*(RaftMember(id=id, incarnation=f"{id}a") for id in net.nodes)))
    for id in net.nodes:
        net.nodes[id] = net.make(id, MemoryStorage(first, f"{id}a"))
    return net


def forget(net, id, incarnation):
    net.nodes[id] = net.make(id, MemoryStorage(None, incarnation))


def test_what_another_one_says_is_not_counted(net):
    net.elect(1)
    net.isolate(2)
    net.isolate(3)
    leader = net[1]
    entry = net.propose(b"x")
    said = {"sender": 3, "to": 1, "addressee": "1a", "term": leader.term}
    leader.raft.step(AppendReply(**said, index=entry.index, incarnation="3b"))
    net.settle()
    assert leader.status.commit < entry.index
    leader.raft.step(AppendReply(**said, index=entry.index, incarnation="3a"))
    net.settle()
    assert leader.status.commit == entry.index


def test_what_is_for_another_one_is_not_heard(net):
    candidate = net[1]
    candidate.raft.election_timeout = 1
    candidate.raft.tick()
    net.settle()
    before = candidate.term
    candidate.raft.step(VoteReply(sender=2, to=1, term=before + 5, granted=False, incarnation="2a", addressee="1b"))
    assert candidate.term == before


def test_a_leader_is_heard_though_it_is_not_known_under_that_incarnation_yet(net):
    """A node that lags reads of it only by its entries."""
    net.elect(1)
    net.isolate(3)
    forget(net, 2, "2b")
    net.cut = {pair for pair in net.cut if 3 in pair}
    net.nodes[4] = net.make(4, MemoryStorage(None, "4a"))
    net.isolate(3)
    net.change(MembershipChange(kind=ADD, node=4, incarnation="4a"))
    net.tick(5)
    assert net[1].status.commit < net[1].status.last_index  # 2 and 3 are missing
    net.heal()
    net.tick(5)
    net.change(MembershipChange(kind=ADD, node=2, incarnation="2b"))
    net.isolate(3)
    net.tick(5)
    net.heal()
    net.tick(5)
    net.change(MembershipChange(kind=PROMOTE, node=2))
    net.tick(5)
    net.elect(2)
    net.tick(5)
    assert net[3].status.leader == 2


def test_nobody_takes_the_place_of_the_leader_or_of_the_only_voter(net):
    net.elect(1)
    with pytest.raises(ChangeRefused, match="is the leader"):
        net[1].raft.propose_change(MembershipChange(kind=ADD, node=1, incarnation="1b"))
    alone = Membership.of(RaftMember(id=1, incarnation="1a"), RaftMember(id=2, incarnation="2a", learner=True))
    with pytest.raises(ChangeRefused, match="nobody would be left"):
        alone.check(MembershipChange(kind=ADD, node=1, incarnation="1b"))


def test_a_member_is_named_once():
    members = Membership.of(RaftMember(id=1), RaftMember(id=2, incarnation="2a"))
    assert members.apply(MembershipChange(kind=NAME, node=1, incarnation="1a")).incarnation_of(1) == "1a"
    for change in (MembershipChange(kind=NAME, node=2, incarnation="2b"), MembershipChange(kind=NAME, node=1)):
        with pytest.raises(ChangeRefused):
            members.check(change)
    with pytest.raises(ChangeRefused, match="characters"):
        members.check(MembershipChange(kind=NAME, node=1, incarnation="x" * 65))


def test_a_heartbeat_says_what_was_acknowledged_and_is_not_there(net):
    net.elect(1)
    follower = net[2]
    said = {"sender": 1, "to": 2, "term": follower.term, "incarnation": "1a", "commit": 99}
    with pytest.raises(WentBack, match="had entry 99"):
        follower.raft.step(LeaderHeartbeat(**said, addressee="2a"))
    follower.raft.node.legacy = True
    with pytest.raises(BadMessage):
        follower.raft.step(LeaderHeartbeat(**said))


def test_others_remember_how_far_a_node_was(net):
    net.elect(1)
    entry = net.propose(b"x")
    net.tick(2)
    report = net[1].raft.last_report(2)
    assert (report.incarnation, report.term, report.index) == ("2a", net[1].term, entry.index)
    assert net[1].raft.last_report(9) is None


def test_one_in_doubt_neither_votes_nor_stands(net):
    net.isolate(3)
    net[2].raft.prove(proven=False)
    net.tick(100)
    assert all(node.status.leader is None for node in net.nodes.values())
    net[2].raft.prove(proven=True, term=7, floor=(9, 9))  # 1 has not as much as somebody had
    net.tick(100)
    assert all(node.status.leader is None for node in net.nodes.values())
    assert net[2].term >= 7
    net[2].raft.prove(proven=True, term=7, floor=(1, 1))
    net.tick(100)
    assert any(node.role is Role.LEADER for node in net.nodes.values())


def test_a_cluster_is_formed_by_who_knows_of_none():
    net = Net()
    for id in net.nodes:
        forget(net, id, f"{id}a")
    members = Membership.of(*(RaftMember(id=id, incarnation=f"{id}a") for id in net.nodes))
    net.tick(50)
    assert all(node.status.fresh for node in net.nodes.values())
    net[1].raft.form(members)
    net.tick(50)
    net.propose(b"x")
    net.tick(3)
    assert [node.data for node in net.nodes.values()] == [[b"x"]] * 3
    with pytest.raises(ValueError, match="knows of a cluster"):
        net[2].raft.form(members)


def test_a_copy_of_a_file_is_told_from_it_though_it_has_its_place(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x")
    mark = mark_of(file)
    file.write_bytes(b"y")
    assert mark_of(file) == mark
    file.unlink()
    file.write_bytes(b"y")  # it often gets the same inode
    assert mark_of(file) != mark
