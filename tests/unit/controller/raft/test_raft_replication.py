"""Log replication: paper, 5.3 and 5.4; thesis, 10.2."""

import pytest

from controller.raft import BadMessage, Entry, EntryKind, ProposalTooLarge, Role
from controller.raft.messages import Append, AppendReply, HeartbeatReply, LeaderHeartbeat
from controller.raft.progress import ProgressState
from tests.support.controller.raft_rig import ELECTION_TICKS, Net, storage_with


def logs(node):
    storage = node.storage
    return [storage.term(index) for index in range(2, storage.last_index() + 1)]


def append(term, prev_index, prev_term, *terms, commit=0):
    entries = tuple(Entry(of, index, EntryKind.COMMAND) for index, of in enumerate(terms, prev_index + 1))
    return Append(sender=2, to=1, term=term, prev_index=prev_index, prev_term=prev_term, commit=commit, entries=entries)


def test_a_proposal_is_applied_everywhere_and_its_id_says_which_entry_it_is():
    net = Net(3)
    net.elect(1)
    entry = net.propose(b"a")
    assert (entry.term, entry.index) == (net[1].term, 3)
    assert [node.data for node in net.nodes.values()] == [[b"a"]] * 3


def test_what_was_proposed_together_goes_out_together():
    net = Net(3)
    net.elect(1)
    net.seen.clear()
    for n in range(100):
        net[1].raft.propose(b"%d" % n)
    net.settle()
    assert len([message for message in net.seen if isinstance(message, Append) and message.entries]) == 2
    assert len(net[3].data) == 100


def test_a_minority_commits_nothing():
    net = Net(5)
    net.elect(1)
    for id in (3, 4, 5):
        net.isolate(id)
    net.propose(b"a")
    assert net[1].data == []
    net.cut = {pair for pair in net.cut if not {4, 5} & set(pair) and 3 not in pair}
    net.isolate(4)
    net.isolate(5)
    net.tick(3)
    assert net[1].data == net[3].data == [b"a"]


def test_a_leader_sends_before_its_disk_is_done_and_counts_itself_after():
    net = Net(3)
    net.elect(1)
    net[1].raft.propose(b"a")
    ready = net[1].raft.ready()
    assert [type(message) for message in ready.early] == [Append, Append]
    for message in ready.early:
        net[message.to].raft.step(message)
    replies = [message for id in (2, 3) for message in net[id].work()]
    net[1].raft.step(replies[0])
    assert net[1].status.commit == 2  # one disk of three
    net[1].raft.step(replies[1])
    assert net[1].status.commit == 3  # a majority, without the leader's own
    net[1].storage.save(ready)
    net[1].raft.advance(ready)


def test_a_follower_acknowledges_only_what_is_on_its_disk():
    net = Net(3)
    net.elect(1)
    net[1].raft.propose(b"a")
    (message, _) = net[1].raft.ready().early
    net[2].raft.step(message)
    ready = net[2].raft.ready()
    assert ready.entries
    assert ready.must_sync
    assert not ready.early
    assert ready.messages == (AppendReply(sender=2, to=1, term=net[1].term, index=3),)


def test_a_commit_index_alone_needs_no_sync():
    net = Net(1)
    net.elect(1)
    net[1].raft.propose(b"a")
    first = net[1].raft.ready()
    net[1].storage.save(first)
    net[1].raft.advance(first)
    second = net[1].raft.ready()
    assert first.must_sync
    assert not second.must_sync
    assert second.hard_state.commit == 3
    assert [entry.data for entry in second.committed] == [b"a"]


def test_there_is_one_ready_at_a_time():
    net = Net(1)
    net.elect(1)
    net[1].raft.propose(b"a")
    net[1].raft.ready()
    with pytest.raises(AssertionError):
        net[1].raft.ready()


def test_the_entry_before_has_to_agree():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(1, 2))
    net[1].raft.step(append(4, 3, 3, 4))
    (reply,) = net[1].work()
    assert reply.refused
    assert (reply.index, reply.hint_index, reply.hint_term) == (3, 3, 2)
    net[1].raft.step(append(4, 9, 2, 4))
    (reply,) = net[1].work()
    assert (reply.refused, reply.index, reply.hint_index) == (True, 9, 3)
    assert logs(net[1]) == [1, 2]


def test_an_entry_that_differs_goes_with_all_after_it():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(1, 2, 2, 2))
    net[1].raft.step(append(4, 2, 1, 3, 3))
    assert [reply.index for reply in net[1].work()] == [4]
    assert logs(net[1]) == [1, 3, 3]


def test_late_messages_take_nothing_away():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(1, 2, 2, 2))
    net[1].raft.step(append(4, 2, 1, 2))
    assert logs(net[1]) == [1, 2, 2, 2]
    assert [reply.index for reply in net[1].work()] == [3]


def test_a_follower_commits_no_further_than_it_agrees():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(1, 2, 2, 2))
    net[1].raft.step(append(4, 2, 1, 2, commit=5))
    assert net[1].status.commit == 3


def test_what_is_committed_is_never_replaced_and_no_more_than_it_is_acknowledged_for_late_entries():
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(1, 2, 2, 2, commit=4))
    net[1].raft.step(append(4, 3, 2, 4, 4))  # before the commit index: answered with it
    assert [reply.index for reply in net[1].work()] == [4]
    with pytest.raises(BadMessage):
        net[1].raft.step(LeaderHeartbeat(sender=2, to=1, term=4, commit=99))
    assert logs(net[1]) == [1, 2, 2, 2]


def test_figure_8_an_entry_of_an_earlier_term_is_not_committed_by_counting():
    net = Net(5)
    net.nodes[1] = net.make(1, storage_with(2, voters=5, term=3))  # (c): S1 was leader of term 2, S5 of term 3
    net.nodes[2] = net.make(2, storage_with(2, voters=5, term=2))
    net.nodes[5] = net.make(5, storage_with(3, voters=5, term=3))
    net.isolate(5)
    net.isolate(4)
    net.lost = lambda message: isinstance(message, Append) and any(entry.term == 4 for entry in message.entries)
    s1 = net.elect(1)
    assert s1.term == 4
    entries = (Entry(2, 2, EntryKind.COMMAND, b"2.2"),)  # the old entry alone gets to S3
    net[3].raft.step(Append(sender=1, to=3, term=4, prev_index=1, prev_term=1, commit=1, entries=entries))
    net.settle()
    assert logs(net[2]) == logs(net[3]) == [2]
    assert s1.status.progress[2].match >= 0
    s1.raft.step(AppendReply(sender=2, to=1, term=4, index=2))
    s1.raft.step(AppendReply(sender=3, to=1, term=4, index=2))
    assert s1.status.commit == 1  # a majority has it, and it is not committed
    # (d): S5 may still be elected and replace it
    net.heal()
    net.isolate(1)
    for node in net.nodes.values():
        node.raft.elapsed = ELECTION_TICKS
    net.elect(5)
    assert logs(net[2]) == logs(net[3]) == [3, 5]
    assert all(b"2.2" not in node.data for node in net.nodes.values())


def test_figure_8_with_an_entry_of_its_own_term_all_before_it_is_committed():
    net = Net(5)
    net.nodes[1] = net.make(1, storage_with(2, voters=5, term=3))
    net.nodes[5] = net.make(5, storage_with(3, voters=5, term=3))
    net.isolate(5)
    net.elect(1)
    assert net[1].status.commit == 3  # (e)
    net.heal()
    net.isolate(1)
    for node in net.nodes.values():
        node.raft.elapsed = ELECTION_TICKS
    net[5].raft.become_pre_candidate()
    net.settle()
    assert net[5].role is not Role.LEADER
    net.heal()
    net.tick(5 * ELECTION_TICKS)
    assert logs(net[5])[0] == 2


# ---- flow control


def test_the_window_is_in_bytes_too():
    net = Net(3, inflight_bytes_max=100, append_bytes_max=1)
    net.elect(1)
    net.lost = lambda message: message.sender == 2 and isinstance(message, AppendReply)
    for _ in range(20):
        net.propose(b"x" * 30)
    assert net[1].status.progress[2].inflight == 3


def test_a_message_has_no_more_than_its_bytes_and_at_least_one_entry():
    net = Net(3, append_bytes_max=100)
    net.elect(1)
    net.seen.clear()
    for size in (10, 10, 10, 500, 10):
        net[1].raft.propose(b"x" * size)
    net.settle()
    sizes = [[len(entry.data) for entry in message.entries] for message in net.seen if isinstance(message, Append)]
    assert [size for size in sizes if size][:3] == [[10, 10, 10], [500], [10]]


def test_entries_lost_on_the_way_are_found_out_by_heartbeats():
    net = Net(3)
    net.elect(1)
    net.lost = lambda message: message.to == 2 and isinstance(message, Append)
    net.propose(b"a")
    net.lost = lambda message: False
    net.tick(4)
    assert net[2].data == [b"a"]
    assert net[1].status.progress[2].state is ProgressState.REPLICATE


def test_a_probe_is_sent_once_for_each_heartbeat():
    net = Net(3)
    net.elect(1)
    net[1].raft.unreachable(2)
    net.lost = lambda message: message.to == 2 and isinstance(message, Append)
    net.seen.clear()
    for _ in range(10):
        net.propose(b"x")
    assert len([message for message in net.seen if message.to == 2 and isinstance(message, Append)]) == 1
    net.tick(3, 1)
    assert len([message for message in net.seen if message.to == 2 and isinstance(message, Append)]) == 4


def test_one_that_lacks_what_it_acknowledged_is_asked_once_a_heartbeat():
    net = Net(3)
    net.elect(1)
    for _ in range(5):
        net.propose(b"x")
    net.nodes[2] = net.make(2, storage_with())  # an empty disk under an old name
    net.seen.clear()
    net.lost = lambda message: message.to == 2 and isinstance(message, LeaderHeartbeat)  # which it could only refuse
    net[1].raft.unreachable(2)
    net.tick(5, 1)
    assert len([message for message in net.seen if message.to == 2 and isinstance(message, Append)]) < 10


def test_a_single_large_proposal_is_taken_and_one_beyond_its_limit_is_not():
    net = Net(1, uncommitted_bytes_max=10, proposal_bytes_max=100)
    net.elect(1)
    net.propose(b"x" * 100)
    assert len(net[1].data) == 1
    with pytest.raises(ProposalTooLarge):
        net.propose(b"x" * 101)


def test_a_ready_has_no_more_to_apply_than_its_limit():
    net = Net(1, apply_bytes_max=100, cache_bytes_max=0)
    net.elect(1)
    for _ in range(10):
        net[1].raft.propose(b"x" * 34)
    sizes = []
    while (ready := net[1].raft.ready()) is not None:
        net[1].storage.save(ready)
        sizes.append(len(ready.committed))
        net[1].raft.advance(ready)
    assert [size for size in sizes if size] == [2] * 5


def test_memory_holds_no_more_than_the_cache_of_what_is_applied():
    net = Net(3, cache_bytes_max=1000)
    net.elect(1)
    for _ in range(100):
        net.propose(b"x" * 84)
    assert all(len(node.raft.node.log.tail) <= 20 for node in net.nodes.values())
    net.join(4)
    assert net[1].raft.node.log.term(2) == 2  # read again


# ---- restarts


def test_a_restarted_cluster_goes_on_with_what_was_committed():
    net = Net(3)
    net.elect(1)
    for n in range(5):
        net.propose(b"%d" % n)
    for id in (1, 2, 3):
        net.restart(id)
    assert net[1].term == 2
    net.tick(3 * ELECTION_TICKS)
    assert [node.data for node in net.nodes.values()] == [[b"0", b"1", b"2", b"3", b"4"]] * 3


def test_what_is_stepped_while_a_ready_is_being_saved_may_replace_it():
    net = Net(3)
    net[1].raft.step(append(2, 1, 1, 2, 2))
    ready = net[1].raft.ready()
    net[1].raft.step(
        Append(sender=3, to=1, term=3, prev_index=1, prev_term=1, commit=1, entries=(Entry(3, 2, EntryKind.EMPTY),))
    )
    net[1].storage.save(ready)
    net[1].raft.advance(ready)
    assert [reply.index for reply in net[1].work()] == [2]
    assert logs(net[1]) == [3]


# ---- messages nobody should send


@pytest.mark.parametrize(
    "message",
    [
        append(0, 1, 1),
        append(3, 1, 4),
        append(3, 0, 1),
        append(3, 1, 0),
        append(3, 1, 1, 2, 1),
        append(3, 1, 2, 1),
        append(3, 1, 1, 4),
        Append(sender=2, to=1, term=3, prev_index=1, prev_term=1, commit=1, entries=(Entry(3, 7, EntryKind.EMPTY),)),
        Append(
            sender=2, to=1, term=3, prev_index=1, prev_term=1, commit=1, entries=(Entry(3, 2, EntryKind.CHANGE, b"?"),)
        ),
        Append(sender=2, to=3, term=3, prev_index=1, prev_term=1, commit=1),
        Append(sender=1, to=1, term=3, prev_index=1, prev_term=1, commit=1),
    ],
)
def test_what_contradicts_itself_is_refused_and_changes_nothing(message):
    net = Net(3)
    before = net[1].status
    with pytest.raises(BadMessage):
        net[1].raft.step(message)
    assert net[1].status == before


def test_an_acknowledgement_of_what_does_not_exist_is_refused():
    net = Net(3)
    net.elect(1)
    with pytest.raises(BadMessage):
        net[1].raft.step(AppendReply(sender=2, to=1, term=net[1].term, index=99))


def test_strangers_are_not_heard():
    net = Net(3)
    net.elect(1)
    before = net[1].status
    for message in (
        AppendReply(sender=9, to=1, term=net[1].term, index=2),
        HeartbeatReply(sender=9, to=1, term=net[1].term),
        AppendReply(sender=2, to=1, term=1, index=2),
    ):
        net[1].raft.step(message)
    assert net[1].status == before
    net[1].raft.unreachable(9)
    net[2].raft.unreachable(1)
