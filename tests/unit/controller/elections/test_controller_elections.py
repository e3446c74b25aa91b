"""The policy of elections: who is elected when, and who is not."""

import logging

import msgspec
import pytest

from controller.api.client import (
    GroupChanges,
    NotElectable,
    Replica,
    ReplicaElsewhere,
    StaleEpoch,
    UnknownGroup,
    UnknownReplica,
)
from controller.api.commands import ConfigureGroup, RegisterReplica
from controller.complaints.messages import Complaint, Report
from controller.elections.elections import (
    AGAIN_MS,
    TAKE_OVER_MS,
    UNCLEAN_AFTER_MS,
    VACATE_AFTER_MS,
    Elections,
)
from controller.elections.majorities import FIRST_WAIT_MS
from controller.elections.registry import DEAD_AFTER_MS, OVERDUE_MS, SUSPECT_MS, TICK_MS, Registry
from tests.support.controller.elections_rig import ElectionsRig


def test_a_dead_master_is_succeeded_within_the_time_to_notice_and_a_tick():
    rig = ElectionsRig(in_sync=3)
    rig.down(1)
    died = rig.now
    rig.run(DEAD_AFTER_MS - TICK_MS)
    assert rig.group.master == 1
    rig.run(2 * TICK_MS)
    assert (rig.group.master, rig.group.master_epoch, rig.group.sync_set) == (2, 2, (2,))
    assert rig.group.elected_ms - 1_000_000 <= died + DEAD_AFTER_MS + TICK_MS
    rig.run(5000)
    assert len(rig.commands) == 1


def test_a_killed_master_whose_connection_ends_is_succeeded_sooner():
    rig = ElectionsRig(in_sync=3)
    rig.down(1)
    rig.registry.disconnected(0, 1, rig.now)
    rig.run(700)
    assert rig.group.master == 2


@pytest.mark.parametrize(
    ("ends", "elected"),
    [
        ({2: {"log_epoch": 1, "log_end": 50}, 3: {"log_epoch": 1, "log_end": 60}}, 3),
        ({2: {"log_epoch": 2, "log_end": 50}, 3: {"log_epoch": 1, "log_end": 60}}, 2),
        ({2: {"log_epoch": 1, "log_end": 50}, 3: {"log_epoch": 1, "log_end": 50}}, 2),
    ],
)
def test_the_successor_is_the_best_by_epoch_and_log_end(ends, elected):
    rig = ElectionsRig(in_sync=3)
    for id_, said in ends.items():
        rig.up(id_, **said)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == elected


def test_among_equals_the_priority_decides():
    rig = ElectionsRig(in_sync=3)
    rig.register(3, priority=1)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 3


def test_dead_replicas_are_not_electable_and_do_not_enter_the_set():
    """Fault 4: with liveness negated twice, dead replicas stayed in the set."""
    rig = ElectionsRig(in_sync=2)
    rig.down(3)
    rig.run(DEAD_AFTER_MS)
    with pytest.raises(NotElectable, match="sends no heartbeats"):
        rig.alter((1, 2, 3))
    assert rig.group.sync_set == (1, 2)
    rig.up(3)
    rig.alter((1, 2, 3))
    rig.up(3, log_end=99)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 2  # though 3 had more
    assert [command.candidate for command in rig.commands] == [2]


def test_a_dead_member_does_not_keep_its_set_from_shrinking():
    """Fault 4, the other way round: who is in the set already is no matter of being alive."""
    rig = ElectionsRig(in_sync=3)
    rig.down(2, 3)
    rig.run(2 * DEAD_AFTER_MS)
    rig.alter((1, 2))
    rig.alter((1,))
    assert rig.group.sync_set == (1,)


def test_an_election_counts_when_it_is_applied_and_not_when_it_is_proposed():
    """Fault 3: an election was reported as done before the quorum had it."""
    rig = ElectionsRig(in_sync=3)
    rig.down(1)
    rig.run(DEAD_AFTER_MS - TICK_MS)
    rig.now += TICK_MS
    before = rig.group
    (proposed,) = rig.elections.tick(rig.now, 0)
    assert rig.group == before
    assert rig.registry.route(0, rig.group, rig.now).master == 1
    assert rig.elections.tick(rig.now + TICK_MS, 0) == []  # it may be on its way
    (again,) = rig.elections.tick(rig.now + AGAIN_MS, 0)  # or lost
    assert again == proposed
    rig.state.apply(proposed)
    elected = rig.group
    assert rig.state.apply(again) == elected
    assert rig.registry.route(0, rig.group, rig.now).master == 2


def test_two_who_both_think_that_they_lead_elect_one_master():
    rig = ElectionsRig(in_sync=3)
    other = Elections(rig.state.groups, Registry(rig.now))
    rig.down(1)
    rig.run(DEAD_AFTER_MS - TICK_MS)
    other._registry.heartbeat(rig.registry.last(0, 3), rig.now)
    rig.now += TICK_MS
    late = other.decide(0, 3, rig.now, 0)
    rig.tick()
    assert rig.group.master == 2
    with pytest.raises(StaleEpoch):
        rig.state.apply(late)
    assert rig.group.master == 2


def test_a_controller_that_has_just_begun_to_lead_does_not_declare_everybody_dead():
    rig = ElectionsRig(in_sync=3)
    fresh = Registry(rig.now)
    rig.registry, rig.elections = fresh, Elections(rig.state.groups, fresh)
    rig.elections.began(rig.now)
    rig.down(1, 2, 3)
    rig.run(DEAD_AFTER_MS - TICK_MS)
    assert rig.commands == []
    rig.up(1, 2, 3)
    rig.run(3 * DEAD_AFTER_MS)
    assert rig.commands == []


def test_a_controller_that_comes_to_lead_goes_by_what_it_heard_as_a_follower():
    rig = ElectionsRig(in_sync=3)
    rig.down(1)
    for _ in range(0, DEAD_AFTER_MS, TICK_MS):
        rig.now += TICK_MS
        rig.up(2, 3)
        rig.registry.tick(rig.now)
    rig.elections.began(rig.now)
    rig.tick()
    assert rig.group.master == 2


def test_a_controller_that_slept_waits_before_it_judges():
    rig = ElectionsRig(in_sync=3)
    rig.now += 60_000
    rig.tick()
    assert rig.commands == []
    rig.run(2 * DEAD_AFTER_MS)
    assert rig.commands == []


def test_nobody_is_elected_for_what_it_said_before_the_controller_slept():
    """Its disk may have lost since what it had then."""
    rig = ElectionsRig(in_sync=3)
    rig.up(2, log_end=10)
    rig.down(1, 2, 3)
    rig.now += 60_000
    rig.tick()
    rig.deaf.add(1)
    rig.up(1, incarnation=9)  # started again: it serves no more
    rig.tick()
    assert [command.candidate for command in rig.commands] == [1]


def test_a_controller_that_hears_nobody_leaves_the_master_in_place():
    rig = ElectionsRig(in_sync=3)
    rig.down(1, 2, 3)
    rig.run(DEAD_AFTER_MS + 2 * VACATE_AFTER_MS)
    assert rig.commands == []
    assert rig.group.master == 1


def test_without_anybody_electable_the_master_is_none_after_a_while_and_the_set_is_kept():
    rig = ElectionsRig(in_sync=2)
    rig.down(1, 2)
    rig.run(DEAD_AFTER_MS + VACATE_AFTER_MS - 2 * TICK_MS)
    assert rig.group.master == 1
    rig.run(3 * TICK_MS)
    assert (rig.group.master, rig.group.master_epoch, rig.group.sync_set) == (None, 2, (1, 2))
    rig.run(10_000)
    assert len(rig.commands) == 1
    rig.up(2)
    rig.run(TICK_MS)
    assert (rig.group.master, rig.group.master_epoch, rig.group.sync_set) == (2, 3, (2,))


def test_a_master_that_comes_back_and_is_none_any_more_is_elected_again():
    rig = ElectionsRig(in_sync=1)
    rig.up(1, master=False)
    rig.run(2 * TICK_MS)
    assert [(command.candidate, command.master_epoch) for command in rig.commands] == [(1, 1)]
    rig.up(1, master=True)
    rig.run(2000)
    assert rig.group.master_epoch == 2


def test_a_master_started_again_is_succeeded_by_the_best_of_the_set():
    rig = ElectionsRig(in_sync=3)
    rig.up(1, master=False, log_end=10)
    rig.up(2, 3, log_end=12)
    rig.run(TICK_MS)
    assert rig.group.master == 2


def test_a_master_that_serves_no_more_is_succeeded_by_another_one_whatever_was_heard_last():
    """It may have failed without having said so yet; what is known of the others' logs is older than what it said."""
    rig = ElectionsRig(in_sync=3)
    rig.up(2, 3, log_end=10)
    rig.up(1, master=False, log_end=12)
    rig.run(TICK_MS)
    assert (rig.group.master, rig.group.master_epoch) == (2, 2)


def test_who_does_not_take_over_is_elected_again_when_there_is_nobody_else():
    """It may have been started again after it was told, and before it said that it serves."""
    rig = ElectionsRig(in_sync=3)
    rig.up(2, master=False)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 2
    rig.up(2, 3, master=False)
    rig.run(TAKE_OVER_MS - 2 * TICK_MS)
    assert rig.group.master_epoch == 2
    rig.run(3 * TICK_MS)
    assert (rig.group.master, rig.group.master_epoch) == (2, 3)


def test_who_is_started_again_before_it_serves_makes_way_at_once():
    rig = ElectionsRig(in_sync=3)
    rig.deaf.add(2)
    rig.up(2, 3, incarnation=1)
    rig.run(TICK_MS)
    rig.state.apply(rig.elections.decide(0, 2, rig.now, 0))
    rig.alter((2, 3))
    rig.run(TAKE_OVER_MS // 2)
    assert (rig.group.master, rig.group.master_epoch) == (2, 2)
    rig.up(2, incarnation=2)
    rig.run(TICK_MS)
    assert (rig.group.master, rig.group.master_epoch) == (3, 3)


def test_who_is_started_again_and_is_the_only_one_is_elected_again_at_once():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, 3, master=False, incarnation=1)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    rig.run(TICK_MS)
    assert (rig.group.master, rig.group.master_epoch) == (2, 2)
    rig.up(2, incarnation=2)
    rig.run(TAKE_OVER_MS // 2)
    assert (rig.group.master, rig.group.master_epoch) == (2, 3)


def test_one_who_does_not_take_over_makes_way_for_another_of_the_set():
    rig = ElectionsRig(in_sync=3)
    rig.deaf.add(2)
    rig.state.apply(rig.elections.decide(0, 2, rig.now, 0))
    rig.alter((2, 3))
    rig.run(TAKE_OVER_MS - TICK_MS)
    assert rig.group.master == 2
    rig.run(2 * TICK_MS)
    assert rig.group.master == 3


def test_nobody_is_put_back_by_itself():
    rig = ElectionsRig(in_sync=3)
    rig.register(1, priority=100)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    rig.up(1)
    rig.run(1000)
    rig.alter((1, 2, 3))
    rig.run(10_000)
    assert rig.group.master == 2


# ---- the first master


def test_a_new_group_waits_for_all_its_replicas_and_elects_the_one_with_a_log():
    rig = ElectionsRig(3)
    rig.down(3)
    rig.registry.forget(0, 3)
    rig.run(2000)
    assert rig.group.master is None
    rig.up(3, log_end=1000, log_epoch=0)
    rig.run(TICK_MS)
    assert rig.group.master == 3


def test_a_new_group_with_a_majority_of_its_replicas_waits_no_longer_than_that():
    rig = ElectionsRig(2, config={"replicas": 3})
    rig.run(FIRST_WAIT_MS - 2 * TICK_MS)
    assert rig.group.master is None
    rig.run(3 * TICK_MS)
    assert rig.group.master == 1


def test_a_new_group_waits_for_a_registered_replica_that_is_not_heard():
    rig = ElectionsRig(3)
    rig.down(3)
    rig.registry.forget(0, 3)
    rig.run(3 * FIRST_WAIT_MS)
    assert rig.group.master is None
    rig.state.apply(rig.elections.decide(0, 2, rig.now, 0))  # unless somebody says otherwise
    assert rig.group.master == 2


def test_learners_are_never_elected():
    rig = ElectionsRig(1, learners=1, in_sync=1)
    rig.up(2, log_end=99)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + VACATE_AFTER_MS + TICK_MS)
    assert rig.group.master in {1, None}
    with pytest.raises(NotElectable, match="learner"):
        rig.elections.decide(0, 2, rig.now, 0)


# ---- a majority acknowledges


def test_by_quorum_the_master_is_taken_away_first_and_promised_logs_decide():
    rig = ElectionsRig(in_sync=3, acknowledge="quorum")
    rig.up(2, log_epoch=1, log_end=100)
    rig.up(3, log_epoch=1, log_end=90)
    rig.down(1)
    rig.deaf = {2, 3}
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert (rig.group.master, rig.group.master_epoch) == (None, 2)
    rig.run(2000)
    assert rig.group.master is None  # no replica has promised
    rig.up(3, log_end=110)  # the old master could still bring so much there
    rig.deaf = {2}
    rig.run(1000)
    assert rig.group.master is None  # one of three is no majority
    rig.deaf = set()
    rig.run(TICK_MS)
    assert (rig.group.master, rig.group.master_epoch, rig.group.sync_set) == (3, 3, (1, 2, 3))


def test_by_quorum_nothing_is_done_while_a_majority_is_not_heard():
    rig = ElectionsRig(in_sync=3, acknowledge="quorum")
    rig.down(1, 2)
    rig.run(DEAD_AFTER_MS + VACATE_AFTER_MS - 2 * TICK_MS)
    assert rig.group.master == 1
    rig.run(VACATE_AFTER_MS)
    assert rig.group.master is None
    rig.up(2)
    rig.run(TICK_MS)
    assert rig.group.master == 2


def test_a_planned_switch_over_by_quorum_waits_for_the_one_wanted():
    rig = ElectionsRig(in_sync=3, acknowledge="quorum")
    rig.deaf = {3}
    rig.state.apply(rig.elections.decide(0, 3, rig.now, 0, master_epoch=1, sync_epoch=rig.group.sync_epoch))
    assert rig.group.master is None
    rig.run(1000)
    assert rig.group.master is None
    rig.deaf = set()
    rig.run(TICK_MS)
    assert rig.group.master == 3


def test_a_switch_over_by_quorum_goes_to_the_longest_log_all_the_same():
    rig = ElectionsRig(in_sync=3, acknowledge="quorum")
    rig.up(1, 2, log_end=10)
    rig.state.apply(rig.elections.decide(0, 3, rig.now, 0, master_epoch=1, sync_epoch=rig.group.sync_epoch))
    rig.up(1, 2, 3)
    with pytest.raises(NotElectable, match="longest log"):
        rig.elections.decide(0, 3, rig.now, 0)
    rig.run(TICK_MS)
    assert rig.group.master == 1


# ---- certificates


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_a_replica_that_others_refuse_is_elected_only_where_no_other_can_be(acknowledge):
    """A replica whose certificate had expired became master, and its group stood still."""
    rig = ElectionsRig(in_sync=3, acknowledge=acknowledge)
    rig.up(2, 3, log_epoch=1, log_end=500)
    rig.up(2, priority=9, expired=True)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + 3 * TICK_MS)
    assert rig.group.master == 3


def test_the_only_one_left_is_elected_though_others_refuse_it():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, expired=True)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + 3 * TICK_MS)
    assert rig.group.master == 2


def test_an_operator_cannot_elect_a_replica_that_others_refuse():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, expired=True)
    with pytest.raises(NotElectable, match="the certificate of replica 2 of store group 0 has expired"):
        rig.elections.decide(0, 2, rig.now, 0)
    assert rig.elections.decide(0, None, rig.now, 0).candidate == 3


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_a_master_that_serves_stays_where_others_refuse_all_that_could_replace_it(acknowledge):
    """`cluster elect` without a replica elected one whose certificate had expired, and the group stood still."""
    rig = ElectionsRig(in_sync=3, acknowledge=acknowledge)
    rig.up(2, 3, expired=True)
    with pytest.raises(NotElectable, match=r"1 stays master .* for the certificates of the others have expired: 2, 3"):
        rig.elections.decide(0, None, rig.now, 0)


@pytest.mark.parametrize(("died", "elected"), [((1,), 3), ((1, 3), 2)])
def test_by_quorum_one_that_others_refuse_is_passed_over_where_a_majority_has_all_without_it(died, elected):
    """A replica whose certificate had expired was elected for a longer log, of frames that nobody was told of."""
    rig = ElectionsRig(5, in_sync=5, acknowledge="quorum", min_in_sync=3)
    rig.up(2, 3, 4, 5, log_epoch=1, log_end=500)
    rig.up(2, log_end=510, expired=True)
    rig.deaf = {5}
    rig.down(*died)
    rig.run(DEAD_AFTER_MS + 2 * TICK_MS)
    rig.deaf = set()  # it promises last
    rig.run(2 * TICK_MS)
    assert rig.group.master == elected


# ---- by command


def test_a_planned_switch_over_elects_the_target_at_the_epochs_its_master_knows():
    rig = ElectionsRig(in_sync=3)
    with pytest.raises(StaleEpoch):
        rig.elections.decide(0, 3, rig.now, 0, master_epoch=0)
    with pytest.raises(StaleEpoch):
        rig.elections.decide(0, 3, rig.now, 0, sync_epoch=rig.group.sync_epoch - 1)
    rig.state.apply(rig.elections.decide(0, 3, rig.now, 0, master_epoch=1, sync_epoch=rig.group.sync_epoch))
    assert (rig.group.master, rig.group.sync_set) == (3, (3,))
    assert rig.elections.decide(0, 3, rig.now, 0, master_epoch=1, sync_epoch=4) is None  # the answer was lost
    rig.run(1000)
    with pytest.raises(NotElectable, match=r"replica 3 is already master of store group 0 in epoch 2; name another"):
        rig.elections.decide(0, 3, rig.now, 0)


def test_what_is_asked_for_has_to_be_possible():
    rig = ElectionsRig(in_sync=2, learners=1)
    rig.down(2)
    rig.run(DEAD_AFTER_MS)
    with pytest.raises(UnknownGroup):
        rig.elections.decide(7, 1, rig.now, 0)
    with pytest.raises(UnknownReplica):
        rig.elections.decide(0, 9, rig.now, 0)
    for candidate in (2, 3, 4):
        with pytest.raises(NotElectable):
            rig.elections.decide(0, candidate, rig.now, 0)
    with pytest.raises(NotElectable, match=r"replica 1 stays master in epoch 1.*no heartbeats from \[2\]"):
        rig.elections.decide(0, None, rig.now, 0)
    rig.down(1)
    rig.now += DEAD_AFTER_MS
    with pytest.raises(NotElectable, match="alive"):
        rig.elections.decide(0, None, rig.now, 0)


# ---- unclean


def test_nothing_outside_the_set_is_elected_by_default():
    rig = ElectionsRig(in_sync=2)
    rig.up(3, log_end=10**6)
    rig.down(1, 2)
    rig.run(60_000)
    assert rig.group.master is None
    with pytest.raises(NotElectable, match="not in sync"):
        rig.elections.decide(0, 3, rig.now, 0)


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum", "master"])
def test_unclean_election_is_announced_loudly(caplog, acknowledge):
    rig = ElectionsRig(in_sync=2, acknowledge=acknowledge)
    rig.down(1, 2)
    rig.state.apply(ConfigureGroup(number=0, config=GroupChanges(unclean_election=True), time_ms=0))
    rig.run(DEAD_AFTER_MS + UNCLEAN_AFTER_MS - 2 * TICK_MS)
    assert [(one.levelno, "MAY LOSE" in one.message) for one in caplog.records] == [(logging.WARNING, True)]
    assert rig.group.master == 1
    rig.run(4 * TICK_MS)
    assert (rig.group.master, rig.group.sync_set) == (3, (3,))
    assert [one.message for one in caplog.records if one.levelno == logging.CRITICAL] == [
        "UNCLEAN ELECTION in store group 0: replica 3 may lack acknowledged writes; in sync were 1, 2"
    ]


def test_who_is_in_sync_comes_before_an_unclean_election():
    rig = ElectionsRig(in_sync=2, unclean_election=True)
    rig.up(3, log_end=10**6)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 2
    rig.down(2)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 2
    rig.up(2)
    rig.run(UNCLEAN_AFTER_MS)
    assert rig.group.master == 2


def test_an_operator_does_not_wait_for_an_unclean_election_that_is_allowed():
    rig = ElectionsRig(in_sync=2, unclean_election=True)
    rig.down(1, 2)
    rig.run(DEAD_AFTER_MS // 2)
    with pytest.raises(NotElectable, match="not in sync"):
        rig.elections.decide(0, 3, rig.now, 0)  # while anybody in sync may be alive
    rig.run(DEAD_AFTER_MS)
    command = rig.elections.decide(0, 3, rig.now, 0)
    assert command.unclean
    rig.state.apply(command)
    assert rig.group.sync_set == (3,)


def test_a_replica_is_registered_elsewhere_only_when_it_is_dead_where_it_was():
    rig = ElectionsRig(in_sync=3)

    def moved(id_=2, **changes):
        replica = Replica(**{"id": id_, "node": "n9", "address": "n9:1", "check": "c"} | changes)
        rig.admission.check_registration(RegisterReplica(group=0, replica=replica, time_ms=0), rig.now)

    with pytest.raises(
        ReplicaElsewhere, match=r"replica 2 of store group 0 is alive at a, so it cannot be at n9:1 too"
    ):
        moved()
    moved(address="a")  # it was started again where it was, or only says so again
    moved(4)  # is nobody yet
    moved(check="another")  # is refused for that
    rig.registry.disconnected(0, 2, rig.now)
    with pytest.raises(ReplicaElsewhere):
        moved()  # it may connect again
    rig.now += SUSPECT_MS
    moved()
    rig.up(2)
    with pytest.raises(ReplicaElsewhere):
        moved()
    rig.now += DEAD_AFTER_MS
    moved()


# ---- how often it has to be looked


def test_where_all_masters_serve_time_alone_makes_nothing_due():
    rig = ElectionsRig(in_sync=3)
    rig.run(TICK_MS)
    assert rig.elections.is_calm(rig.now)


@pytest.mark.parametrize(
    "what", [{"slow": True}, {"stalled": True}, {"failed": True}, {"damaged": True}, {"full": True}], ids=str
)
def test_a_replica_with_a_trouble_is_looked_at_often(what):
    rig = ElectionsRig(in_sync=3)
    rig.up(2, **what)
    assert not rig.elections.is_calm(rig.now)


def test_an_overdue_heartbeat_is_looked_for_often_before_its_replica_is_dead():
    rig = ElectionsRig(in_sync=3)
    rig.run(TICK_MS)
    rig.now += OVERDUE_MS
    assert rig.elections.is_calm(rig.now)
    assert not rig.elections.is_calm(rig.now + 1)
    assert OVERDUE_MS + 2 * TICK_MS < DEAD_AFTER_MS


def test_a_connection_that_has_ended_and_a_group_without_master_are_looked_at_often():
    rig = ElectionsRig(in_sync=3)
    rig.run(TICK_MS)
    rig.registry.disconnected(0, 3, rig.now)
    assert not rig.elections.is_calm(rig.now)
    assert not ElectionsRig().elections.is_calm(0)


@pytest.mark.parametrize("complains", ["replica", "proxy"])
def test_a_complaint_is_news_and_is_looked_at_often(complains):
    rig = ElectionsRig(in_sync=3)
    rig.run(TICK_MS)
    complaint = Complaint(group=0, epoch=rig.group.master_epoch, silent_ms=600, met=True, reaches=())
    if complains == "proxy":
        rig.registry.complaints.take(Report(proxy="p", complaints=(complaint,)), rig.now)
    else:
        last = rig.registry.last(0, 2)
        assert rig.registry.heartbeat(msgspec.structs.replace(last, complaint=complaint), rig.now)
    assert not rig.elections.is_calm(rig.now)
