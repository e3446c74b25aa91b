"""Elections where little is left: after controllers were recovered, and by quorum with a bare majority."""

import msgspec
import pytest

from controller.elections.elections import OPERATOR_CHOICE_MS
from controller.elections.majorities import FIRST_WAIT_MS
from controller.elections.registry import DEAD_AFTER_MS, TICK_MS
from tests.support.controller.elections_rig import ElectionsRig

RECOVERED = 10_000  # by which `controller recover` raises epochs


def recovered(rig):
    """Takes from the metadata what a recovery does not know: the master and the set."""
    group = rig.group
    rig.state.groups[0] = msgspec.structs.replace(
        group, master=None, sync_set=(), master_epoch=group.master_epoch + RECOVERED, sync_epoch=group.sync_epoch + 1
    )


@pytest.mark.parametrize(("voters", "replicas"), [(4, 3), (3, 2)], ids=["one is being replaced", "fewer are meant"])
def test_after_a_recovery_all_voters_are_heard_however_few_are_meant(voters, replicas):
    """The set may have been the one that is heard last: as many as the configuration says were enough."""
    rig = ElectionsRig(voters, in_sync=1, config={"replicas": replicas})
    rig.up(1, log_epoch=1, log_end=900)
    rig.down(1)
    rig.run(DEAD_AFTER_MS)
    recovered(rig)
    for id_ in range(2, voters + 1):
        rig.up(id_, log_epoch=1, log_end=500 - id_)
    rig.run(FIRST_WAIT_MS + DEAD_AFTER_MS)
    assert rig.group.master is None
    rig.up(1, log_epoch=1, log_end=900)
    rig.run(TICK_MS)
    assert rig.group.master == 1


def test_after_a_recovery_logs_count_once_their_replicas_have_promised_the_new_epoch():
    """A master of before may acknowledge with those that have not: their logs as they say them are not final."""
    rig = ElectionsRig(3, in_sync=3, acknowledge="quorum")
    rig.deaf = {1, 2, 3}
    recovered(rig)
    rig.up(1, log_epoch=1, log_end=1_000)
    rig.up(2, log_epoch=1, log_end=1_050)
    rig.up(3, log_epoch=1, log_end=1_100)
    rig.run(2 * FIRST_WAIT_MS)
    assert rig.group.master is None
    rig.up(1, log_end=1_400)
    rig.up(2, log_end=1_400)
    rig.deaf.clear()
    rig.run(TICK_MS)
    assert rig.group.master in {1, 2}


def test_by_quorum_a_bare_majority_elects_another_one_at_once_when_it_is_asked_to():
    """The promise of the one to be rid of did not count: without it there was no majority for five seconds."""
    rig = ElectionsRig(3, in_sync=3, acknowledge="quorum")
    rig.down(3)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    assert rig.group.master == 1
    rig.state.apply(rig.elections.decide(0, None, rig.now, rig.now))
    assert rig.group.master is None
    rig.run(3 * TICK_MS)
    assert rig.group.master == 2


def test_by_quorum_the_longest_log_of_a_bare_majority_is_elected_though_it_is_the_one_to_be_rid_of():
    rig = ElectionsRig(3, in_sync=3, acknowledge="quorum")
    rig.up(1, log_epoch=1, log_end=900)
    rig.up(2, log_epoch=1, log_end=800)
    rig.down(3)
    rig.run(DEAD_AFTER_MS + TICK_MS)
    rig.state.apply(rig.elections.decide(0, None, rig.now, rig.now))
    rig.run(3 * TICK_MS)
    assert rig.group.master == 1


def test_by_quorum_one_to_be_rid_of_is_left_out_while_a_majority_remains():
    rig = ElectionsRig(3, in_sync=3, acknowledge="quorum")
    rig.up(1, log_epoch=1, log_end=900)
    rig.up(2, log_epoch=1, log_end=800)
    rig.up(3, log_epoch=1, log_end=800)
    rig.run(TICK_MS)
    rig.state.apply(rig.elections.decide(0, None, rig.now, rig.now))
    rig.run(OPERATOR_CHOICE_MS // 2)
    assert rig.group.master == 2
