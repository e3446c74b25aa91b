"""Permissions of a process: given out, changed with the rights of users, counted and said when they deny."""

import gc

import pytest
import structlog

from controller.api.client import User
from gateway.domain.access import NOTHING, Identity
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.ops.metrics import Metrics
from gateway.security.access_control import AccessControl
from store.api.message import Message


class WatchedUsers:
    """Users, and who is told when they change."""

    def __init__(self):
        self.found = {}
        self.listener = None

    def watch(self, listener):
        self.listener = listener

    def users(self):
        return list(self.found.values())

    def user(self, name):
        return self.found.get(name)

    def set(self, name, rules=None, otherwise="deny"):
        access = {} if rules is None else {"access": {"otherwise": otherwise, "rules": rules}}
        self.found[name] = User(name=name, password="", rights=access)
        self.listener()

    def remove(self, name):
        del self.found[name]
        self.listener()


class AccessControlRig:
    def __init__(self, config):
        self.controller = WatchedUsers()
        self.metrics = Metrics(process=False)
        self.now_s = 100.0
        self.changes = 0
        self.control = AccessControl(
            config, self.controller, self.metrics, clock=lambda: self.now_s, changed=self._changed
        )

    def _changed(self):
        self.changes += 1

    def permissions(self, name="ada", **said):
        return self.control.permissions(Principal(name=name), protocol="mqtt", **said)

    def denied(self, action):
        return self.metrics.access_denied("mqtt", action)._value.get()


ALLOW_A = {"effect": "allow", "filters": ["a/#"]}
DENY_B = {"effect": "deny", "filters": ["a/b"]}


@pytest.fixture
def rig():
    return AccessControlRig(AccessConfig())


def test_nothing_restricts_anybody_where_nothing_is_said(rig):
    assert (
        rig.permissions().access
        is rig.permissions("").access
        is rig.control.unauthenticated("mqtt").permissions.access
        is None
    )


def test_a_stranger_is_an_anonymous_client():
    config = AccessConfig(default="deny", rules=(AccessRule(effect="allow", filters=("a",), anonymous=True),))
    permissions = AccessControlRig(config).control.unauthenticated("mqtt").permissions
    assert permissions.access.may("publish", "a")
    assert not permissions.access.may("publish", "b")


def test_rules_of_a_user_count_when_they_change(rig):
    rig.controller.set("ada", [ALLOW_A])
    permissions, other = rig.permissions(), rig.permissions("bob")
    assert permissions.reads("a/b")
    assert not permissions.reads("c")
    changes = rig.changes
    rig.controller.set("ada", [ALLOW_A, DENY_B])
    assert not permissions.reads("a/b")
    assert rig.changes == changes + 1
    rig.controller.set("ada")
    assert permissions.access is None
    rig.controller.set("bob", [ALLOW_A])
    assert permissions.access is None
    assert not other.reads("c")


def test_metadata_that_changes_nobodys_rules_changes_nothing(rig):
    rig.controller.set("ada", [ALLOW_A])
    access, changes = rig.permissions().access, rig.changes
    rig.controller.set("bob")
    rig.controller.listener()
    assert rig.changes == changes
    assert rig.permissions().access is access


def test_a_user_with_rules_that_is_removed_may_do_nothing_any_more(rig):
    rig.controller.set("ada", [ALLOW_A])
    rig.controller.set("bob")
    ada, bob = rig.permissions(), rig.permissions("bob")
    rig.controller.remove("ada")
    rig.controller.remove("bob")
    assert ada.access is NOTHING
    assert bob.access is None
    rig.controller.set("ada", [ALLOW_A])
    assert ada.reads("a/b")


@pytest.mark.parametrize("rules", [(), ([ALLOW_A],)], ids=["without rules", "with rules"])
def test_a_user_of_the_configuration_outlives_one_of_the_cluster_of_the_same_name(rig, rules):
    """Open connections of a user that was moved into the file could do nothing any more, until they came again."""
    rig.controller.set("ada", *rules)
    before = rig.permissions()
    rig.control.has_own = lambda name: name == "ada"
    after = rig.permissions()
    rig.controller.remove("ada")
    assert after.access is None
    if not rules:
        assert before.access is None


def test_rules_that_are_not_understood_allow_nothing(rig):
    rig.controller.found["ada"] = User(name="ada", password="", rights={"access": {"since": "v9"}})
    rig.controller.listener()
    assert rig.permissions().access is NOTHING
    rig.controller.set("ada", [ALLOW_A])
    permissions = rig.permissions()
    rig.controller.found["ada"] = User(name="ada", password="", rights={"access": {"since": "v9"}})
    rig.controller.listener()
    assert permissions.access is NOTHING


def test_the_client_and_the_device_are_told_apart(rig):
    rig.controller.set("ada", [{"effect": "allow", "filters": ["${client_id}/${device}"]}])
    permissions = rig.control.permissions(Principal(name="ada", device="d9"), client_id="c1", protocol="mqtt")
    assert permissions.reads("c1/d9")
    assert not permissions.reads("c1/ada")
    assert permissions.identity == Identity(name="ada", client_id="c1", device="d9", protocol="mqtt", ruled=True)


@pytest.mark.slow
def test_permissions_are_forgotten_with_their_connections(rig):
    granted = [rig.permissions() for _ in range(10)]
    assert len(rig.control._permissions) == 10
    del granted
    gc.collect()
    assert len(rig.control._permissions) == 0


def test_a_will_is_looked_at_by_the_rules_of_now(rig):
    identity = Identity(name="ada", protocol="mqtt")
    rig.control.check_publisher(identity, Message("c"))
    rig.controller.set("ada", [ALLOW_A])
    rig.control.check_publisher(identity, Message("a/x"))
    with pytest.raises(Refusal):
        rig.control.check_publisher(identity, Message("c"))


def test_a_will_of_a_user_with_rules_that_was_removed_is_denied(rig):
    rig.controller.set("ada", [ALLOW_A])
    who = rig.permissions().identity
    rig.control.check_publisher(who, Message("a/x"))
    rig.controller.set("ada")
    rig.control.check_publisher(who, Message("c"))
    rig.controller.remove("ada")
    with pytest.raises(Refusal):
        rig.control.check_publisher(who, Message("a/x"))


def test_denials_are_counted_and_said_once_a_second(rig):
    rig.controller.set("ada", [ALLOW_A])
    permissions = rig.permissions(client_id="c1")
    with structlog.testing.capture_logs() as lines:
        for _ in range(5):
            permissions.refusal("publish", "secret")
        rig.now_s += 2
        permissions.refusal("subscribe", "x" * 1_000, 3)
    assert rig.denied("publish") == 5
    assert rig.denied("subscribe") == 3
    assert [(line["action"], line["user"], line["client"], line["more"]) for line in lines] == [
        ("publish", "ada", "c1", 0),
        ("subscribe", "ada", "c1", 4),
    ]
    assert len(lines[1]["address"]) < 300


def test_rules_of_a_new_configuration_count_for_all_who_are_there():
    control = AccessControlRig(AccessConfig())
    shown = [control.permissions(), control.permissions(""), control.control.unauthenticated("mqtt").permissions]
    assert [one.access for one in shown] == [None] * 3
    control.control.reload(AccessConfig(default="deny", rules=(AccessRule(effect="allow", filters=("a",)),)))
    assert [one.access.may("publish", "b") for one in (*shown, control.permissions())] == [False] * 4
    assert control.changes == 1
    control.control.reload(AccessConfig())
    assert [one.access for one in shown] == [None] * 3


def test_whose_user_is_gone_may_do_nothing_under_other_rules_either(rig):
    permissions = rig.permissions()
    rig.controller.set("ada", [ALLOW_A])  # after it has come
    rig.controller.remove("ada")
    assert permissions.access is NOTHING
    rig.control.reload(AccessConfig(default="allow"))
    assert permissions.access is NOTHING


def test_work_for_a_user_of_the_cluster_ends_with_its_user(rig):
    """With rules or without: the connections of a removed user are closed, but a subscription with a sink goes on."""
    rig.controller.set("bob")
    owner = rig.control.owner(rig.permissions("bob").identity)
    work, own = rig.control.permissions_of(owner), rig.permissions("bob")
    before = work.access
    assert before is own.access is not NOTHING
    rig.controller.remove("bob")
    assert work.access is NOTHING
    assert own.access is before, "a connection with a token of that name, perhaps"
    assert rig.control.permissions_of(owner).access is NOTHING, "after a restart, too"
    rig.controller.set("bob")
    assert work.access is before
    rig.control.has_own = lambda name: name == "bob"
    assert not rig.control.owner(rig.permissions("bob").identity).ruled
    assert not rig.control.owner(rig.permissions("somebody").identity).ruled
