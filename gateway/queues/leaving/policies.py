"""Policies: rules for queues and exchanges by their names, for settings that their declarations leave open.

As in RabbitMQ, the policy of the highest priority that matches applies, and no other; an operator's policy applies
beside it. Of limits the smallest counts, wherever it stands; for the rest the declaration comes first. Of streams a
policy comes before the declaration. A policy with a setting that queues of a type do not have does not match these.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import Meta

from gateway.domain.errors import Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, check_vhost, split_name
from gateway.port.streams import age_ms
from gateway.queues.leaving.rules import NO_LIMIT, QueueRules, check_queue_arguments, rules_of

ALTERNATE: Final = "alternate-exchange"
_LIMITS: Final = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
_OTHERS: Final = ("overflow", "dead-letter-exchange", "dead-letter-routing-key")
MAX_AGE, MAX_BYTES = "max-age", "max-length-bytes"  # the keys that are for streams; the first is for nothing else
_NOT_OF: Final[Mapping[str, frozenset[str]]] = {  # by the kind of a queue
    "classic_queues": frozenset({MAX_AGE, "delivery-limit"}),
    "quorum_queues": frozenset({MAX_AGE}),
    "streams": frozenset((*_LIMITS, *_OTHERS)) - {MAX_BYTES},
}
NAME_CHARS_MAX: Final = 255  # of a policy's name, its pattern and a text of its definition, where it is set at run time
PRIORITY_MAX: Final = (1 << 31) - 1  # of a policy, likewise
POLICIES_COUNT_MAX: Final = 1_000  # that were set at run time, operators' included

_Kind: TypeAlias = Literal["classic_queues", "quorum_queues", "streams", "exchanges"]
_ApplyTo: TypeAlias = Literal["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"]
APPLY_TO: Final[Sequence[str]] = get_args(_ApplyTo)

_Name = Annotated[str, Meta(min_length=1)]


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[queues.policies]]` and `[[queues.operator_policies]]`: rules for queues and exchanges by their names."""

    name: Annotated[_Name, Meta(description="names it in messages")]
    vhost: Annotated[str, Meta(description="the virtual host whose queues and exchanges it is for")] = DEFAULT_VHOST
    pattern: Annotated[str, Meta(description="a regular expression that is found in the names that it is for")]
    apply_to: Annotated[
        _ApplyTo,
        Meta(description="its subjects: queues, classic_queues, quorum_queues, streams, exchanges, or all"),
    ] = "all"
    priority: Annotated[int, Meta(description="of several that match, the highest applies alone")] = 0
    definition: Annotated[
        Mapping[str, Any],
        Meta(description="message-ttl, expires, max-length, max-length-bytes, overflow, dead-letter-exchange, ..."),
    ] = msgspec.field(default_factory=dict)


class QueuesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[queues]`: virtual hosts, and rules for named queues and exchanges that their declarations do not say."""

    vhosts: Annotated[
        tuple[str, ...], Meta(description='virtual hosts besides "/"; the contents of one stay when it is taken out')
    ] = ()
    policies: tuple[PolicyConfig, ...] = ()
    operator_policies: tuple[PolicyConfig, ...] = ()


class StoredPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was set at run time, by a user or by an operator."""

    policy: PolicyConfig
    operator: bool = False

    @property
    def place(self) -> "PolicyPlace":
        """Returns its identity among all of its kind."""
        return PolicyPlace(self.policy.vhost, self.policy.name, self.operator)


class PolicyPlace(NamedTuple):
    """The virtual host and the name of a policy; `operator`: among those of operators."""

    vhost: str
    name: str
    operator: bool


class AppliedPolicies(NamedTuple):
    """The policy that applies to a queue or an exchange, and the operators' policy beside it."""

    user: PolicyConfig | None = None
    operator: PolicyConfig | None = None

    @property
    def effective(self) -> Mapping[str, Any]:
        """Returns the combined settings of both for a queue, without its arguments: of two limits the smaller one."""
        user, operator = _definition(self.user), _definition(self.operator)
        limits = {key: _smallest((user[key], operator[key])) for key in user.keys() & operator.keys()}
        found = {**user, **operator, **limits}
        return {key: found[key] for key in sorted(found) if key != ALTERNATE}


_Compiled: TypeAlias = Mapping[str, Sequence[tuple[re.Pattern[str], PolicyConfig]]]  # by vhost, highest priority first


class Policies:
    """The policies of users and of operators: those of the configuration, and those that were set at run time.

    Where both have a policy of one name, the configuration's counts. `creates_topics`: dead letters make topics that
    are missing.
    """

    def __init__(self, config: QueuesConfig, *, creates_topics: bool = True) -> None:
        self.creates_topics = creates_topics
        self.vhosts = config.vhosts
        self.configured = {
            one.place: one
            for one in (
                *(StoredPolicy(policy=policy) for policy in config.policies),
                *(StoredPolicy(policy=policy, operator=True) for policy in config.operator_policies),
            )
        }
        self.stored: Mapping[PolicyPlace, StoredPolicy] = {}
        self._users = _by_vhost(config.policies)
        self._operators = _by_vhost(config.operator_policies)
        self._config = config

    def take_over(self, stored: Collection[StoredPolicy]) -> bool:
        """Replaces the policies that were set at run time; returns whether they are others than before."""
        wanted = {one.place: one for one in stored}
        if wanted == self.stored:
            return False
        self.stored = wanted
        added = [one for place, one in sorted(wanted.items()) if place not in self.configured]
        self._users = _by_vhost([*self._config.policies, *(one.policy for one in added if not one.operator)])
        self._operators = _by_vhost([*self._config.operator_policies, *(one.policy for one in added if one.operator)])
        return True

    def applied(self, name: str, arguments: Mapping[str, Any]) -> AppliedPolicies:
        """Returns the policies that apply to a queue that was declared with these arguments."""
        kind = _KINDS.get(arguments.get("x-queue-type"), "classic_queues")
        return AppliedPolicies(_of(self._users, name, kind), _of(self._operators, name, kind))

    def rules(self, name: str, arguments: Mapping[str, Any]) -> QueueRules:
        """Returns the rules of a queue that was declared with these arguments."""
        applied = self.applied(name, arguments)
        if applied.user is None and applied.operator is None:
            return rules_of(arguments)
        user, operator = _definition(applied.user), _definition(applied.operator)
        merged = {f"x-{key}": user[key] for key in _OTHERS if key in user}
        merged |= arguments
        for key in _LIMITS:
            said = [one for one in (arguments.get(f"x-{key}"), user.get(key), operator.get(key)) if one is not None]
            if said:
                merged[f"x-{key}"] = _smallest(said)
        return rules_of(merged)

    def alternate(self, name: str) -> str | None:
        """Returns the alternate of an exchange whose declaration names none."""
        found: str | None = _definition(_of(self._users, name, "exchanges")).get(ALTERNATE)
        return found


def _by_vhost(policies: Sequence[PolicyConfig]) -> _Compiled:
    found: dict[str, list[tuple[re.Pattern[str], PolicyConfig]]] = {}
    for one in sorted(policies, key=lambda one: -one.priority):
        found.setdefault(one.vhost, []).append((re.compile(one.pattern), one))
    return found


_KINDS: Final[Mapping[object, _Kind]] = {"quorum": "quorum_queues", "stream": "streams"}  # by x-queue-type


def _of(policies: _Compiled, name: str, kind: _Kind) -> PolicyConfig | None:
    """Returns the first policy for a name; None where there is none."""
    vhost, local = split_name(name)
    for pattern, policy in policies.get(vhost, ()):
        if _is_for(policy, kind) and pattern.search(local):
            return policy
    return None


def _is_for(policy: PolicyConfig, kind: _Kind) -> bool:
    """Returns whether a policy is for queues of a type, or for exchanges, and says nothing that these do not have."""
    if kind == "exchanges":
        return policy.apply_to in {kind, "all"}
    return policy.apply_to in {kind, "queues", "all"} and _NOT_OF[kind].isdisjoint(policy.definition)


def _smallest(limits: Sequence[int]) -> int:
    """Returns the smallest of limits; "no limit" is more than any other."""
    return min(limits, key=lambda one: (one == NO_LIMIT, one))


def _definition(policy: PolicyConfig | None) -> Mapping[str, Any]:
    return {} if policy is None else policy.definition


def policy_mistakes(config: QueuesConfig) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of virtual hosts and policies: the key, and a remedy."""
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
    return _LIMITS if operator else (*_LIMITS, *_OTHERS, MAX_AGE, ALTERNATE)


def policy_mistakes_of(policy: PolicyConfig, *, operator: bool) -> Iterator[tuple[str, str]]:
    """Yields the mistakes of one policy: the key in it, and a remedy."""
    known = known_keys(operator=operator)
    try:
        re.compile(policy.pattern)
    except re.error as error:
        yield "pattern", f"{policy.pattern!r} is no regular expression: {error}"
    if unknown := sorted(set(policy.definition) - set(known)):
        yield "definition", f"{unknown[0]!r} is not among {', '.join(known)}"
    elif why := _why_not(policy.definition):
        yield "definition", why


def check_stored(one: StoredPolicy) -> StoredPolicy:
    """Returns a policy that may be set at run time. Raises ValueError, with one sentence."""
    policy = one.policy
    texts = [policy.name, policy.pattern, *(text for text in policy.definition.values() if isinstance(text, str))]
    if not policy.name or any(len(text) > NAME_CHARS_MAX for text in texts):
        raise ValueError(f"a policy has a name; this, its pattern and its texts have at most {NAME_CHARS_MAX} letters")
    if abs(policy.priority) > PRIORITY_MAX:
        raise ValueError(f"priority is a number from -{PRIORITY_MAX} to {PRIORITY_MAX}")
    if not policy.definition:
        raise ValueError(f"the definition is empty; it may have {', '.join(known_keys(operator=one.operator))}")
    for key, mistake in policy_mistakes_of(policy, operator=one.operator):
        raise ValueError(f"{key}: {mistake}")
    return one


def _why_not(definition: Mapping[str, Any]) -> str | None:
    """Returns why a definition means nothing; None where it does."""
    alternate = definition.get(ALTERNATE, "")
    if not isinstance(alternate, str):
        return f"{ALTERNATE} is the name of an exchange, not {alternate!r}"
    if MAX_AGE in definition and age_ms(definition[MAX_AGE]) is None:
        return f"{MAX_AGE} is a number and a unit, one of Y, M, D, h, m and s, not {definition[MAX_AGE]!r}"
    of_queues = {f"x-{key}": value for key, value in definition.items() if key not in {ALTERNATE, MAX_AGE}}
    try:
        check_queue_arguments(of_queues)
    except Refusal as refusal:
        return refusal.detail
    return None
