"""Policies: rules for queues and exchanges by their names, for what their declarations do not say.

As in RabbitMQ, the policy of the highest priority that matches applies, and no other; an operator's policy applies
beside it. Of limits the smallest counts, whoever says it; for the rest the declaration comes first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gateway.domain.errors import Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, check_vhost, split_name
from gateway.queues.leaving.rules import QueueRules, check_queue_arguments, rules_of

ALTERNATE: Final = "alternate-exchange"
_LIMITS: Final = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
_OTHERS: Final = ("overflow", "dead-letter-exchange", "dead-letter-routing-key")

_Name = Annotated[str, Meta(min_length=1)]


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[queues.policies]]` and `[[queues.operator_policies]]`: rules for queues and exchanges by their names."""

    name: Annotated[_Name, Meta(description="names it in messages")]
    vhost: Annotated[str, Meta(description="the virtual host whose queues and exchanges it is for")] = DEFAULT_VHOST
    pattern: Annotated[str, Meta(description="a regular expression that is found in the names that it is for")]
    apply_to: Annotated[
        Literal["queues", "exchanges", "all"], Meta(description="what it is for: queues, exchanges, or all")
    ] = "all"
    priority: Annotated[int, Meta(description="of several that match, the highest applies alone")] = 0
    definition: Annotated[
        Mapping[str, Any],
        Meta(description="message-ttl, expires, max-length, max-length-bytes, overflow, dead-letter-exchange, ..."),
    ] = msgspec.field(default_factory=dict)


class QueuesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[queues]`: virtual hosts, and rules for named queues and exchanges that their declarations do not say."""

    vhosts: Annotated[
        tuple[str, ...], Meta(description='virtual hosts besides "/"; what is in one stays when it is taken out')
    ] = ()
    policies: tuple[PolicyConfig, ...] = ()
    operator_policies: tuple[PolicyConfig, ...] = ()


class Policies:
    """The policies of users and of operators. `creates_topics`: dead letters make topics that are missing."""

    def __init__(self, config: QueuesConfig, *, creates_topics: bool = True) -> None:
        self.creates_topics = creates_topics
        self.vhosts = config.vhosts
        self.config = config
        self._users = _sorted(config.policies)
        self._operators = _sorted(config.operator_policies)

    def rules(self, name: str, arguments: Mapping[str, Any]) -> QueueRules:
        """Returns the rules of a queue that was declared with these arguments."""
        user, operator = _of(self._users, name, "queues"), _of(self._operators, name, "queues")
        if not user and not operator:
            return rules_of(arguments)
        merged = {f"x-{key}": user[key] for key in _OTHERS if key in user}
        if "x-dead-letter-exchange" in arguments:  # which messages of it go there is the declaration's to say
            merged.pop("x-dead-letter-routing-key", None)
        merged |= arguments
        for key in _LIMITS:
            said = [one for one in (arguments.get(f"x-{key}"), user.get(key), operator.get(key)) if one is not None]
            if said:
                merged[f"x-{key}"] = min(said)
        return rules_of(merged)

    def alternate(self, name: str) -> str | None:
        """Returns the alternate of an exchange whose declaration names none."""
        found: str | None = _of(self._users, name, "exchanges").get(ALTERNATE)
        return found


def _sorted(policies: Sequence[PolicyConfig]) -> list[tuple[re.Pattern[str], PolicyConfig]]:
    return [(re.compile(one.pattern), one) for one in sorted(policies, key=lambda one: -one.priority)]


def _of(policies: Sequence[tuple[re.Pattern[str], PolicyConfig]], name: str, kind: str) -> Mapping[str, Any]:
    """Returns the definition of the first policy for a name, which is empty where there is none."""
    vhost, local = split_name(name)
    for pattern, policy in policies:
        if policy.vhost == vhost and policy.apply_to in {kind, "all"} and pattern.search(local):
            return policy.definition
    return {}


def policy_mistakes(config: QueuesConfig) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of virtual hosts and policies: the key, and what to write."""
    for vhost in config.vhosts:
        try:
            check_vhost(vhost)
        except ValueError as error:
            yield "queues.vhosts", str(error)
    for section, policies in (("policies", config.policies), ("operator_policies", config.operator_policies)):
        for policy in policies:
            for key, mistake in policy_mistakes_of(policy, operator=section == "operator_policies"):
                yield f"queues.{section}.{policy.name}.{key}", mistake


def known_keys(*, operator: bool) -> tuple[str, ...]:
    """Returns the keys that a definition may have."""
    return _LIMITS if operator else (*_LIMITS, *_OTHERS, ALTERNATE)


def policy_mistakes_of(policy: PolicyConfig, *, operator: bool) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of one policy: the key in it, and what to write."""
    known = known_keys(operator=operator)
    try:
        re.compile(policy.pattern)
    except re.error as error:
        yield "pattern", f"{policy.pattern!r} is no regular expression: {error}"
    if unknown := sorted(set(policy.definition) - set(known)):
        yield "definition", f"{unknown[0]!r} is not among {', '.join(known)}"
    elif why := _why_not(policy.definition):
        yield "definition", why


def _why_not(definition: Mapping[str, Any]) -> str | None:
    """Returns why a definition means nothing; None where it does."""
    alternate = definition.get(ALTERNATE, "")
    if not isinstance(alternate, str):
        return f"{ALTERNATE} is the name of an exchange, not {alternate!r}"
    try:
        check_queue_arguments({f"x-{key}": value for key, value in definition.items() if key != ALTERNATE})
    except Refusal as refusal:
        return refusal.detail
    return None


NO_POLICIES: Final = Policies(QueuesConfig())
