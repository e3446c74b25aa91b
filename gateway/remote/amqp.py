"""The AMQP side of a running gateway, over its admin port, for `headgate amqp`."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from gateway.ops.amqp_report import (
    ADD_VHOST_PATH,
    BINDINGS_PATH,
    CLEAR_LIMITS_PATH,
    CLEAR_POLICY_PATH,
    CLOSE_PATH,
    CONNECTIONS_PATH,
    DELETE_VHOST_PATH,
    IMPORT_PATH,
    MOVE_PATH,
    POLICIES_PATH,
    QUEUES_PATH,
    REMOVE_USER_PATH,
    ROWS_COUNT_MAX,
    SET_LIMITS_PATH,
    SET_POLICY_PATH,
    VHOSTS_PATH,
    BindingReport,
    ClearPolicy,
    CloseConnections,
    Closed,
    ConnectionReport,
    ImportOrder,
    ImportReport,
    LimitVhost,
    ListingRows,
    MoveQueue,
    PolicyReport,
    QueueReport,
    RemoveUser,
    VhostOrder,
    VhostReport,
)
from gateway.remote.http import RemoteGateway, RemoteRefused

T = TypeVar("T")

_JSON = {"content-type": "application/json"}


class RemoteAmqp:
    """Queues, bindings and connections of one gateway. Methods raise `Unreachable` and `RemoteRefused`."""

    def __init__(self, gateway: RemoteGateway) -> None:
        self._gateway = gateway

    def queues(self, vhost: str | None = None) -> Iterator[QueueReport]:
        """Yields the queues, by virtual host and name."""
        return self._rows(QUEUES_PATH, vhost, ListingRows[QueueReport])

    def move_queue(self, wanted: MoveQueue) -> MoveQueue:
        """Moves a queue to a store group; returns where it lies now."""
        moved: MoveQueue = self._read("POST", MOVE_PATH, MoveQueue, msgspec.json.encode(wanted))
        return moved

    def bindings(self, vhost: str | None = None) -> Iterator[BindingReport]:
        """Yields the bindings, by virtual host and destination."""
        return self._rows(BINDINGS_PATH, vhost, ListingRows[BindingReport])

    def connections(self, vhost: str | None = None) -> Iterator[ConnectionReport]:
        """Yields the connections that are open."""
        return self._rows(CONNECTIONS_PATH, vhost, ListingRows[ConnectionReport])

    def close(self, wanted: CloseConnections) -> Sequence[str]:
        """Closes connections; returns which."""
        closed: Closed = self._read("POST", CLOSE_PATH, Closed, msgspec.json.encode(wanted))
        return closed.ids

    def import_definitions(self, definitions: bytes, *, dry_run: bool) -> ImportReport:
        """Imports RabbitMQ's definitions, or reports the steps that it would take."""
        order = ImportOrder(definitions=msgspec.Raw(definitions), dry_run=dry_run)
        report: ImportReport = self._read("POST", IMPORT_PATH, ImportReport, msgspec.json.encode(order))
        return report

    def policies(self, vhost: str | None = None) -> Iterator[PolicyReport]:
        """Yields the policies, by virtual host and name."""
        return self._rows(POLICIES_PATH, vhost, ListingRows[PolicyReport])

    def set_policy(self, policy: PolicyReport) -> None:
        """Sets a policy, in the place of the one of its name."""
        self._order(SET_POLICY_PATH, policy)

    def clear_policy(self, wanted: ClearPolicy) -> None:
        """Removes a policy that was set at run time."""
        self._order(CLEAR_POLICY_PATH, wanted)

    def vhosts(self, vhost: str | None = None) -> Iterator[VhostReport]:
        """Yields the virtual hosts, by name."""
        return self._rows(VHOSTS_PATH, vhost, ListingRows[VhostReport])

    def add_vhost(self, vhost: str) -> None:
        """Makes a virtual host, unless it is there."""
        self._order(ADD_VHOST_PATH, VhostOrder(vhost=vhost))

    def delete_vhost(self, vhost: str) -> None:
        """Deletes a virtual host with all that is in it."""
        self._order(DELETE_VHOST_PATH, VhostOrder(vhost=vhost))

    def set_limits(self, wanted: LimitVhost) -> None:
        """Sets the limits of a virtual host."""
        self._order(SET_LIMITS_PATH, wanted)

    def clear_limits(self, vhost: str) -> None:
        """Removes the limits of a virtual host."""
        self._order(CLEAR_LIMITS_PATH, VhostOrder(vhost=vhost))

    def _order(self, path: str, order: msgspec.Struct) -> None:
        self._read("POST", path, type(order), msgspec.json.encode(order))

    def remove_user(self, name: str) -> None:
        """Removes a user that is not the configuration's."""
        self._order(REMOVE_USER_PATH, RemoveUser(name=name))

    def _rows(self, path: str, vhost: str | None, kind: type[ListingRows[T]]) -> Iterator[T]:
        offset, more = 0, True
        while more:
            query = {"offset": str(offset), "limit": str(ROWS_COUNT_MAX)} | ({} if vhost is None else {"vhost": vhost})
            page = self._read("GET", f"{path}?{urlencode(query)}", kind)
            yield from page.rows
            offset, more = offset + len(page.rows), page.more

    def _read(self, method: str, target: str, kind: Any, body: bytes | None = None) -> Any:
        answer = self._gateway.ask(method, target, body=body, headers=None if body is None else _JSON)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise RemoteRefused(answer.status_code, f"{self._gateway.url} is not a gateway's admin port") from error
