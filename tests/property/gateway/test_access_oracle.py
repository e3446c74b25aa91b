"""Access rules against the naive reading of what they say; what filters have in common, against addresses."""

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.domain.access import AccessRules, Identity
from gateway.domain.access_filters import covers, levels_of, meet, touches
from gateway.domain.access_filters import matches as level_matches
from gateway.domain.access_settings import AccessConfig, AccessRule, OwnAccess, Permission
from gateway.domain.filters import matches

LEVELS = st.sampled_from(["a", "b", "", "c1", "ada", "$x"])
ADDRESSES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
PLAIN = st.sampled_from(["a", "b", "", "c1", "+", "$x"])
PLACED = st.sampled_from(["a", "b", "+", "${client_id}", "${username}", "x-${device}", "${client_id}${device}"])
VALUES = st.one_of(
    st.sampled_from(["", "a", "c1", "ada", "a/b", "+", "#", "$x", "x+"]), st.text("ab/+#$\0", max_size=3)
)
IDENTITIES = st.builds(
    Identity, name=VALUES, client_id=VALUES, device=VALUES, protocol=st.sampled_from(["mqtt", "http"])
)


@st.composite
def filters(draw, levels=PLAIN):
    found = draw(st.lists(levels, min_size=1, max_size=4))
    if draw(st.booleans()):
        found.append("#")
    return "/".join(found) or "a"


def permissions(kind, **more):
    return st.builds(
        kind,
        effect=st.sampled_from(["allow", "deny"]),
        actions=st.lists(
            st.sampled_from(["publish", "subscribe", "manage", "all"]), min_size=1, max_size=2, unique=True
        ).map(tuple),
        filters=st.lists(filters(PLACED), min_size=1, max_size=2).map(tuple),
        **more,
    )


RULES = permissions(
    AccessRule,
    users=st.sampled_from([(), ("*",), ("ada",), ("bob", "a")]),
    anonymous=st.sampled_from([None, True, False]),
    protocols=st.sampled_from([(), ("mqtt",), ("http", "coap")]),
)
OWN = st.none() | st.builds(
    OwnAccess,
    otherwise=st.sampled_from(["allow", "deny"]),
    rules=st.lists(permissions(Permission), max_size=3).map(tuple),
)


def sound(value, *, first):
    return bool(value) and not any(c in value for c in "/+#\0") and not (first and value.startswith("$"))


def naive_filter(pattern, identity):
    """Returns the filter for one client; returns None where a value is not one plain level."""
    said = {"client_id": identity.client_id, "username": identity.name, "device": identity.device}
    result = []
    for level in pattern.split("/"):
        text = level
        for name, value in said.items():
            if f"${{{name}}}" in level:
                if not sound(value, first=level.startswith(f"${{{name}}}")):
                    return None
                text = text.replace(f"${{{name}}}", value)
        result.append(text)
    return "/".join(result)


def naive(config, own, identity, action, address):
    """Returns the naive verdict on an address; None where a deny cannot be read without a value."""
    said = []
    for rule in config.rules:
        named = identity.name in rule.users or (identity.name != "" and "*" in rule.users)
        if not identity.name:
            named = rule.anonymous if rule.anonymous is not None else rule.users == ()
        elif not rule.users:
            named = rule.anonymous is not True
        if named and (not rule.protocols or identity.protocol in rule.protocols):
            said.append(rule)
    said += own.rules if own is not None else ()
    said = [one for one in said if action in one.actions or "all" in one.actions]
    unclear = False
    for one in said:
        for pattern in one.filters if one.effect == "deny" else ():
            placed = naive_filter(pattern, identity)
            unclear = unclear or placed is None
            if placed is not None and matches(placed, address):
                return False
    allows = [naive_filter(pattern, identity) for one in said if one.effect == "allow" for pattern in one.filters]
    allowed = any(placed is not None and matches(placed, address) for placed in allows)
    if not allowed and (config.default == "deny" or (own is not None and own.otherwise == "deny")):
        return False
    return None if unclear else True


@given(
    st.lists(RULES, max_size=5).map(tuple),
    st.sampled_from(["allow", "deny"]),
    OWN,
    IDENTITIES,
    st.tuples(st.sampled_from(["publish", "subscribe", "manage"]), ADDRESSES),
)
def test_rules_mean_what_they_say(rules, default, own, identity, asked):
    """A deny with a value that is not plain: the test asks only that nothing is newly allowed."""
    action, address = asked
    config = AccessConfig(default=default, rules=rules)
    access = AccessRules(config).access(identity, own)
    allowed = access is None or access.may(action, address)
    expected = naive(config, own, identity, action, address)
    if expected is not None:
        assert allowed is expected
    if access is not None:
        assert access.may(action, address) is allowed  # once more, as remembered
        assert access.explain(action, address).allowed is allowed


@given(filters(PLACED), VALUES, VALUES, ADDRESSES)
def test_an_allow_with_any_value_matches_no_more_than_with_some_plain_one(pattern, client_id, device, address):
    """Whatever a client calls itself, it stays within what the rule's writer had in mind: one level a placeholder."""
    identity = Identity(name="ada", client_id=client_id, device=device)
    config = AccessConfig(default="deny", rules=(AccessRule(effect="allow", filters=(pattern,)),))
    access = AccessRules(config).access(identity)
    assert access is not None
    if access.may("publish", address):
        widest = "/".join("+" if "${" in level else level for level in pattern.split("/"))
        assert matches(widest, address)


@given(filters(PLACED), VALUES, VALUES, ADDRESSES)
def test_a_deny_with_an_unsound_value_denies_all_that_it_would_with_any_plain_one(pattern, client_id, device, address):
    identity = Identity(name="ada", client_id=client_id, device=device)
    assume(naive_filter(pattern, identity) is None)
    config = AccessConfig(default="allow", rules=(AccessRule(effect="deny", filters=(pattern,)),))
    access = AccessRules(config).access(identity)
    assert access is not None
    for one, other in (("a", "b"), ("c1", "c1"), ("b", "ada")):
        placed = naive_filter(pattern, Identity(name="ada", client_id=one, device=other))
        if matches(placed, address):
            assert not access.may("publish", address)


@given(filters(), ADDRESSES)
def test_levels_match_as_the_trie_does(pattern, address):
    assert level_matches(levels_of(pattern), address.split("/")) is matches(pattern, address)


@given(filters(), filters(), ADDRESSES)
def test_the_common_filter_matches_what_both_do(one, other, address):
    common = meet(levels_of(one), levels_of(other))
    both = matches(one, address) and matches(other, address)
    assert both is (common is not None and level_matches(common, address.split("/")))


@given(filters(), st.lists(st.sampled_from(["a", "b", "+", "#", "$x"]), min_size=1, max_size=5), ADDRESSES)
def test_what_is_covered_is_matched_and_what_both_match_is_seen(wide, narrow, address):
    """`narrow` is a pattern of AMQP, with `#` anywhere."""
    pattern = "/".join(narrow)
    if matches(pattern, address):
        if covers(levels_of(wide), levels_of(pattern)):
            assert matches(wide, address)
        if matches(wide, address):
            assert touches(levels_of(wide), levels_of(pattern))
            assert touches(levels_of(pattern), levels_of(wide))


@given(st.lists(RULES, max_size=5).map(tuple), st.sampled_from(["allow", "deny"]), IDENTITIES, filters(), ADDRESSES)
def test_a_filter_reaches_what_it_matches_and_may_be_read(rules, default, identity, pattern, address):
    access = AccessRules(AccessConfig(default=default, rules=rules)).access(identity)
    if access is not None and matches(pattern, address):
        if access.may("subscribe", address):
            assert access.reaches("subscribe", pattern)
        if access.reaches_all("subscribe", pattern):
            assert access.may("subscribe", address)
