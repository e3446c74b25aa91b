"""The registry: who is alive, and routes that need no majority."""

import msgspec
import pytest

from controller.api.client import ControllerError, Group, GroupConfig, Replica
from controller.elections.registry import (
    DEAD_AFTER_MS,
    FORGET_MS,
    PAUSE_MS,
    SUSPECT_MS,
    Heartbeat,
    Registry,
    RegistryFull,
)

GROUP = Group(
    number=0,
    config=GroupConfig(replicas=3, min_in_sync=2),
    replicas=tuple(
        Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1", zone="z", check="c", learner=id_ == 3) for id_ in (1, 2, 3)
    ),
    master=1,
    master_epoch=4,
    sync_set=(1, 2),
    sync_epoch=6,
)


def said(replica, **changes):
    return Heartbeat(
        **{"group": 0, "replica": replica, "node": f"n{replica}", "address": f"n{replica}:1", "master_epoch": 4}
        | changes
    )


def test_a_replica_is_alive_while_it_speaks_in_time():
    registry = Registry(0)
    registry.heartbeat(said(1), 100)
    assert registry.heartbeat_if_alive(0, 1, 100 + DEAD_AFTER_MS - 1) == said(1)
    assert registry.heartbeat_if_alive(0, 1, 100 + DEAD_AFTER_MS) is None
    assert registry.last(0, 1) == said(1)
    assert not registry.alive(0, 1, 100 + DEAD_AFTER_MS)
    registry.heartbeat(said(1), 5000)
    assert registry.alive(0, 1, 5000)


def test_nobody_is_dead_before_there_was_time_to_hear_them():
    registry = Registry(1000)
    assert registry.alive(0, 1, 999 + DEAD_AFTER_MS)
    assert registry.heartbeat_if_alive(0, 1, 999 + DEAD_AFTER_MS) is None  # nor is anybody known to be alive
    assert not registry.alive(0, 1, 1000 + DEAD_AFTER_MS)


def test_a_connection_that_ends_makes_its_replica_suspect():
    registry = Registry(0)
    registry.heartbeat(said(1), 100)
    registry.disconnected(0, 1, 200)
    registry.disconnected(0, 1, 600)
    registry.disconnected(0, 9, 200)
    assert registry.alive(0, 1, 199 + SUSPECT_MS)
    assert not registry.alive(0, 1, 200 + SUSPECT_MS)
    registry.heartbeat(said(1), 800)
    assert registry.alive(0, 1, 799 + DEAD_AFTER_MS)
    registry.disconnected(0, 1, 700 + DEAD_AFTER_MS)
    assert not registry.alive(0, 1, 800 + DEAD_AFTER_MS)


def test_a_controller_that_slept_does_not_judge_by_what_it_did_not_hear():
    registry = Registry(0)
    registry.heartbeat(said(1), 0)
    registry.disconnected(0, 1, 10)
    assert not registry.tick(PAUSE_MS - 1)
    assert registry.tick(60_000)
    assert registry.alive(0, 1, 60_000)
    assert registry.alive(0, 1, 59_999 + DEAD_AFTER_MS)
    assert not registry.tick(60_100)
    assert not registry.alive(0, 1, 60_000 + DEAD_AFTER_MS)


def test_what_is_new_is_told_at_once():
    registry = Registry(0)
    assert registry.heartbeat(said(1), 0)
    assert not registry.heartbeat(said(1, log_end=9), 1)
    assert registry.heartbeat(said(1, master=True), 2)
    assert registry.heartbeat(said(1, master_epoch=5), 3)
    assert registry.heartbeat(said(1, master_epoch=5, address="b:1"), 4)


def test_a_late_heartbeat_is_a_sign_of_life_and_nothing_else():
    registry = Registry(0)
    registry.heartbeat(said(1, master_epoch=5, log_end=50), 0)
    assert not registry.heartbeat(said(1, master_epoch=4, master=True, log_end=70), 1500)
    assert registry.last(0, 1).log_end == 50
    assert registry.served(0, 1) == 0
    assert registry.alive(0, 1, DEAD_AFTER_MS + 1)


def test_it_is_remembered_in_which_epoch_a_replica_served():
    registry = Registry(0)
    assert registry.served(0, 1) == 0
    registry.heartbeat(said(1, master=True), 0)
    registry.heartbeat(said(1), 1)
    assert registry.served(0, 1) == 4
    registry.heartbeat(said(1, master_epoch=5), 2)
    assert registry.served(0, 1) == 4


# ---- routes


def test_a_route_comes_from_the_metadata_with_what_is_heard():
    registry = Registry(0)
    registry.heartbeat(said(2, confirmed=7, zone="elsewhere"), 0)
    route = registry.route(0, GROUP, 10)
    assert (route.master, route.master_epoch) == (1, 4)
    assert [(one.id, one.alive, one.in_sync, one.learner) for one in route.replicas] == [
        (1, False, True, False),
        (2, True, True, False),
        (3, False, False, True),
    ]
    assert (route.replicas[1].confirmed, route.replicas[1].zone) == (7, "elsewhere")
    assert registry.route(1, None, 10) is None


def test_a_stale_master_never_overrides_a_newer_one():
    registry = Registry(0)
    registry.heartbeat(said(1, master=True, master_epoch=3), 0)
    assert registry.route(0, GROUP, 1).master == 1  # by the metadata, not by what it says
    newer = msgspec.structs.replace(GROUP, master=2, master_epoch=5)
    assert registry.route(0, newer, 1).master == 2
    gone = msgspec.structs.replace(GROUP, master=None, master_epoch=5)
    registry.heartbeat(said(1, master=True, master_epoch=4), 2)
    assert registry.route(0, gone, 3).master is None


def test_a_controller_without_majority_routes_by_the_newest_epoch_it_hears():
    registry = Registry(0)
    registry.heartbeat(said(1, master=True, master_epoch=4), 0)
    registry.heartbeat(said(2, master_epoch=6), 0)
    assert (registry.route(0, GROUP, 1).master, registry.route(0, GROUP, 1).master_epoch) == (None, 6)
    registry.heartbeat(said(2, master=True, master_epoch=6), 1)
    registry.heartbeat(said(4, master_epoch=6), 1)
    for known in (GROUP, None):
        route = registry.route(0, known, 2)
        assert (route.master, route.master_epoch) == (2, 6)
        assert 4 in [one.id for one in route.replicas]


def test_a_replica_that_was_forgotten_leaves_the_routes_when_it_is_silent():
    registry = Registry(0)
    registry.heartbeat(said(9), 0)
    assert [one.id for one in registry.route(0, GROUP, 1).replicas] == [1, 2, 3, 9]
    assert [one.id for one in registry.route(0, GROUP, DEAD_AFTER_MS).replicas] == [1, 2, 3]
    registry.forget(0, 9)
    registry.forget(0, 9)
    assert registry.last(0, 9) is None
    assert registry.groups() == []


# ---- limits


def test_the_registry_is_bounded_and_makes_room_of_the_long_silent(monkeypatch):
    monkeypatch.setattr("controller.elections.registry.HEARTBEATS_MAX", 2)
    registry = Registry(0)
    registry.heartbeat(said(1), 0)
    registry.heartbeat(said(2), 0)
    registry.heartbeat(said(1), 1)
    with pytest.raises(RegistryFull):
        registry.heartbeat(said(3), FORGET_MS - 1)
    registry.heartbeat(said(3), FORGET_MS)
    assert registry.last(0, 2) is None
    assert registry.last(0, 1) is not None


@pytest.mark.parametrize(
    "wrong",
    [{"node": "x" * 256}, {"version": "x" * 256}, {"group": -1}, {"replica": 0}, {"master_epoch": -1}, {"log_end": -5}],
)
def test_what_no_replica_would_say_is_refused(wrong):
    registry = Registry(0)
    with pytest.raises(ControllerError):
        registry.heartbeat(said(1, **wrong) if "replica" not in wrong else said(0), 0)
    assert registry.groups() == []
