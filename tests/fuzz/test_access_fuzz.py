"""Whatever rules are written, and whatever clients call themselves: an answer, and never more than is said."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule, access_mistakes, own_access, read_permission
from gateway.domain.errors import Refusal
from store.api.message import Message

TEXT = st.text(st.one_of(st.sampled_from("/+#$ab{}\0"), st.characters()), max_size=12)
PIECES = st.sampled_from(["${client_id}", "${username}", "${device}", "${", "}", "/", "+", "#", "$", "a", "\0", "${x}"])
PATTERNS = st.one_of(TEXT, st.lists(PIECES, max_size=6).map("".join))
IDENTITIES = st.builds(Identity, name=TEXT, client_id=TEXT, device=TEXT, protocol=st.just("mqtt"))
RULES = st.lists(
    st.builds(
        AccessRule,
        effect=st.sampled_from(["allow", "deny"]),
        filters=st.lists(PATTERNS, max_size=3).map(tuple),
        users=st.lists(TEXT, max_size=2).map(tuple),
    ),
    max_size=4,
).map(tuple)


@given(RULES, st.sampled_from(["allow", "deny"]), IDENTITIES, TEXT, TEXT)
def test_any_rules_give_an_answer(rules, default, identity, address, pattern):
    config = AccessConfig(default=default, rules=rules)
    mistakes = list(access_mistakes(config, {"mqtt"}))
    permissions = Permissions(identity, AccessRules(config).access(identity))
    permissions.reads(address)
    assert len(permissions.refused([Message(address, b""), Message(address, b"")])) in (0, 2)
    if not mistakes:
        for check in (permissions.check_filter, lambda one: permissions.check_all("subscribe", one)):
            with contextlib.suppress(Refusal):
                check(pattern or "a")


@given(PATTERNS, TEXT, TEXT)
def test_a_clients_name_for_itself_is_never_more_than_a_level(pattern, client_id, address):
    """Of rules that a configuration may have: what a client is allowed has as many levels as the rule says."""
    config = AccessConfig(default="deny", rules=(AccessRule(effect="allow", filters=(pattern,)),))
    if list(access_mistakes(config, {"mqtt"})):
        return
    access = AccessRules(config).access(Identity(client_id=client_id))
    if access is None or not access.may("publish", address):
        return
    wanted, found = pattern.split("/"), address.split("/")
    if wanted[-1] != "#":
        assert len(found) == len(wanted)
    for level, one in zip(wanted, found, strict=False):
        if level not in ("+", "#") and "${" not in level:
            assert level == one
    assert not (address.startswith("$") and not wanted[0].startswith("$"))


@given(st.one_of(TEXT, st.dictionaries(TEXT, st.none() | TEXT | st.dictionaries(TEXT, TEXT, max_size=2), max_size=3)))
def test_rights_are_rules_or_a_mistake(said):
    for read in (own_access, lambda text: read_permission("allow", str(text))):
        with contextlib.suppress(ValueError):
            read(said)
