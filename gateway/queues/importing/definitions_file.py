"""RabbitMQ's definitions.json, as `rabbitmqctl export_definitions` and the management plug-in write it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.domain.vhosts import DEFAULT_VHOST

VHOST_LIMITS = "vhost-limits"
OPERATOR_POLICY = "operator_policy"  # the component of parameters that are policies of operators


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, with the fields that are understood."""

    name: str
    vhost: str = DEFAULT_VHOST


class VhostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual host."""

    name: str


class ExchangeEntry(_Entry, frozen=True, kw_only=True):
    """An exchange."""

    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)


class QueueEntry(_Entry, frozen=True, kw_only=True):
    """A queue."""

    durable: bool = True
    auto_delete: bool = False
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)


class BindingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A binding of a queue or of an exchange."""

    source: str
    destination: str
    destination_type: str = "queue"
    routing_key: str = ""
    vhost: str = DEFAULT_VHOST
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)


class PolicyEntry(_Entry, frozen=True, kw_only=True):
    """A policy."""

    pattern: str
    definition: Mapping[str, Any]
    apply_to: str = msgspec.field(default="all", name="apply-to")
    priority: int = 0


class UserEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A user. `tags` are a list, or a text with commas between."""

    name: str
    password_hash: str = ""
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    tags: Sequence[str] | str = ()
    limits: Mapping[str, Any] | Sequence[Any] = msgspec.field(default_factory=dict)


class PermissionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions of a user in a virtual host."""

    user: str
    vhost: str = DEFAULT_VHOST
    configure: str
    write: str
    read: str


class TopicPermissionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions by routing keys, which are not taken."""

    user: str
    vhost: str = DEFAULT_VHOST
    exchange: str = ""


class ParameterEntry(_Entry, frozen=True, kw_only=True):
    """A parameter of a plug-in, or a policy of an operator."""

    component: str
    value: Any = None


class GlobalParameterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the whole broker."""

    name: str


class DefinitionsFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of a file; fields not named here are skipped."""

    vhosts: Sequence[VhostEntry] = ()
    users: Sequence[UserEntry] = ()
    permissions: Sequence[PermissionEntry] = ()
    topic_permissions: Sequence[TopicPermissionEntry] = ()
    parameters: Sequence[ParameterEntry] = ()
    global_parameters: Sequence[GlobalParameterEntry] = ()
    policies: Sequence[PolicyEntry] = ()
    queues: Sequence[QueueEntry] = ()
    exchanges: Sequence[ExchangeEntry] = ()
    bindings: Sequence[BindingEntry] = ()


def read_definitions(data: bytes) -> DefinitionsFile:
    """Parses a file. Raises ValueError, with one sentence, for a file that has no definitions."""
    try:
        found = msgspec.json.decode(data, type=DefinitionsFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is not a file of RabbitMQ's definitions: {error}") from error
    if found == DefinitionsFile():
        raise ValueError("this is not a file of RabbitMQ's definitions: it defines nothing")
    return found


def operator_policies(found: DefinitionsFile) -> Sequence[PolicyEntry | ParameterEntry]:
    """Returns the policies of operators, which are among the parameters; as they are where they are not understood."""
    policies: list[PolicyEntry | ParameterEntry] = []
    for one in found.parameters:
        if one.component != OPERATOR_POLICY:
            continue
        value = dict(one.value) if isinstance(one.value, dict) else {}
        definition = value.get("definition")
        if isinstance(definition, list):  # pairs, as some versions write them
            value["definition"] = {pair[0]: pair[1] for pair in definition if isinstance(pair, list) and len(pair) == 2}
        try:
            policies.append(msgspec.convert({**value, "name": one.name, "vhost": one.vhost}, PolicyEntry))
        except msgspec.ValidationError:
            policies.append(one)
    return policies
