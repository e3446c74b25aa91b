"""Policies of RabbitMQ's definitions as this gateway's configuration says them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.domain.vhosts import check_vhost
from gateway.queues.importing.definitions_file import PolicyEntry
from gateway.queues.leaving.policies import PolicyConfig, known_keys, policy_mistakes_of

_KINDS = {"queues": "queues", "classic_queues": "queues", "quorum_queues": "queues", "exchanges": "exchanges"}


def taken_policy(entry: PolicyEntry, *, operator: bool) -> tuple[PolicyConfig, Sequence[str]]:
    """Returns a policy as it is here, and the keys of its definition that mean nothing here. Raises ValueError."""
    known = known_keys(operator=operator)
    definition = {key: value for key, value in entry.definition.items() if key in known}
    left = sorted(set(entry.definition) - set(known))
    if not definition:
        raise ValueError(f"nothing of its definition means anything here: {', '.join(left) or 'it is empty'}")
    kind = "all" if entry.apply_to == "all" else _KINDS.get(entry.apply_to)
    if kind is None:
        raise ValueError(f"it is for {entry.apply_to}, which there are none of here")
    check_vhost(entry.vhost)
    found: Any = {
        "name": entry.name,
        "vhost": entry.vhost,
        "pattern": entry.pattern,
        "apply_to": kind,
        "priority": entry.priority,
        "definition": definition,
    }
    policy = msgspec.convert(found, PolicyConfig)
    for _, mistake in policy_mistakes_of(policy, operator=operator):
        raise ValueError(mistake)
    return policy, left


def toml_of(policies: Iterable[tuple[PolicyConfig, bool]]) -> str:
    """Returns the lines of the configuration for policies, each with whether it is an operator's."""
    lines: list[str] = []
    for one, operator in policies:
        definition = ", ".join(f"{_text(key)} = {_value(value)}" for key, value in sorted(one.definition.items()))
        lines += [
            f"[[queues.{'operator_policies' if operator else 'policies'}]]",
            f"name = {_text(one.name)}",
            f"vhost = {_text(one.vhost)}",
            f"pattern = {_text(one.pattern)}",
            f"apply_to = {_text(one.apply_to)}",
            f"priority = {one.priority}",
            f"definition = {{ {definition} }}",
            "",
        ]
    return "\n".join(lines)


def _value(value: Any) -> str:
    return str(value) if type(value) is int else _text(str(value))


def _text(text: str) -> str:
    """Returns a basic string of TOML, which escapes as JSON does but for U+007F."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
