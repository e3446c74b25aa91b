"""Policies of RabbitMQ's definitions as they are set here."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.domain.vhosts import check_vhost
from gateway.queues.importing.definitions_file import PolicyEntry
from gateway.queues.leaving.policies import APPLY_TO, PolicyConfig, StoredPolicy, check_stored, known_keys


def taken_policy(entry: PolicyEntry, *, operator: bool) -> tuple[StoredPolicy, Sequence[str]]:
    """Returns a policy as it is here, and the keys of its definition that mean nothing here. Raises ValueError."""
    known = known_keys(operator=operator)
    definition = {key: value for key, value in entry.definition.items() if key in known}
    left = sorted(set(entry.definition) - set(known))
    if not definition:
        raise ValueError(f"nothing of its definition means anything here: {', '.join(left) or 'it is empty'}")
    if entry.apply_to not in APPLY_TO:
        raise ValueError(f"it is for {entry.apply_to}, which there are none of here")
    check_vhost(entry.vhost)
    found: Any = {
        "name": entry.name,
        "vhost": entry.vhost,
        "pattern": entry.pattern,
        "apply_to": entry.apply_to,
        "priority": entry.priority,
        "definition": definition,
    }
    return check_stored(StoredPolicy(policy=msgspec.convert(found, PolicyConfig), operator=operator)), left
