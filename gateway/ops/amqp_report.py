"""Queues, bindings and AMQP connections as an operator is shown them: the listings of the admin port."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from gateway.domain.vhosts import DEFAULT_VHOST

T = TypeVar("T")

ROWS_COUNT_MAX = 1_000  # in one answer

QUEUES_PATH, BINDINGS_PATH, CONNECTIONS_PATH = "/amqp/queues", "/amqp/bindings", "/amqp/connections"
CLOSE_PATH, IMPORT_PATH = "/amqp/connections/close", "/amqp/definitions"
MOVE_PATH = "/amqp/queues/move"
REMOVE_USER_PATH = "/amqp/users/remove"
POLICIES_PATH = "/amqp/policies"
VHOSTS_PATH, ADD_VHOST_PATH, DELETE_VHOST_PATH = "/amqp/vhosts", "/amqp/vhosts/add", "/amqp/vhosts/delete"
SET_LIMITS_PATH, CLEAR_LIMITS_PATH = "/amqp/vhosts/limits/set", "/amqp/vhosts/limits/clear"
SET_POLICY_PATH, CLEAR_POLICY_PATH = "/amqp/policies/set", "/amqp/policies/clear"


class QueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """One queue. `messages` are those that wait; those that consumers hold are not among them."""

    vhost: str
    name: str
    messages: int
    consumers: int
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)
    policy: str | None = None  # the one that applies
    operator_policy: str | None = None
    effective_policy: Mapping[str, Any] = msgspec.field(default_factory=dict)  # of both; arguments come before it
    group: int = 0  # the store group that messages are written to
    former_group: int | None = None  # where messages may lie that were written before the queue was moved


class MoveQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue to move to a store group. The answer says the group; `former_group`: messages may lie there still."""

    vhost: str = DEFAULT_VHOST
    name: str
    group: int
    former_group: int | None = None


class BindingReport(msgspec.Struct, frozen=True, kw_only=True):
    """One declared binding: messages that come to `source` and match go to `destination`."""

    vhost: str
    source: str
    destination: str
    destination_type: str  # "queue" or "exchange"
    routing_key: str
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ConnectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """One connection of AMQP. `headgate amqp close` takes its `id`."""

    id: str
    user: str
    vhost: str
    peer: str
    listener: str
    channels: int
    consumers: int
    unacknowledged: int
    state: str = "running"  # or "blocked": its client has been asked not to publish for now


class ListingRows(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a listing; `more`: there is another one behind it."""

    rows: Sequence[T]
    more: bool = False


class CloseConnections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connections to close: those of `ids`, of a user, of a virtual host; all fields given have to match."""

    ids: Sequence[str] | None = None
    user: str | None = None
    vhost: str | None = None
    reason: str = "closed by an operator"


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The connections that were closed."""

    ids: Sequence[str]


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy, as it is shown and as it is set. `configured`: it is the configuration's, and stays as it is."""

    vhost: str = DEFAULT_VHOST
    name: str
    pattern: str
    apply_to: str = "all"
    definition: Mapping[str, Any]
    priority: int = 0
    operator: bool = False
    configured: bool = False


class ClearPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy to remove."""

    vhost: str = DEFAULT_VHOST
    name: str
    operator: bool = False


class VhostReport(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual host. `connections` are those of the gateway that was asked; -1 is no limit."""

    vhost: str
    queues: int
    connections: int
    max_connections: int = -1
    max_queues: int = -1
    configured: bool = False


class VhostOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A virtual host to make or to delete, or whose limits go."""

    vhost: str


class LimitVhost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a virtual host, in the place of those that it has: `max-connections`, `max-queues`."""

    vhost: str
    limits: Mapping[str, Any]


class RemoveUser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user to remove, who may have been imported."""

    name: str


class ImportOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An import of RabbitMQ's definitions, as they stand in their file."""

    definitions: msgspec.Raw
    dry_run: bool = False


class ImportStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of the definitions: `made`, there already (`kept`), taken in part (`partly`), or `refused`.

    `why` is the reason of a refusal, or the part that is not taken over.
    """

    what: str  # "queue 'orders' in vhost '/'"
    outcome: str
    why: str = ""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of an import."""

    steps: Sequence[ImportStep]
