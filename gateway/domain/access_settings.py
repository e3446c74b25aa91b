"""The settings of access: `[access]`, and the permissions among the rights of a user of the cluster."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gateway.domain.access_names import VhostPermission, name_mistakes
from gateway.domain.errors import Refusal
from gateway.domain.filters import check_filter
from gateway.domain.vhosts import vhost_address

ACCESS = "access"  # the name of `OwnAccess` among a user's rights
EVERYBODY = "*"
PLACEHOLDERS = ("client_id", "username", "device")
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")

Action: TypeAlias = Literal["publish", "subscribe", "manage"]
ACTIONS: tuple[Action, ...] = ("publish", "subscribe", "manage")


class Permission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action on addresses that is allowed or denied."""

    effect: Annotated[Literal["allow", "deny"], Meta(description="a deny wins over every allow")]
    actions: Annotated[
        tuple[Literal["publish", "subscribe", "manage", "all"], ...],
        Meta(description="publish, subscribe (any reading), manage (declare, bind, purge, delete), all"),
    ] = ("all",)
    filters: Annotated[
        tuple[str, ...], Meta(min_length=1, description="address filters, with ${client_id}, ${username}, ${device}")
    ]

    def names(self, action: Action) -> bool:
        """Returns whether the permission is about an action."""
        return action in self.actions or "all" in self.actions


class AccessRule(Permission, frozen=True, kw_only=True):
    """`[[access.rules]]`. It applies to all clients unless it names some."""

    users: Annotated[tuple[str, ...], Meta(description='names; "*" is everybody with a name')] = ()
    anonymous: Annotated[bool | None, Meta(description="whether clients without a name are meant")] = None
    protocols: Annotated[tuple[str, ...], Meta(description="mqtt, coap, http, amqp; none: all of them")] = ()

    def is_meant_for(self, name: str, protocol: str) -> bool:
        """Returns whether the rule is meant for a client; "" is the name of one that has none."""
        if self.protocols and protocol not in self.protocols:
            return False
        if not name:
            return not self.users if self.anonymous is None else self.anonymous
        if not self.users:
            return not self.anonymous
        return name in self.users or EVERYBODY in self.users


class AccessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[access]`: the rights to publish, read and manage."""

    default: (
        Annotated[Literal["allow", "deny"], Meta(description="where no rule says anything; needed as soon as one is")]
        | None
    ) = None
    rules: Annotated[tuple[AccessRule, ...], Meta(description="rules: [[access.rules]]")] = ()


class OwnAccess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The permissions of one user of the cluster: rules, and the answer where no rule applies."""

    otherwise: Literal["allow", "deny"]
    rules: tuple[Permission, ...] = ()
    vhosts: tuple[VhostPermission, ...] = ()


def access_mistakes(config: AccessConfig, protocols: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of a configuration: keys, and remedies. `protocols` are those that exist."""
    if config.rules and config.default is None:
        yield "access.default", 'is missing; with rules, write what counts where they say nothing: "allow" or "deny"'
    for i, rule in enumerate(config.rules):
        for key, mistake in _mistakes(rule):
            yield f"access.rules[{i}].{key}", mistake
        for protocol in rule.protocols:
            if protocol not in protocols:
                yield f"access.rules[{i}].protocols", f"{protocol!r} is none of {', '.join(sorted(protocols))}"
        if "" in rule.users:
            yield f"access.rules[{i}].users", "a user has a name; write anonymous = true for clients without one"


def _mistakes(permission: Permission) -> Iterator[tuple[str, str]]:
    if not permission.actions:
        yield "actions", f"is empty; write some of {', '.join(ACTIONS)}, or all"
    if not permission.filters:
        yield "filters", 'is empty; write address filters, such as "devices/${client_id}/#"'
    for pattern in permission.filters:
        for name in PLACEHOLDER.findall(pattern):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"${{{one}}}" for one in PLACEHOLDERS)
                yield "filters", f"{pattern!r}: ${{{name}}} is unknown; {known} are known"
        plain = PLACEHOLDER.sub("x", pattern)
        if "${" in plain:
            yield "filters", f"{pattern!r}: nothing closes a ${{; write }} behind the name"
        try:
            check_filter(plain)
        except Refusal as refusal:
            yield "filters", f"{pattern!r} is no address filter: {refusal}"


def read_permission(effect: Literal["allow", "deny"], text: str) -> Permission:
    """Parses a permission of the command line: `publish:devices/+/x`, `publish,subscribe:a/#`, `all:#`.

    Raises ValueError.
    """
    actions, colon, pattern = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r}: write ACTION:FILTER, such as publish:devices/+/x")
    for action in actions.split(","):
        if action not in {*ACTIONS, "all"}:
            raise ValueError(f"{text!r}: {action!r} is no action; write some of {', '.join(ACTIONS)}, or all")
    return own_access(
        {"otherwise": "deny", "rules": [{"effect": effect, "actions": actions.split(","), "filters": [pattern]}]}
    ).rules[0]


def own_access(said: Any) -> OwnAccess:
    """Parses the permissions among a user's rights. Raises ValueError for rules that cannot be parsed."""
    try:
        own = msgspec.convert(said, OwnAccess)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    for permission in own.rules:
        for key, mistake in _mistakes(permission):
            raise ValueError(f"{key}: {mistake}")
    for mistake in name_mistakes(own.vhosts):
        raise ValueError(mistake)
    return own


def without_vhost(own: OwnAccess, vhost: str) -> OwnAccess:
    """Returns the permissions without those to allow in a virtual host other than "/". Denials stay."""
    below = f"{vhost_address(vhost)}/"
    rules: list[Permission] = []
    for rule in own.rules:
        kept = rule.filters if rule.effect == "deny" else [one for one in rule.filters if not one.startswith(below)]
        if kept:
            rules.append(msgspec.structs.replace(rule, filters=tuple(kept)))
    vhosts = tuple(one for one in own.vhosts if one.vhost != vhost)
    return msgspec.structs.replace(own, rules=tuple(rules), vhosts=vhosts)


def rights_of(own: OwnAccess) -> Mapping[str, Any]:
    """Returns the same as plain values, for `controller.api.client.User.rights`."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(own))
    if not own.vhosts:
        del plain["vhosts"]
    return plain
