"""Groups, replicas' ids, elections and SyncStateSets: each rule, and what is refused."""

import msgspec
import pytest

from controller.api.client import (
    ControllerError,
    GroupChanges,
    GroupConfig,
    GroupExists,
    Member,
    NoMaster,
    NotElectable,
    Replica,
    ReplicaIdTaken,
    ReplicaInSync,
    StaleEpoch,
    UnknownGroup,
    UnknownReplica,
    User,
)
from controller.api.commands import (
    AddGroup,
    AlterSyncSet,
    ConfigureGroup,
    DeleteMember,
    DeleteUser,
    ElectMaster,
    ForgetReplica,
    LogEnd,
    RegisterReplica,
    RetireReplica,
    SetMember,
    SetUser,
)
from controller.metadata.state import MetadataState

THREE = GroupConfig(replicas=3, min_in_sync=2)


def replica(id_, **changes):
    return Replica(**{"id": id_, "node": f"n{id_}", "address": f"n{id_}:1", "check": f"c{id_}"} | changes)


def register(state, one):
    return state.apply(RegisterReplica(group=0, replica=one, time_ms=0))


def elect(state, candidate, master_epoch=0, sync_epoch=0, **changes):
    return state.apply(
        ElectMaster(
            **{"group": 0, "candidate": candidate, "master_epoch": master_epoch, "sync_epoch": sync_epoch}
            | {"time_ms": 7}
            | changes
        )
    )


def alter(state, new_set, *, master=1, master_epoch=1, sync_epoch=1):
    command = AlterSyncSet(
        group=0, master=master, master_epoch=master_epoch, sync_epoch=sync_epoch, new_set=new_set, time_ms=0
    )
    return state.apply(command)


def configure(state, **changes):
    return state.apply(ConfigureGroup(number=0, config=GroupChanges(**changes), time_ms=0))


def group_of(count=3, *, learners=0, in_sync=1, **changes):
    """Returns a state whose group 0 has replica 1 as its master in epoch 1, and this many replicas in sync."""
    state = MetadataState()
    state.apply(AddGroup(number=0, config=msgspec.structs.replace(THREE, **changes), time_ms=0))
    for id_ in range(1, count + learners + 1):
        register(state, replica(id_, learner=id_ > count))
    elect(state, 1)
    for size in range(2, in_sync + 1):
        alter(state, tuple(range(1, size + 1)), sync_epoch=size - 1)
    return state


# ---- identity


def test_an_id_is_given_once_and_its_check_code_says_to_whom():
    state = MetadataState()
    state.apply(AddGroup(number=0, config=THREE, time_ms=0))
    first = register(state, replica(1))
    assert first.next_replica == 2
    assert register(state, replica(1)) == first  # again, after a crash before the file was renamed
    with pytest.raises(ReplicaIdTaken, match="another check code"):
        register(state, replica(1, check="other"))
    with pytest.raises(ReplicaIdTaken, match="next id"):
        register(state, replica(3))
    for wrong in (0, -1):
        with pytest.raises(ReplicaIdTaken):
            register(state, replica(wrong))
    with pytest.raises(UnknownGroup):
        state.apply(RegisterReplica(group=4, replica=replica(1), time_ms=0))


def test_a_replica_moves_to_another_address_under_its_id():
    state = group_of()
    moved = register(state, replica(2, address="elsewhere:2", priority=5, zone="b"))
    assert moved.replica(2) == replica(2, address="elsewhere:2", priority=5, zone="b")
    assert moved.next_replica == 4


def test_a_forgotten_id_is_never_given_again():
    state = group_of()
    forget = ForgetReplica(group=0, replica=3, time_ms=0)
    assert state.apply(forget) == state.apply(forget)
    assert state.groups[0].replica(3) is None
    with pytest.raises(ReplicaIdTaken):
        register(state, replica(3))
    assert register(state, replica(4)).voters == (1, 2, 4)


def test_what_is_in_sync_is_neither_forgotten_nor_made_a_learner():
    state = group_of(in_sync=2)
    with pytest.raises(ReplicaInSync):
        state.apply(ForgetReplica(group=0, replica=2, time_ms=0))
    with pytest.raises(ReplicaInSync):
        register(state, replica(2, learner=True))
    alter(state, (1,), sync_epoch=2)
    assert register(state, replica(2, learner=True)).voters == (1, 3)
    assert state.apply(ForgetReplica(group=0, replica=2, time_ms=0)).voters == (1, 3)


def test_a_replica_is_retired_out_of_the_set_for_good():
    state = group_of(in_sync=3)
    retire = RetireReplica(group=0, replica=3, time_ms=0)
    after = state.apply(retire)
    assert (after.voters, after.sync_set, after.sync_epoch, after.master) == ((1, 2), (1, 2), 4, 1)
    assert state.apply(retire) == after
    with pytest.raises(ReplicaIdTaken):
        register(state, replica(3))
    with pytest.raises(StaleEpoch):
        alter(state, (1, 2, 3), sync_epoch=3)  # by a master that does not know of it yet


def test_retiring_takes_no_master_and_not_too_many_unless_it_is_forced():
    state = group_of(in_sync=2)
    with pytest.raises(ReplicaInSync, match="replica 1 is master"):
        state.apply(RetireReplica(group=0, replica=1, forced=True, time_ms=0))
    with pytest.raises(UnknownReplica, match="store group 0 has no replica 9"):
        state.apply(RetireReplica(group=0, replica=9, time_ms=0))
    with pytest.raises(ReplicaInSync, match="nothing is written until another one is"):
        state.apply(RetireReplica(group=0, replica=2, time_ms=0))
    assert state.apply(RetireReplica(group=0, replica=2, forced=True, time_ms=0)).sync_set == (1,)
    with pytest.raises(ReplicaInSync, match="would keep 1 of its replicas"):
        state.apply(RetireReplica(group=0, replica=3, time_ms=0))


def test_by_quorum_nobody_in_sync_is_retired_while_there_is_no_master():
    """Records that a majority has acknowledged may be on the others only."""
    state = group_of(in_sync=3, acknowledge="quorum")
    elect(state, None, 1, 3)
    with pytest.raises(ReplicaInSync, match="the group needs a master before"):
        state.apply(RetireReplica(group=0, replica=1, forced=True, time_ms=0))


def test_an_unclean_election_needs_the_configuration_or_an_operator():
    state = group_of(in_sync=2)
    with pytest.raises(NotElectable, match="allows no unclean election"):
        elect(state, 3, 1, 2, unclean=True)
    assert elect(state, 3, 1, 2, unclean=True, accepted=True).sync_set == (3,)


@pytest.mark.parametrize(
    "wrong",
    [{"node": ""}, {"address": ""}, {"check": ""}, {"zone": "z" * 256}, {"priority": 1 << 31}, {"node": "\ud800"}],
)
def test_replicas_with_impossible_fields_are_refused(wrong):
    with pytest.raises(ControllerError):
        register(group_of(), replica(4, **wrong))


def test_a_group_has_so_many_replicas_and_learners():
    state = group_of(8, learners=8)
    for learner in (False, True):
        with pytest.raises(ControllerError, match="as many"):
            register(state, replica(17, learner=learner))
    register(state, replica(8, zone="new"))


# ---- elections


def test_after_an_election_the_set_is_the_new_master_alone():
    state = group_of(in_sync=3)
    before = state.groups[0]
    assert (before.sync_set, before.sync_epoch) == ((1, 2, 3), 3)
    after = elect(state, 2, 1, 3)
    assert (after.master, after.master_epoch, after.sync_set, after.sync_epoch) == (2, 2, (2,), 4)
    assert after.elected_ms == 7


def test_without_anybody_electable_the_master_is_none_and_the_set_is_kept():
    state = group_of(in_sync=2)
    after = elect(state, None, 1, 2)
    assert (after.master, after.master_epoch, after.sync_set, after.sync_epoch) == (None, 2, (1, 2), 2)
    assert elect(state, None, 1, 2) == after
    assert elect(state, None, 2, 2) == after
    with pytest.raises(StaleEpoch):
        alter(state, (1,), sync_epoch=2)
    assert elect(state, 2, 2, 2).sync_set == (2,)


def test_an_election_decided_on_old_epochs_has_no_effect():
    state = group_of(in_sync=3)
    elected = elect(state, 2, 1, 3)
    assert elect(state, 2, 1, 3, time_ms=99) == elected
    for late in ((1, 1, 3), (3, 1, 3), (None, 1, 3), (2, 2, 3), (2, 0, 0)):
        with pytest.raises(StaleEpoch):
            elect(state, *late)
    assert state.groups[0] == elected


def test_an_election_repeated_after_the_set_has_grown_again_is_the_same_one():
    state = group_of(in_sync=3)
    elect(state, 2, 1, 3)
    grown = alter(state, (1, 2), master=2, master_epoch=2, sync_epoch=4)
    assert elect(state, 2, 1, 3) == grown


def test_nobody_outside_the_set_is_elected_unless_that_is_allowed():
    state = group_of(in_sync=2, learners=1)
    for unclean in (False, True):
        with pytest.raises(NotElectable):
            elect(state, 3, 1, 2, unclean=unclean)
    with pytest.raises(UnknownReplica):
        elect(state, 9, 1, 2)
    configure(state, unclean_election=True)
    with pytest.raises(NotElectable, match="not in sync"):
        elect(state, 3, 1, 2)
    with pytest.raises(NotElectable, match="learner"):
        elect(state, 4, 1, 2, unclean=True)
    assert elect(state, 3, 1, 2, unclean=True).sync_set == (3,)


def test_the_first_master_is_any_replica_but_a_learner():
    state = MetadataState()
    state.apply(AddGroup(number=0, config=THREE, time_ms=0))
    register(state, replica(1, learner=True))
    register(state, replica(2))
    with pytest.raises(NotElectable):
        elect(state, 1)
    assert elect(state, 2).sync_set == (2,)


def test_a_master_that_was_started_again_is_elected_again_in_a_new_epoch():
    state = group_of(in_sync=2)
    assert elect(state, 1, 1, 2).master_epoch == 2


# ---- the SyncStateSet


def test_a_set_is_altered_by_its_master_at_the_epochs_it_knows():
    state = group_of()
    grown = alter(state, (2, 1, 2))
    assert (grown.sync_set, grown.sync_epoch) == ((1, 2), 2)
    assert alter(state, (1, 2)) == grown  # this very change, told again
    assert alter(state, (1, 2), sync_epoch=2) == grown  # no change
    for wrong in ({"master": 2}, {"master_epoch": 2}, {"master_epoch": 0}, {"sync_epoch": 1}, {"sync_epoch": 3}):
        with pytest.raises(StaleEpoch):
            alter(state, (1, 2, 3), **{"sync_epoch": 2} | wrong)
    assert state.groups[0] == grown


@pytest.mark.parametrize("wrong", [(), (2,), (1, 9), (1, 4)])
def test_a_set_has_the_master_and_none_but_replicas_that_count(wrong):
    state = group_of(learners=1)
    before = state.snapshot()
    with pytest.raises(ControllerError):
        alter(state, wrong)
    assert state.snapshot() == before


def test_a_partitioned_old_master_cannot_shrink_its_set():
    state = group_of(in_sync=3)
    elect(state, 2, 1, 3)
    for sync_epoch in (3, 4):
        with pytest.raises(StaleEpoch):
            alter(state, (1,), sync_epoch=sync_epoch)


# ---- a majority acknowledges


def ends(*known, epoch=2):
    return tuple(LogEnd(replica=id_, master_epoch=epoch, log_epoch=at, log_end=end) for id_, at, end in known)


def test_by_quorum_the_longest_log_of_the_newest_epoch_of_a_majority_is_elected_and_the_set_stays():
    state = group_of(in_sync=3, acknowledge="quorum")
    with pytest.raises(NotElectable, match="still follow"):
        elect(state, 2, 1, 3, ends=ends((2, 1, 10), (3, 1, 9), epoch=1))
    elect(state, None, 1, 3)
    refused = [
        (),
        ends((2, 1, 10)),
        ends((2, 1, 10), (3, 1, 10), epoch=1),  # they may still have taken something of epoch 1 since
        ends((2, 1, 10), (3, 1, 11)),
        ends((2, 1, 10), (3, 2, 9)),
        ends((1, 1, 10), (3, 1, 9)),
        ends((2, 1, 10), (9, 1, 10)),
        ends((2, 1, 10), (2, 1, 10)),
    ]
    for known in refused:
        with pytest.raises(NotElectable):
            elect(state, 2, 2, 3, ends=known)
    after = elect(state, 2, 2, 3, ends=ends((2, 1, 10), (3, 1, 10)))
    assert (after.master, after.master_epoch, after.sync_set, after.sync_epoch) == (2, 3, (1, 2, 3), 4)


def test_by_quorum_the_set_changes_by_one_member_at_a_time():
    state = group_of(acknowledge="quorum")
    with pytest.raises(ControllerError, match="one member at a time"):
        alter(state, (1, 2, 3))
    alter(state, (1, 2))
    with pytest.raises(ControllerError, match="one member at a time"):
        alter(state, (1, 3), sync_epoch=2)
    assert alter(state, (1, 2, 3), sync_epoch=2).sync_set == (1, 2, 3)


def test_who_was_in_sync_by_another_rule_is_not_in_sync_by_the_new_one():
    state = group_of(in_sync=3, acknowledge="quorum")
    assert configure(state, min_in_sync=1).sync_set == (1, 2, 3)
    after = configure(state, acknowledge="all_in_sync")
    assert (after.sync_set, after.sync_epoch) == ((1,), 4)
    assert configure(state, acknowledge="all_in_sync") == after
    elect(state, None, 1, 4)
    with pytest.raises(NoMaster):
        configure(state, acknowledge="master")


# ---- groups, users, controllers


def test_a_group_is_added_once():
    state = MetadataState()
    added = state.apply(AddGroup(number=3, config=THREE, time_ms=0))
    assert state.apply(AddGroup(number=3, config=THREE, time_ms=9)) == added
    with pytest.raises(GroupExists):
        state.apply(AddGroup(number=3, config=GroupConfig(), time_ms=0))
    for wrong in (-1, 1 << 15):
        with pytest.raises(ControllerError):
            state.apply(AddGroup(number=wrong, config=THREE, time_ms=0))


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"replicas": 6}, {"min_in_sync": 0}, {"min_in_sync": 4}])
def test_a_group_has_one_to_five_replicas_and_not_more_in_sync(wrong):
    with pytest.raises(ControllerError):
        configure(group_of(), **wrong)


def test_users_and_controllers_are_kept():
    state = MetadataState()
    user = User(name="ada", password="scrypt:...", rights={"publish": ["telemetry/#"]})
    member = Member(id=1, node="c1", address="c1:8090")
    assert state.apply(SetUser(user=user, time_ms=0)) == user
    assert state.apply(SetMember(member=member, time_ms=0)) == member
    again = MetadataState.restore(state.snapshot())
    assert (again.users, again.members) == ({"ada": user}, {1: member})
    for _ in range(2):
        assert again.apply(DeleteUser(name="ada", time_ms=0)) is None
        assert again.apply(DeleteMember(id=1, time_ms=0)) is None
    assert (again.users, again.members) == ({}, {})
    last = MetadataState.restore(again.snapshot())
    with pytest.raises(ControllerError, match="not given again"):
        last.apply(SetMember(member=member, time_ms=0))


@pytest.mark.parametrize(
    "wrong",
    [
        User(name="", password=""),
        User(name="a", password="x" * 1025),
        User(name="a", password="", rights={"a": "x" * (64 * 1024)}),
        User(name="a", password="", rights={"a": object()}),
        User(name="a", password="", rights={"a": 1 << 70}),
    ],
)
def test_users_with_impossible_fields_are_refused(wrong):
    with pytest.raises(ControllerError):
        MetadataState().apply(SetUser(user=wrong, time_ms=0))


def test_there_are_only_so_many_users_and_controllers(monkeypatch):
    monkeypatch.setattr("controller.metadata.state.USERS_MAX", 1)
    state = MetadataState()
    for again in ("x", "y"):
        state.apply(SetUser(user=User(name="a", password=again), time_ms=0))
    with pytest.raises(ControllerError):
        state.apply(SetUser(user=User(name="b", password=""), time_ms=0))
    for id_ in range(1, 17):
        state.apply(SetMember(member=Member(id=id_, node="n", address="a"), time_ms=0))
    for wrong in (Member(id=17, node="n", address="a"), Member(id=0, node="n", address="a")):
        with pytest.raises(ControllerError):
            state.apply(SetMember(member=wrong, time_ms=0))
