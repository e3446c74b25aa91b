"""Access rules: what is said of a client, an address, a filter."""

import pytest

from gateway.domain.access import NOTHING, OPEN, AccessRules, Decision, Identity, Permissions
from gateway.domain.access_settings import (
    AccessConfig,
    AccessRule,
    OwnAccess,
    access_mistakes,
    own_access,
    read_permission,
)
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message


def rule(effect, *filters, actions=("all",), users=(), anonymous=None, protocols=()):
    return AccessRule(
        effect=effect, filters=filters, actions=actions, users=users, anonymous=anonymous, protocols=protocols
    )


def access(*rules, default="deny", own=None, **who):
    identity = Identity(**{"name": "ada", "client_id": "c1", "device": "d1", "protocol": "mqtt", **who})
    return AccessRules(AccessConfig(default=default, rules=rules)).access(identity, own)


@pytest.mark.parametrize(
    ("default", "rules", "address", "allowed"),
    [
        ("deny", [], "a", False),
        ("deny", [rule("allow", "a/#")], "a", True),
        ("deny", [rule("allow", "a/#")], "a/b/c", True),
        ("deny", [rule("allow", "a/#")], "b", False),
        ("deny", [rule("allow", "a/+")], "a/b/c", False),
        ("deny", [rule("allow", "a/+")], "a/", True),
        ("deny", [rule("allow", "#")], "$SYS/x", False),
        ("deny", [rule("allow", "+/x")], "$SYS/x", False),
        ("deny", [rule("allow", "$SYS/#")], "$SYS/x", True),
        ("deny", [rule("allow", "#"), rule("deny", "a/secret/#")], "a/secret/x", False),
        ("deny", [rule("deny", "a/secret/#"), rule("allow", "#")], "a/secret/x", False),
        ("deny", [rule("deny", "a/secret/#"), rule("allow", "#")], "a/x", True),
        ("allow", [rule("deny", "a/#")], "a/b", False),
        ("allow", [rule("deny", "a/#")], "b", True),
        ("allow", [rule("deny", "#")], "$queue/x", True),
        ("allow", [rule("deny", "$queue/#")], "$queue/x", False),
        ("deny", [rule("allow", "devices/${client_id}/#")], "devices/c1/x", True),
        ("deny", [rule("allow", "devices/${client_id}/#")], "devices/c2/x", False),
        ("deny", [rule("allow", "${username}/${device}")], "ada/d1", True),
        ("deny", [rule("allow", "x/dev-${device}.${username}/+")], "x/dev-d1.ada/y", True),
        ("deny", [rule("allow", "x/dev-${device}/+")], "x/dev-+/y", False),
        ("deny", [rule("allow", "a", protocols=("http",))], "a", False),
        ("deny", [rule("allow", "a", protocols=("http", "mqtt"))], "a", True),
        ("deny", [rule("allow", "a", users=("bob",))], "a", False),
        ("deny", [rule("allow", "a", users=("bob", "ada"))], "a", True),
        ("deny", [rule("allow", "a", users=("*",))], "a", True),
        ("deny", [rule("allow", "a", anonymous=True)], "a", False),
        ("deny", [rule("allow", "a", anonymous=False)], "a", True),
    ],
)
def test_a_table_of_rules(default, rules, address, allowed):
    found = access(*rules, default=default)
    assert found is not None
    for action in ("publish", "subscribe", "manage"):
        assert found.may(action, address) is allowed
        assert found.explain(action, address).allowed is allowed


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, True),
        ({"anonymous": True}, True),
        ({"anonymous": False}, False),
        ({"users": ("*",)}, False),
        ({"users": ("ada",)}, False),
        ({"users": ("ada",), "anonymous": True}, True),
    ],
)
def test_for_whom_without_a_name(said, meant):
    found = access(rule("allow", "a", **said), name="")
    assert found.may("publish", "a") is meant


def test_an_action_is_allowed_by_its_own_rules():
    found = access(rule("allow", "a", actions=("publish",)), rule("allow", "b", actions=("subscribe", "manage")))
    assert [found.may(action, "a") for action in ("publish", "subscribe", "manage")] == [True, False, False]
    assert [found.may(action, "b") for action in ("publish", "subscribe", "manage")] == [False, True, True]


def test_nothing_restricts_where_no_rule_is_meant():
    assert access(default=None) is None
    assert access(default="allow") is None
    assert access(rule("allow", "a"), default="allow") is None  # allowed anyway
    assert access(rule("deny", "a", users=("bob",)), default="allow") is None
    assert access(rule("deny", "a", users=("bob",)), default="allow", name="bob") is not None


@pytest.mark.parametrize("value", ["", "a/b", "+", "#", "x+", "x#y", "$x", "\0", "/", "a\0b"])
def test_an_unsound_value_never_widens(value):
    """An allow matches nothing then; a deny matches more than it would."""
    found = access(rule("allow", "devices/${client_id}/x", "${client_id}/x", "${client_id}"), client_id=value)
    for address in ("devices/c1/x", f"devices/{value}/x", f"{value}/x", value, "devices/+/x", "$x/x", "/x"):
        assert not found.may("publish", address)
    found = access(rule("deny", "devices/${client_id}/x"), default="allow", client_id=value)
    assert not found.may("publish", f"devices/{value}/x")
    assert not found.may("publish", "devices/c1/x")
    assert found.may("publish", "other")
    found = access(rule("deny", "${client_id}/x"), default="allow", client_id=value)
    assert not found.may("publish", f"{value}/x")
    assert not found.may("publish", "c1/x")


def test_a_value_that_is_missing_denies_for_every_value_it_could_have():
    found = access(rule("deny", "devices/${client_id}/secret"), default="allow", client_id="")
    assert not found.may("subscribe", "devices/c7/secret")
    assert found.may("subscribe", "devices/c7/open")


def test_a_dollar_behind_other_text_is_plain():
    found = access(rule("allow", "a/x-${client_id}"), client_id="$1")
    assert found.may("publish", "a/x-$1")


def test_a_value_is_not_expanded_again():
    found = access(rule("allow", "a/x${client_id}"), client_id="${username}")
    assert not found.may("publish", "a/xada")
    assert found.may("publish", "a/x${username}")


@pytest.mark.parametrize(
    ("default", "rules", "pattern", "reached"),
    [
        ("deny", [rule("allow", "a/#")], "a/+/c", True),
        ("deny", [rule("allow", "a/#")], "#", True),
        ("deny", [rule("allow", "a/#")], "b/#", False),
        ("deny", [rule("allow", "a/#")], "a", True),
        ("deny", [rule("allow", "a/b")], "+/b", True),
        ("deny", [rule("allow", "a/b")], "+/c", False),
        ("deny", [rule("allow", "a/b")], "a/b/+", False),
        ("deny", [rule("allow", "$SYS/#")], "#", False),
        ("deny", [rule("allow", "$SYS/#")], "$SYS/+/x", True),
        ("deny", [rule("allow", "a/#"), rule("deny", "a/b/#")], "a/b/+", False),
        ("deny", [rule("allow", "a/#"), rule("deny", "a/b/#")], "a/+", True),
        ("deny", [rule("allow", "a/+"), rule("deny", "#")], "#", False),
        ("allow", [rule("deny", "a/#")], "a/b", False),
        ("allow", [rule("deny", "a/#")], "#", True),
        ("allow", [rule("deny", "#")], "+/x", False),
        ("allow", [rule("deny", "#")], "$SYS/x", True),
    ],
)
def test_which_filters_reach_something(default, rules, pattern, reached):
    assert access(*rules, default=default).reaches("subscribe", pattern) is reached


@pytest.mark.parametrize(
    ("default", "rules", "pattern", "all_"),
    [
        ("deny", [rule("allow", "a/#")], "a/+/c", True),
        ("deny", [rule("allow", "a/#")], "a/#/c", True),
        ("deny", [rule("allow", "a/#")], "#", False),
        ("deny", [rule("allow", "a/+")], "a/#", False),
        ("deny", [rule("allow", "a/+")], "a/+", True),
        ("deny", [rule("allow", "a/+")], "+/+", False),
        ("deny", [rule("allow", "#")], "#/x/#", True),
        ("deny", [rule("allow", "#")], "$amqp/x/#", False),
        ("deny", [rule("allow", "$amqp/x/#")], "$amqp/x/a/#/b", True),
        ("deny", [rule("allow", "a/#"), rule("deny", "a/+/secret")], "a/b/#", False),
        ("deny", [rule("allow", "a/#"), rule("deny", "a/+/secret")], "a/b/c", True),
        ("deny", [rule("allow", "a/#"), rule("deny", "a/x/y")], "a/#/y", False),
        ("allow", [rule("deny", "a/x")], "b/#", True),
        ("allow", [rule("deny", "a/x")], "#/x", False),
    ],
)
def test_which_filters_may_be_read_as_a_whole(default, rules, pattern, all_):
    assert access(*rules, default=default).reaches_all("subscribe", pattern) is all_


def test_the_rule_that_decides_is_named():
    own = OwnAccess(otherwise="deny", rules=(read_permission("allow", "publish:b/#"),))
    found = access(rule("allow", "a/#"), rule("deny", "a/x"), own=own)
    assert found.explain("publish", "a/x") == Decision(allowed=False, origin="access.rules[1]")
    assert found.explain("publish", "a/y") == Decision(allowed=True, origin="access.rules[0]")
    assert found.explain("publish", "b/y") == Decision(allowed=True, origin="rule 0 of user ada")
    assert found.explain("subscribe", "b/y") == Decision(allowed=False, origin="")


def test_a_users_own_rules_stand_beside_those_of_the_configuration():
    own = OwnAccess(otherwise="deny", rules=(read_permission("allow", "all:a/#"), read_permission("deny", "all:a/x")))
    found = access(default=None, own=own)
    assert found.may("publish", "a/y")
    assert not found.may("publish", "a/x")
    assert not found.may("publish", "b")
    assert not access(rule("deny", "a/y"), default="allow", own=own).may("publish", "a/y")
    lenient = OwnAccess(otherwise="allow", rules=(read_permission("deny", "all:a/x"),))
    assert not access(default="deny", own=lenient).may("publish", "b")  # the stricter default counts
    assert access(default="allow", own=lenient).may("publish", "b")


def test_clients_of_which_the_same_is_said_share_it():
    rules = AccessRules(AccessConfig(default="deny", rules=(rule("allow", "a/#"), rule("allow", "x/${username}"))))
    one = rules.access(Identity(name="ada", client_id="1", protocol="mqtt"))
    assert rules.access(Identity(name="ada", client_id="2", protocol="http")) is one
    assert rules.access(Identity(name="bob", client_id="2", protocol="http")) is not one


def test_answers_for_long_addresses_are_right_and_not_remembered():
    found = access(rule("allow", "a/#"))
    long = "a/" + "x" * 1_000
    assert found.may("publish", long)
    assert not found.may("publish", "b" + long)
    assert found._answers["publish"].cache_info().currsize == 0
    for n in range(20_000):
        assert found.may("publish", f"a/{n}")
    assert found._answers["publish"].cache_info().currsize <= 8_192


def test_permissions_refuse_messages_by_index_and_count_them():
    denied = []
    permissions = Permissions(
        Identity(name="ada", protocol="mqtt"),
        access(rule("allow", "a/#")),
        lambda *said: denied.append((said[0].identity.name, *said[1:])),
    )
    messages = [Message(address, b"") for address in ("a/1", "b", "a/2", "c", "b")]
    refused = permissions.refused(messages)
    assert sorted(refused) == [1, 3, 4]
    assert {one.cause for one in refused.values()} == {Cause.FORBIDDEN}
    assert sorted(denied) == [("ada", "publish", "b", 2), ("ada", "publish", "c", 1)]
    assert permissions.refused(messages[:1]) == {}
    assert [message.address for message in permissions.readable(messages)] == ["a/1", "a/2"]
    with pytest.raises(Refusal, match="to manage 'b'"):
        permissions.check("manage", "b")
    with pytest.raises(Refusal):
        permissions.check_filter("b/#")
    with pytest.raises(Refusal):
        permissions.check_all("subscribe", "#")
    permissions.check_filter("#")
    permissions.check_all("subscribe", "a/#")


def test_every_address_that_a_message_is_routed_by_is_published_to():
    closed = access(rule("deny", "closed/#"), default="allow")
    permissions = Permissions(Identity(name="ada", protocol="amqp"), closed, lambda *_: None)
    copies = [["open/b"], ["open/b", "closed/a"]]
    messages = [Message("open/a", native={"amqp": {"copies": one}}) for one in copies]
    assert list(permissions.refused(messages)) == [1]


def test_events_that_share_what_they_name_are_each_judged_by_their_address_and_their_reply():
    closed = access(rule("deny", "closed/#"), default="allow")
    permissions = Permissions(Identity(name="ada", protocol="http"), closed, lambda *_: None)
    about = {"cloudevents": {"source": "/s", "subject": "closed/a"}}
    harmless = {"cloudevents": {"source": "/s", "subject": "open/a"}}
    said = [("open/a", harmless), ("open/a", about), ("open/b", harmless), ("open/a", about), ("closed/a", harmless)]
    messages = [Message(address, native=native) for address, native in said]
    assert sorted(permissions.refused(messages)) == [1, 3, 4]
    replying = [Message("open/a", native=harmless, reply_to=to) for to in (None, "closed/r", "open/r")]
    assert sorted(permissions.refused(replying)) == [1]


def test_open_permissions_ask_nothing():
    assert OPEN.refused([Message("a", b"")]) == {}
    assert OPEN.reads("a")
    OPEN.check("publish", "a")
    OPEN.check_filter("#")
    OPEN.check_all("subscribe", "#")


def test_nothing_is_nothing():
    for address in ("a", "$queue/a", "", "/"):
        assert not NOTHING.may("publish", address)
    assert not NOTHING.reaches("subscribe", "#")
    assert not NOTHING.reaches_all("subscribe", "$kv/x/#")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (AccessConfig(rules=(rule("allow", "a"),)), "access.default"),
        (AccessConfig(default="deny", rules=(rule("allow", "a/#/b"),)), "access.rules[0].filters"),
        (AccessConfig(default="deny", rules=(rule("allow", "${user}"),)), "access.rules[0].filters"),
        (AccessConfig(default="deny", rules=(rule("allow", "a/${client_id/x"),)), "access.rules[0].filters"),
        (AccessConfig(default="deny", rules=(rule("allow", "a${client_id}+"),)), "access.rules[0].filters"),
        (AccessConfig(default="deny", rules=(rule("allow", "a", protocols=("smtp",)),)), "access.rules[0].protocols"),
        (AccessConfig(default="deny", rules=(rule("allow", "a", users=("",)),)), "access.rules[0].users"),
        (AccessConfig(default="deny", rules=(rule("allow", "a", actions=()),)), "access.rules[0].actions"),
        (AccessConfig(default="deny", rules=(rule("allow"),)), "access.rules[0].filters"),
    ],
)
def test_mistakes_are_named_by_their_keys(config, said):
    assert [key for key, _ in access_mistakes(config, {"mqtt", "http"})] == [said]


def test_a_sound_configuration_has_no_mistakes():
    good = rule("allow", "devices/${client_id}/x-${device}/#", "$kv/${username}/+", protocols=("mqtt",), users=("*",))
    assert list(access_mistakes(AccessConfig(default="deny", rules=(good,)), {"mqtt"})) == []
    assert list(access_mistakes(AccessConfig(), {"mqtt"})) == []


@pytest.mark.parametrize(
    "text", ["", "publish", "fly:a", "publish:", "publish:a/#/b", ":a", "publish,:a", "publish:${nobody}"]
)
def test_permissions_of_the_command_line_that_are_none(text):
    with pytest.raises(ValueError, match=r"."):
        read_permission("allow", text)


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"otherwise": "perhaps"},
        {"otherwise": "deny", "rules": [{"effect": "allow"}]},
        {"otherwise": "deny", "rules": [{"effect": "allow", "filters": ["a"], "until": "noon"}]},
        {"otherwise": "deny", "rules": [], "more": 1},
    ],
)
def test_rights_that_are_not_understood(said):
    with pytest.raises(ValueError, match=r"."):
        own_access(said)
