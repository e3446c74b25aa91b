"""Replicas with damaged logs: who leaves the SyncStateSet, who joins it, and what a master takes meanwhile."""

import random

import pytest

from store.replication.agreement import Acknowledge
from store.replication.effects import Send
from store.replication.errors import CannotSwitchOver, NotEnoughInSync
from store.replication.messages import Welcome
from tests.support.store.replication_group import group
from tests.support.store.replication_kit import Following, FrameLog


def damage(leading, number: int, damaged: bool = True):
    """Tells the master that a replica is damaged, or is not any more."""
    leading.followers[number].core.damaged(damaged)
    return leading.settle()


def test_a_damaged_replica_leaves_the_set_at_once_and_joins_again_when_it_is_repaired():
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


def test_a_set_of_two_keeps_a_damaged_replica_and_refuses_writes_until_it_is_repaired():
    leading = group(2, min_in_sync=2)
    damage(leading, 2)
    assert leading.master.sync_set == {1, 2}  # a replica outside the set cannot succeed this master
    assert isinstance(leading.master.refusal, NotEnoughInSync)
    assert "1 more with damaged logs" in str(leading.master.refusal)
    damage(leading, 2, damaged=False)
    assert leading.master.writable


def test_what_was_under_way_when_a_replica_found_damage_is_acknowledged():
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


def test_by_quorum_a_damaged_replica_leaves_the_set():
    leading = group(2, 3, min_in_sync=2, acknowledge=Acknowledge.QUORUM)
    damage(leading, 3)
    assert leading.master.sync_set == {1, 2}


def test_a_damaged_replica_cannot_take_over():
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
    replica = leading.followers[3].core
    replica.close()
    leading.master.left(3)
    replica.damaged(True)
    leading.connect(3)
    assert leading.master.sync_set == {1, 2}


@pytest.mark.parametrize("stage", ["idle", "greeting", "cutting", "streaming", "snapshot", "diverged"])
@pytest.mark.parametrize("damaged", [True, False])
def test_in_every_state_a_replica_may_find_damage_and_says_so_only_while_it_streams(stage, damaged):
    replica = Following(2, FrameLog().fill(1, 2), [(1, 0)], promised=1, confirmed=400)
    core, now = replica.core, 1_000
    if stage != "idle":
        core.connect(2, session=7, now_ms=now)
    if stage not in {"idle", "greeting"}:
        lacking = stage == "diverged"
        welcome = Welcome(
            session=7,
            epoch=2,
            epochs=((2, 0),) if lacking else ((1, 0), (2, 400)),
            first=400 if stage == "snapshot" else 0,
            end=400,
            cut_to=0 if lacking else 400,
            confirmed=400,
            needs_snapshot=stage == "snapshot",
        )
        core.receive(welcome, now_ms=now)
    if stage == "streaming":
        replica.work()
    else:
        core.take()
    assert core.stage.name.lower() == stage
    replica.sent.clear()
    core.damaged(True)
    core.damaged(damaged)
    said = [effect.message for effect in core.take() if isinstance(effect, Send)]
    assert [one.damaged for one in said] == ([True] if damaged else [True, False]) * (stage == "streaming")
    assert core.stage.name.lower() == stage


@pytest.mark.parametrize("acknowledge", list(Acknowledge))
@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_damaged_when_the_rules_of_the_set_hold(acknowledge, seed):
    """Replicas find damage, are repaired, break off and come back, by chance, under writes."""
    chance = random.Random(seed)
    least = chance.choice([1, 2, 3])
    leading = group(2, 3, min_in_sync=least, acknowledge=acknowledge)
    master = leading.master
    hurt = dict.fromkeys((1, 2, 3), False)
    for _ in range(80):
        before = master.sync_set
        match chance.randrange(6):
            case 0 | 1:
                number = chance.choice([1, 2, 3])
                hurt[number] = not hurt[number]
                if number == 1:
                    master.damaged(hurt[1])
                else:
                    leading.followers[number].core.damaged(hurt[number])
            case 2:
                number = chance.choice([2, 3])
                leading.followers[number].core.close()
                master.left(number)
                leading.pass_time(chance.choice([100, 700]))
                leading.connect(number)
            case 3:
                if master.writable:
                    leading.append(chance.randrange(1, 4))
            case _:
                leading.pass_time(chance.choice([50, 400]))
        leading.settle()
        joined, gone = master.sync_set - before, before - master.sync_set
        assert not any(hurt[number] for number in joined)
        assert not gone or len(master.sync_set) >= min(master.least, len(before))
        sound = sum(not hurt[number] for number in master.sync_set)
        if master.least > 1 and sound < master.least:
            assert not master.writable
        for number in (2, 3):
            if hurt[number]:
                with pytest.raises(CannotSwitchOver):
                    master.hand_over(number, now_ms=leading.now)
    for number in (2, 3):
        leading.followers[number].core.damaged(False)
    master.damaged(False)
    leading.pass_time(6_000)
    assert master.sync_set == {1, 2, 3}
    assert master.writable
    assert master.confirmed == leading.log.end
