"""Compaction and snapshots: paper, 7; thesis, 5."""

import pytest

from controller.raft import ChangeKind, Entry, EntryKind, Membership, MembershipChange, RaftMember, Role, Snapshot
from controller.raft.messages import Append, AppendReply, InstallSnapshot, LeaderHeartbeat
from tests.support.controller.raft_rig import ELECTION_TICKS, Net, storage_with


def compacted(net, id=1, keep=0):
    """Replaces all applied entries of a node by a snapshot."""
    node = net[id]
    node.raft.compact(node.status.applied, b"|".join(node.data), keep=keep)
    net.settle()


def test_an_older_snapshot_is_left_and_one_of_what_is_not_applied_refused():
    net = Net(1)
    net.elect(1)
    net.propose(b"a")
    compacted(net)
    net[1].raft.compact(2, b"older")
    assert net[1].raft.ready() is None
    for index, keep in ((4, 0), (3, -1)):
        with pytest.raises(ValueError, match="not applied"):
            net[1].raft.compact(index, b"", keep=keep)


def test_a_node_that_is_not_there_is_sent_no_snapshot():
    net = Net(3, cache_bytes_max=0)
    net.elect(1)
    net.isolate(3)
    net.tick(2 * ELECTION_TICKS, 1, 2)
    net.propose(b"a")
    compacted(net)
    net[1].raft.unreachable(3)
    net.seen.clear()
    net.tick(5, 1, 2)
    assert not [message for message in net.seen if isinstance(message, InstallSnapshot)]


def test_a_follower_that_has_its_snapshot_when_the_log_has_moved_on_gets_the_next():
    """Found by the simulation: it was left waiting, with more acknowledged than was to be sent next."""
    net = Net(3, cache_bytes_max=0)
    net.elect(1)
    net.isolate(3)
    net.propose(b"a")
    compacted(net)
    net.heal()
    net.lost = lambda message: isinstance(message, AppendReply) and message.sender == 3 and not message.refused
    net.tick(4)
    assert net[3].installed == 1
    net.propose(b"b")
    net.propose(b"c")
    compacted(net)
    net.lost = lambda message: False
    term, index = net[1].term, net[3].status.last_index
    net[1].raft.step(AppendReply(sender=3, to=1, term=term, index=index))
    net.settle()
    assert net[3].status.last_index == net[1].status.last_index
    assert net[3].data[-1] in {b"a|b|c", b"c"}


def snapshot_message(index, term, *, in_term=9, members=(1, 2, 3)):
    membership = Membership.of(*(RaftMember(id=id) for id in members))
    return InstallSnapshot(
        sender=2, to=1, term=in_term, snapshot=Snapshot(index=index, term=term, membership=membership, data=b"S")
    )


def test_a_snapshot_replaces_a_log_that_differs():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(2, 2, 2, 2))
    net[1].raft.step(snapshot_message(4, 3))
    net[1].raft.step(Append(sender=2, to=1, term=9, prev_index=4, prev_term=3, commit=5, entries=(entry(3, 5),)))
    ready = net[1].raft.ready()
    assert ready.snapshot.index == 4
    assert [one.index for one in ready.entries] == [one.index for one in ready.committed] == [5]
    net[1].storage.save(ready)
    net[1].raft.advance(ready)
    assert [message.index for message in ready.messages] == [4, 5]
    assert (net[1].status.first_index, net[1].status.last_index, net[1].status.applied) == (5, 5, 5)


def test_a_snapshot_of_what_the_log_has_commits_and_acknowledges_no_more():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(2, 2, 2, 2))
    net[1].raft.step(snapshot_message(3, 2))
    assert [message.index for message in net[1].work()] == [3]
    assert net[1].installed == 0
    assert (net[1].status.commit, net[1].status.last_index) == (3, 5)


def test_an_old_snapshot_is_answered_with_what_is_committed():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(2, 2, 2, commit=4))
    net[1].raft.step(snapshot_message(3, 2))
    net[1].raft.step(snapshot_message(1, 1))
    assert [message.index for message in net[1].work()] == [4, 4]


def test_nobody_stands_before_its_snapshot_is_on_disk():
    net = Net(3)
    net[1].raft.step(snapshot_message(9, 5))
    assert not net[1].raft.may_stand()
    net[1].work()
    assert net[1].raft.may_stand()


def test_a_snapshot_that_comes_while_entries_are_saved_replaces_them():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(2, 2))
    net[1].raft.step(Append(sender=2, to=1, term=9, prev_index=3, prev_term=2, commit=1, entries=(entry(9, 4),)))
    ready = net[1].raft.ready()
    net[1].raft.step(snapshot_message(20, 8))
    net[1].storage.save(ready)
    net[1].raft.advance(ready)
    net[1].work()
    assert (net[1].status.first_index, net[1].status.last_index, net[1].data) == (21, 20, [b"S"])


def test_a_compaction_that_a_snapshot_overtakes_is_dropped():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(2, 2, commit=3))
    net[1].work()
    net[1].raft.compact(3, b"mine")
    net[1].raft.step(snapshot_message(20, 8))
    ready = net[1].raft.ready()
    assert ready.compaction is None
    assert ready.snapshot.data == b"S"


def test_a_snapshot_has_the_membership_of_its_index():
    net = Net(3)
    net.elect(1)
    net.propose(b"a")
    index = net[1].status.applied
    net.change(MembershipChange(kind=ChangeKind.ADD_LEARNER, node=4))
    net[1].raft.compact(index, b"a")
    net.settle()
    assert net[1].storage.snapshot().membership.ids == (1, 2, 3)
    assert net[1].status.membership.ids == (1, 2, 3, 4)
    net.restart(1)
    assert net[1].status.membership.ids == (1, 2, 3, 4)


def test_a_snapshot_makes_a_member_of_a_node_that_knew_nobody():
    net = Net(3, cache_bytes_max=0)
    net.elect(1)
    net.isolate(3)
    net.propose(b"a")
    compacted(net, 2)
    net.nodes[3] = net.make(3, type(net[1].storage)())
    net.heal()
    net.elect(2)
    net.tick(4)
    assert net[3].status.membership.ids == (1, 2, 3)
    net.isolate(1)
    net.tick(5 * ELECTION_TICKS)
    assert net.leader().role is Role.LEADER


@pytest.mark.parametrize(
    "message",
    [snapshot_message(0, 0), snapshot_message(5, 10), snapshot_message(5, 0), snapshot_message(5, 5, members=())],
)
def test_snapshots_that_contradict_themselves_are_refused(message):
    net = Net(3)
    with pytest.raises(Exception, match="snapshot"):
        net[1].raft.step(message)
    assert net[1].raft.node.log.pending is None


def test_heartbeats_go_on_while_a_snapshot_is_installed():
    net = Net(3)
    net[1].raft.step(snapshot_message(9, 5))
    net[1].raft.step(LeaderHeartbeat(sender=2, to=1, term=9, commit=9))
    assert net[1].status.commit == 9


def entry(term, index):
    return Entry(term, index, EntryKind.COMMAND, b"%d.%d" % (term, index))
