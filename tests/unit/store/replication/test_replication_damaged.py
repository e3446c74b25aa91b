"""Replicas with damaged logs: who leaves the SyncStateSet, who joins it, and what a master takes meanwhile."""

import pytest
from test_replication_master import group

from store.replication.agreement import Acknowledge
from store.replication.errors import CannotSwitchOver, NotEnoughInSync


def damage(leading, number: int, damaged: bool = True):
    """A slave says so."""
    leading.followers[number].slave.damaged(damaged)
    return leading.settle()


def test_a_damaged_slave_leaves_the_set_at_once_and_joins_again_when_it_is_repaired():
    leading = group(2, 3, min_in_sync=2)
    damage(leading, 3)
    assert leading.master.sync_set == {1, 2}
    assert leading.master.writable
    leading.append().settle()
    assert leading.master.confirmed == 200
    leading.pass_time(3_000)
    assert leading.master.sync_set == {1, 2}  # it has everything, and is not taken in
    damage(leading, 3, damaged=False).pass_time(400)
    assert leading.master.sync_set == {1, 2, 3}


def test_a_set_of_two_keeps_a_damaged_slave_and_refuses_writes_until_it_is_repaired():
    leading = group(2, min_in_sync=2)
    damage(leading, 2)
    assert leading.master.sync_set == {1, 2}  # who is out of it cannot succeed this master
    assert isinstance(leading.master.refusal, NotEnoughInSync)
    assert "1 more with damaged logs" in str(leading.master.refusal)
    damage(leading, 2, damaged=False)
    assert leading.master.writable


def test_what_was_under_way_when_a_slave_found_damage_is_acknowledged():
    """Both have it on their disks."""
    leading = group(2, min_in_sync=2).append(2)
    damage(leading, 2)
    assert leading.master.acknowledged == 400


@pytest.mark.parametrize(("min_in_sync", "writable"), [(1, True), (2, True), (3, False)])
def test_a_damaged_master_takes_writes_while_enough_others_are_sound(min_in_sync, writable):
    leading = group(2, 3, min_in_sync=min_in_sync)
    leading.master.damaged(True)
    assert leading.master.sync_set == {1, 2, 3}
    assert leading.master.writable is writable
    leading.master.damaged(False)
    assert leading.master.writable


def test_a_damaged_master_of_which_one_copy_is_enough_takes_writes_alone():
    leading = group(min_in_sync=1)
    leading.master.damaged(True)
    assert leading.master.writable


def test_by_quorum_a_damaged_slave_leaves_the_set():
    leading = group(2, 3, min_in_sync=2, acknowledge=Acknowledge.QUORUM)
    damage(leading, 3)
    assert leading.master.sync_set == {1, 2}


def test_a_damaged_slave_cannot_take_over():
    leading = group(2, min_in_sync=2)
    damage(leading, 2)
    with pytest.raises(CannotSwitchOver, match="damaged"):
        leading.master.hand_over(2, now_ms=leading.now)


def test_who_finds_damage_while_it_is_about_to_take_over_does_not():
    leading = group(2, min_in_sync=2)
    leading.master.hand_over(2, now_ms=leading.now)
    assert leading.master.handover == 2
    damage(leading, 2)
    assert leading.master.handover is None


def test_damage_that_was_found_before_the_stream_is_said_with_its_first_acknowledgement():
    leading = group(2, 3, min_in_sync=2)
    slave = leading.followers[3].slave
    slave.close()
    leading.master.left(3)
    slave.damaged(True)
    leading.connect(3)
    assert leading.master.sync_set == {1, 2}
