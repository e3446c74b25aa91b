"""The sessions and subscriptions of one client, as the admin port of a process lists them.

`/sessions?client=NAME` finds the connections whose client identifier, user or device has this name, and the stored
sessions of this client identifier. With `user=NAME` the answer is for that user: subscriptions that it may not read are
left out silently, and so are sessions of others without a readable one. It finds those by client identifier alone:
which clients a user has is not told to others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Final

import msgspec

from gateway.domain.access import Access
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.ops.client_report import (
    FILTERS_COUNT_MAX,
    SESSIONS_COUNT_MAX,
    SESSIONS_PATH,
    SessionReport,
    SessionReports,
    SubscriptionReport,
)
from gateway.port.operated import SessionFactory, SubscribedFilter
from gateway.port.shared import shared_name
from gateway.runtime.connection import Connection
from gateway.runtime.hub import ProcessHub
from gateway.sessions.record import expired, load_record, session_key
from store.base.admin import ActionRefused, Operations
from store.base.clock import now_ms
from store.base.errors import StoreError

_PARAMETERS: Final = frozenset({"client", "user"})


class ClientSessions:
    """The listing of one process."""

    def __init__(self, hub: ProcessHub) -> None:
        self._hub = hub

    @property
    def operations(self) -> Operations:
        """Returns the listing, by path."""
        return Operations({SESSIONS_PATH: self.sessions})

    async def sessions(self, query: Mapping[str, str]) -> SessionReports:
        """Returns the connections and sessions of a client. Raises `ActionRefused`."""
        client, reader = read_query(query)
        shown = self._shown_to(reader, client)
        rows = list(islice(filter(None, map(shown, self._connected(client))), SESSIONS_COUNT_MAX + 1))
        try:
            stored = [await self._stored(protocol, client) for protocol in self._factories()]
        except StoreError as error:
            raise ActionRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        rows += filter(None, (shown(one) for one in stored if one is not None))
        return SessionReports(rows=rows[:SESSIONS_COUNT_MAX], more=len(rows) > SESSIONS_COUNT_MAX)

    def _connected(self, client: str) -> Iterator[SessionReport]:
        for connection in list(self._hub.connections.values()):
            if connection.several or connection.gone or not isinstance(connection, Connection):
                continue  # one of several clients has subscriptions of all of them
            principal = connection.principal
            if client in {principal.permissions.identity.client_id, principal.name, principal.device}:
                yield self._connection(connection)

    def _connection(self, connection: Connection) -> SessionReport:
        held = self._hub.sessions.by_holder.get(connection)
        identity = connection.principal.permissions.identity
        report = SessionReport(
            protocol=connection.protocol,
            client=identity.client_id if held is None else held.session_id,
            user=connection.principal.name,
            state="connected",
            peer=connection.peer,
            listener=connection.listener_name,
            expiry_s=0 if held is None else held.expiry_s,
        )
        factory = self._factories().get(connection.protocol)
        if factory is None:
            return _with(report, [SubscribedFilter(one) for one in connection.subscriber.patterns.values()])
        return _with(report, factory.open_subscriptions(connection.adapter))

    async def _stored(self, protocol: str, client: str) -> SessionReport | None:
        """Returns the stored session of a client identifier that no connection of this process has."""
        key = session_key(protocol, client)
        record = await load_record(self._hub.store, key)
        if record is None or key in self._hub.sessions.held or expired(record, now_ms(), or_left_ms=None):
            return None
        report = SessionReport(
            protocol=protocol,
            client=record.session_id,
            user="" if record.user is None else record.user.name,
            state="away" if record.left_ms is not None or self._hub.owners.alone else "elsewhere",
            expiry_s=record.expiry_s,
            left_ms=record.left_ms,
        )
        return _with(report, self._factories()[protocol].saved_subscriptions(record.state))

    def _shown_to(self, reader: str | None, client: str) -> Callable[[SessionReport], SessionReport | None]:
        """Returns a function that cuts a report down to the part a user may see, or to None."""
        if reader is None:
            return _whole
        principal = Principal(name=reader)
        permissions = self._hub.access.permissions(principal, protocol="http")
        return _whole if permissions.access is None else partial(_readable, permissions.access, reader, client)

    def _factories(self) -> dict[str, SessionFactory]:
        """Returns, by protocol, the factories that can read sessions."""
        return {
            one.protocol: one.factory for one in self._hub.others.values() if isinstance(one.factory, SessionFactory)
        }


def read_query(query: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the client that is asked for, and the user that the answer is for. Raises `ActionRefused`."""
    if unknown := query.keys() - _PARAMETERS:
        raise ActionRefused(HTTPStatus.BAD_REQUEST, f"{min(unknown)[:64]!r} is no parameter: there are client and user")
    if not (client := query.get("client")):
        raise ActionRefused(HTTPStatus.BAD_REQUEST, "client=NAME says whose sessions are asked for")
    return client, query.get("user")


def _with(report: SessionReport, filters: Sequence[SubscribedFilter] | None) -> SessionReport:
    """Returns a report with subscriptions; None: they cannot be read."""
    found = None if filters is None else [SubscriptionReport(filter=one.pattern, qos=one.qos) for one in filters]
    return msgspec.structs.replace(report, subscriptions=found)


def _whole(report: SessionReport) -> SessionReport:
    """Returns a report as far as its subscriptions go into one answer."""
    found = report.subscriptions
    if found is None or len(found) <= FILTERS_COUNT_MAX:
        return report
    return msgspec.structs.replace(report, subscriptions=found[:FILTERS_COUNT_MAX], partial=True)


def _readable(access: Access, reader: str, client: str, report: SessionReport) -> SessionReport | None:
    """Returns a report with the subscriptions that a user may read in part; None where there is none."""
    if report.user == reader:
        return _whole(report)
    every = (report.subscriptions or ()) if report.client == client else ()
    found = [one for one in every if access.reaches("subscribe", _pattern(one.filter))]
    if not found:
        return None
    return _whole(msgspec.structs.replace(report, user="", peer="", subscriptions=found))


def _pattern(text: str) -> str:
    """Returns the address filter of a subscription, which may be a shared one."""
    try:
        shared = shared_name(text)
    except Refusal:  # a filter of another protocol that looks alike
        return text
    return text if shared is None else shared.pattern
