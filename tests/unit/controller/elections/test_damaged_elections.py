"""Replicas with damaged logs: whom the policy elects, and whom only when there is nobody else."""

import logging

import msgspec
import pytest

from controller.api.client import NotElectable, StaleEpoch
from controller.elections.elections import DAMAGED_AFTER_MS, TAKE_OVER_MS
from controller.elections.registry import DEAD_AFTER_MS, TICK_MS
from tests.support.controller.elections_rig import ElectionsRig

DAMAGED = {"damaged": True, "damages": 2, "damaged_bytes": 700}
QUORUM = {"acknowledge": "quorum"}


def test_a_damaged_replica_is_not_elected_while_a_sound_one_can_be():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, log_epoch=1, log_end=900, **DAMAGED)
    rig.up(3, log_epoch=1, log_end=500)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 3


def test_an_operator_cannot_elect_a_damaged_replica_while_a_sound_one_can_be():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, **DAMAGED)
    with pytest.raises(NotElectable, match=r"replica 2 .* damaged in 2 ranges, 700 bytes.*sound are \[1, 3\]"):
        rig.elections.decide(0, 2, rig.now, 0)
    assert rig.elections.decide(0, 3, rig.now, 0).candidate == 3


def test_a_damaged_replica_is_elected_when_all_the_set_is_damaged_and_the_least_damaged_one(caplog):
    rig = ElectionsRig(in_sync=3)
    rig.up(1, **DAMAGED)
    rig.up(2, damaged=True, damages=1, damaged_bytes=900)
    rig.up(3, damaged=True, damages=5, damaged_bytes=300)
    rig.run(TICK_MS)
    rig.deaf.add(1)  # it was started again
    with caplog.at_level(logging.CRITICAL):
        rig.run(2 * TICK_MS)
    assert rig.group.master == 3
    assert "whose log is damaged in 5 ranges, 300 bytes" in caplog.text


def test_a_damaged_replica_waits_for_the_sound_ones_of_its_set_to_come_back():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, **DAMAGED)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + DAMAGED_AFTER_MS - 2 * TICK_MS)
    assert rig.group.master == 1
    rig.up(3)
    rig.run(TICK_MS)
    assert rig.group.master == 3


def test_a_damaged_replica_is_elected_when_the_sound_ones_stay_away():
    rig = ElectionsRig(in_sync=3)
    rig.up(2, **DAMAGED)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + DAMAGED_AFTER_MS + 2 * TICK_MS)
    assert (rig.group.master, rig.group.sync_set) == (2, (2,))


def test_a_damaged_replica_that_waits_for_its_repair_is_announced_once_and_when_something_changes(caplog):
    """It was announced as critical every ten seconds, with words on errors of readers, who had nobody to ask."""
    rig = ElectionsRig(in_sync=3)
    rig.up(2, master=False, **DAMAGED)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + DAMAGED_AFTER_MS + 3 * TAKE_OVER_MS)
    assert [one.candidate for one in rig.commands] == [2, 2, 2]
    [said] = critical(caplog)
    assert "electing replica 2, whose log is damaged in 2 ranges, 700 bytes" in said
    assert "no heartbeats come from 1, 3: " in said
    assert "headgate cluster replicas retire 0 REPLICA" in said
    rig.up(3, **DAMAGED)
    rig.run(2 * TAKE_OVER_MS)
    assert ["no heartbeats come from 1: " in one for one in critical(caplog)] == [False, True]
    rig.up(2, master=True)
    rig.run(TICK_MS)
    rig.up(2, master=False)
    rig.run(3 * TAKE_OVER_MS)
    assert len(critical(caplog)) == 3  # it has served, so its next election is another one


def critical(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno == logging.CRITICAL]


def test_a_replica_that_has_lost_the_end_of_its_log_is_never_elected():
    rig = ElectionsRig(in_sync=2)
    rig.up(2, cut_short=True, **DAMAGED)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + 3 * DAMAGED_AFTER_MS)
    assert rig.group.master in {None, 1}
    with pytest.raises(NotElectable, match="has lost its end"):
        rig.elections.decide(0, 2, rig.now, 0)


def test_by_quorum_a_log_that_has_lost_its_end_does_not_count():
    """Records that it had acknowledged may be in no other log of this majority."""
    rig = ElectionsRig(in_sync=3, config=QUORUM)
    for id_ in (1, 2, 3):
        rig.up(id_, log_epoch=1, log_end=500)
    rig.up(2, log_end=100, cut_short=True, **DAMAGED)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + 3 * DAMAGED_AFTER_MS)
    assert rig.group.master in {None, 1}
    rig.up(2, log_end=500, cut_short=False, damaged=False)
    rig.run(2 * TICK_MS)
    assert rig.group.master in {2, 3}


def test_by_quorum_the_longest_log_is_elected_and_a_sound_one_among_equals():
    rig = ElectionsRig(in_sync=3, config=QUORUM)
    rig.up(2, log_epoch=1, log_end=500, **DAMAGED)
    rig.up(3, log_epoch=1, log_end=500)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + 3 * TICK_MS)
    assert rig.group.master == 3


def test_damage_is_news_to_the_policy():
    rig = ElectionsRig(in_sync=3)
    said = rig.registry.last(0, 2)
    assert not rig.registry.heartbeat(said, rig.now)
    assert rig.registry.heartbeat(msgspec.structs.replace(said, **DAMAGED), rig.now)
    route = rig.registry.route(0, rig.group, rig.now)
    assert [(one.id, one.damages, one.damaged_bytes) for one in route.replicas] == [(1, 0, 0), (2, 2, 700), (3, 0, 0)]


def all_cut_short(**config):
    rig = ElectionsRig(in_sync=3, **config)
    for id_, log_epoch, log_end in ((1, 1, 300), (2, 1, 400), (3, 0, 900)):
        rig.up(id_, master=False, cut_short=True, log_epoch=log_epoch, log_end=log_end, **DAMAGED)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + 2 * DAMAGED_AFTER_MS)
    rig.up(1, cut_short=True, log_epoch=1, log_end=300, **DAMAGED)
    return rig


@pytest.mark.parametrize("config", [{}, {"config": QUORUM}], ids=["all in sync", "quorum"])
def test_when_all_in_sync_have_lost_the_end_of_their_logs_an_operator_can_accept_the_loss(config, caplog):
    rig = all_cut_short(**config)
    before = rig.group.master_epoch
    assert rig.group.master in {None, 1}
    with pytest.raises(NotElectable, match=r"lost the end of their logs.*cluster elect 0 --unclean accepts the loss"):
        rig.elections.decide(0, None, rig.now, 0)
    assert rig.group.master_epoch == before
    assert rig.group.unclean_epoch == 0
    rig.state.apply(rig.elections.decide(0, None, rig.now, 0, unclean=True))
    assert (rig.group.master, rig.group.sync_set) == (2, (2,))  # the longest log of the newest epoch
    assert rig.group.unclean_epoch == rig.group.master_epoch == before + 1
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


def test_an_accepted_loss_can_name_a_replica_with_a_shorter_log():
    rig = all_cut_short()
    assert rig.elections.decide(0, 1, rig.now, 0, unclean=True).candidate == 1


def test_no_loss_is_accepted_while_one_in_sync_has_its_end_or_serves():
    rig = all_cut_short()
    rig.up(3, cut_short=False, damaged=False)
    with pytest.raises(NotElectable, match=r"nothing needs to be lost, as replicas in sync are alive \(3\)"):
        rig.elections.decide(0, 2, rig.now, 0, unclean=True)
    rig = ElectionsRig(in_sync=1)
    rig.up(1, cut_short=True, **DAMAGED)
    with pytest.raises(NotElectable, match=r"replicas in sync are alive \(1\)"):
        rig.elections.decide(0, 2, rig.now, 0, unclean=True)


def test_no_loss_is_accepted_in_favour_of_a_replica_that_sends_no_heartbeats():
    rig = all_cut_short()
    rig.down(2)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    with pytest.raises(NotElectable, match="replica 2 sends no heartbeats, so it cannot be elected"):
        rig.elections.decide(0, 2, rig.now, 0, unclean=True)
    rig.down(1, 3)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    with pytest.raises(NotElectable, match="no voter sends heartbeats, so no replica can be elected"):
        rig.elections.decide(0, None, rig.now, 0, unclean=True)


def test_an_unclean_election_says_that_a_wanted_learner_cannot_be_elected():
    rig = ElectionsRig(1, learners=1, in_sync=1)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    with pytest.raises(NotElectable, match=r"^store group 0: replica 2 is a learner, so it cannot be elected$"):
        rig.elections.decide(0, 2, rig.now, 0, unclean=True)


def test_a_clean_election_says_nothing_of_a_loss():
    rig = ElectionsRig(in_sync=3)
    rig.down(1)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert (rig.group.master, rig.group.unclean_epoch) == (2, 0)


def test_a_clean_election_is_no_answer_to_who_has_accepted_a_loss():
    """A replica that asks on the epoch before has not seen the loss, and would take nothing for lost."""
    rig = all_cut_short()
    before = rig.group
    command = rig.elections.decide(0, 2, rig.now, 0, unclean=True)
    rig.state.apply(msgspec.structs.replace(command, unclean=False, accepted=False))  # by one who knew less
    assert (rig.group.master, rig.group.unclean_epoch) == (2, 0)
    with pytest.raises(StaleEpoch):
        rig.state.apply(command)
    with pytest.raises(StaleEpoch):
        rig.elections.decide(0, 2, rig.now, 0, master_epoch=before.master_epoch, unclean=True)
    again = rig.elections.decide(0, 2, rig.now, 0, master_epoch=rig.group.master_epoch, unclean=True)
    elected = rig.state.apply(again)
    assert rig.state.apply(again) == elected == rig.group
    asked = again.master_epoch
    assert rig.elections.decide(0, 2, rig.now, 0, master_epoch=asked, unclean=True) is None  # the answer was lost
