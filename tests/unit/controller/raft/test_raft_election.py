"""Leader election: paper, 5.2 and 5.4; thesis, 3.10, 4.2.3, 6.2 and 9.6."""

import pytest

from controller.raft import BadMessage, Role
from controller.raft.core import LAST_TICKS
from controller.raft.messages import Append, LeaderHeartbeat, TimeoutNow, Vote, VoteReply
from tests.support.controller.raft_rig import ELECTION_TICKS, Net, storage_with


def vote(sender, to, term, last_index=1, last_term=1, **more):
    return Vote(sender=sender, to=to, term=term, last_index=last_index, last_term=last_term, **more)


def answers(net, id, message):
    """Returns a node's answer to a message."""
    net[id].raft.step(message)
    return net[id].work()


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
def test_somebody_is_elected_and_everybody_knows(voters):
    net = Net(voters)
    net.tick(3 * ELECTION_TICKS)
    leader = net.leader()
    assert {node.status.leader for node in net.nodes.values()} == {leader.id}
    assert sum(node.role is Role.LEADER for node in net.nodes.values()) == 1
    assert leader.status.commit == leader.status.last_index == 2  # an empty entry of its term


def test_timeouts_differ_and_lie_between_one_and_two_of_the_setting():
    net = Net(1)
    seen = set()
    for _ in range(200):
        net[1].raft.become_follower(0, 0)
        seen.add(net[1].raft.election_timeout)
    assert seen == set(range(ELECTION_TICKS, 2 * ELECTION_TICKS))


def test_a_vote_is_given_once_in_a_term_and_again_to_the_same():
    net = Net(3)
    assert answers(net, 1, vote(2, 1, 5)) == [VoteReply(sender=1, to=2, term=5, granted=True)]
    assert answers(net, 1, vote(3, 1, 5)) == [VoteReply(sender=1, to=3, term=5, granted=False)]
    assert answers(net, 1, vote(2, 1, 5)) == [VoteReply(sender=1, to=2, term=5, granted=True)]
    assert answers(net, 1, vote(3, 1, 6)) == [VoteReply(sender=1, to=3, term=6, granted=True)]


def test_a_vote_is_on_disk_before_it_is_said():
    net = Net(3)
    net[1].raft.step(vote(2, 1, 5))
    ready = net[1].raft.ready()
    assert ready.must_sync
    assert (ready.hard_state.term, ready.hard_state.vote) == (5, 2)
    assert not ready.early
    assert [type(message) for message in ready.messages] == [VoteReply]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"), [(4, 3, True), (5, 3, True), (2, 4, True), (3, 3, False), (9, 2, False)]
)
def test_only_a_log_at_least_as_up_to_date_is_voted_for(last_index, last_term, granted):
    net = Net(3)
    net.nodes[1] = net.make(1, storage_with(2, 2, 3))  # entries 2, 3 and 4
    (reply,) = answers(net, 1, vote(2, 1, 9, last_index, last_term))
    assert reply.granted is granted


def test_a_candidate_counts_itself_only_when_its_vote_is_on_disk():
    net = Net(1)
    net[1].raft.election_timeout = 1
    net[1].raft.tick()
    ready = net[1].raft.ready()
    assert net[1].role is Role.CANDIDATE
    assert ready.hard_state.vote == 1
    net[1].storage.save(ready)
    net[1].raft.advance(ready)
    assert net[1].role is Role.LEADER


def test_votes_of_the_same_node_count_once_and_those_of_strangers_never():
    net = Net(5)
    net[1].raft.become_candidate()
    net[1].work()
    for sender in (2, 2, 77, 78):
        net[1].raft.step(VoteReply(sender=sender, to=1, term=net[1].term, granted=True))
    assert net[1].role is Role.CANDIDATE
    net[1].raft.step(VoteReply(sender=3, to=1, term=net[1].term, granted=True))
    assert net[1].role is Role.LEADER


def test_a_candidate_follows_whoever_leads_its_term():
    net = Net(3)
    net[1].raft.become_candidate()
    net[1].work()
    net[1].raft.step(LeaderHeartbeat(sender=2, to=1, term=net[1].term, commit=0))
    assert (net[1].role, net[1].status.leader) == (Role.FOLLOWER, 2)


def test_two_leaders_of_a_term_are_no_correct_peers():
    net = Net(3)
    net.elect(1)
    for id in (1, 3):
        with pytest.raises(BadMessage):
            net[id].raft.step(Append(sender=2, to=id, term=net[id].term, prev_index=1, prev_term=1, commit=1))
    assert net[1].role is Role.LEADER


# ---- pre-vote


def test_a_pre_vote_changes_nothing_on_either_side():
    net = Net(3)
    net[1].raft.become_pre_candidate()
    assert (net[1].term, net[1].status.vote) == (1, None)
    before = net[2].raft.node.hard_state()
    (reply,) = answers(net, 2, vote(1, 2, 2, pre=True))
    assert reply == VoteReply(sender=2, to=1, term=2, granted=True, pre=True)
    assert net[2].raft.node.hard_state() == before
    (reply,) = answers(net, 2, vote(3, 2, 2, pre=True))
    assert reply.granted  # as many as ask


def test_answers_to_an_older_pre_vote_do_not_count_for_the_real_one():
    net = Net(3)
    net[1].raft.become_candidate()
    net[1].work()
    net[1].raft.step(VoteReply(sender=2, to=1, term=net[1].term, granted=True, pre=True))
    assert net[1].role is Role.CANDIDATE


def test_a_pre_candidate_of_an_older_term_is_told_of_ours():
    net = Net(3)
    net.elect(1)
    (reply,) = answers(net, 2, vote(3, 2, 1, last_index=0, last_term=0, pre=True))
    assert reply == VoteReply(sender=2, to=3, term=net[2].term, granted=False, pre=True)


# ---- check-quorum and the lease


def test_a_follower_that_answers_is_active_at_every_moment():
    """After each check-quorum it was not until its next answer: another controller could take its place then."""
    net = Net(3)
    leader = net.elect(1)
    net.tick(1)
    seen = []
    for _ in range(3 * ELECTION_TICKS):
        leader.raft.tick()
        seen.append([leader.status.progress[id].active for id in (2, 3)])
        net.settle()
    assert seen == [[True, True]] * len(seen)
    net.isolate(3)
    net.tick(2 * ELECTION_TICKS, 1, 2)
    assert [leader.status.progress[id].active for id in (2, 3)] == [True, False]


def test_whoever_hears_a_leader_ignores_candidates():
    net = Net(3)
    net.elect(1)
    for pre in (False, True):
        assert answers(net, 2, vote(3, 2, 9, 9, 8, pre=pre)) == []
        assert answers(net, 1, vote(3, 1, 9, 9, 8, pre=pre)) == []
    assert net[1].role is Role.LEADER
    assert net[2].term == net[1].term


def test_of_two_nodes_one_alone_does_nothing():
    net = Net(2)
    net.elect(1)
    net.isolate(2)
    net.tick(5 * ELECTION_TICKS)
    assert all(node.role is not Role.LEADER for node in net.nodes.values())
    net.heal()
    net.tick(5 * ELECTION_TICKS)
    assert net.leader()


# ---- handing over


def test_only_the_leader_can_ask_to_stand():
    net = Net(3)
    net.elect(1)
    net[2].raft.step(TimeoutNow(sender=3, to=2, term=net[2].term))
    assert net[2].role is Role.FOLLOWER
    net[2].raft.step(TimeoutNow(sender=1, to=2, term=net[2].term))
    assert net[2].role is Role.CANDIDATE


def test_a_learner_never_stands():
    net = Net(1, learners=1)
    net.tick(5 * ELECTION_TICKS)
    assert net[1].role is Role.LEADER
    net.isolate(2)
    net.tick(5 * ELECTION_TICKS)
    assert net[2].role is Role.FOLLOWER
    assert net[2].status.leader is None
    net[2].raft.step(TimeoutNow(sender=1, to=2, term=net[2].term))
    assert net[2].role is Role.FOLLOWER


def test_a_node_that_knows_no_members_waits():
    net = Net(1)
    net.join(2)
    net.tick(5 * ELECTION_TICKS, 2)
    assert (net[2].role, net[2].term) == (Role.FOLLOWER, 0)
    with pytest.raises(ValueError, match="not the id"):
        net.make(0, net[1].storage)


def test_ticks_at_rest_are_taken_at_once_with_the_same_result():
    one, other = Net(3), Net(3)
    for net in (one, other):
        net.tick(3 * ELECTION_TICKS)
    for _ in range(200):
        for id in one.nodes:
            rest = one[id].raft.rest_ticks
            assert rest == other[id].raft.rest_ticks
            if rest:
                one[id].raft.tick(rest)
            for _ in range(rest):
                other[id].raft.tick()
                assert other[id].raft.ready() is None
        one.tick(1)
        other.tick(1)
        assert [node.status for node in one.nodes.values()] == [node.status for node in other.nodes.values()]


def test_the_last_ticks_before_an_election_are_taken_one_by_one():
    net = Net(3)
    raft = net[1].raft
    raft.become_follower(1, 2)
    raft.tick(raft.rest_ticks)
    assert raft.election_timeout - raft.elapsed == LAST_TICKS
    assert raft.rest_ticks == 0
    for _ in range(LAST_TICKS - 1):
        raft.tick()
        assert raft.role is Role.FOLLOWER
    raft.tick()
    assert raft.role is Role.PRE_CANDIDATE
    with pytest.raises(AssertionError):
        raft.tick(2 * ELECTION_TICKS)
