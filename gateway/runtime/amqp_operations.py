"""The queues, bindings and AMQP connections that the admin port of a process lists, and the closing of connections."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from controller.api.client import ControllerError
from controller.api.commands import DeleteUser
from gateway.domain.vhosts import in_vhost, local_name, split_name, vhost_of
from gateway.ops.amqp_report import (
    BINDINGS_PATH,
    CLOSE_PATH,
    CONNECTIONS_PATH,
    IMPORT_PATH,
    MOVE_PATH,
    QUEUES_PATH,
    REMOVE_USER_PATH,
    BindingReport,
    CloseConnections,
    Closed,
    ConnectionReport,
    ImportOrder,
    ImportReport,
    ListingRows,
    MoveQueue,
    QueueReport,
    RemoveUser,
)
from gateway.queues.importing.definitions_file import read_definitions
from gateway.queues.importing.importer import MADE, Importer
from gateway.queues.model.bindings import Exchange, QueueDefinition
from gateway.queues.model.queue import Queue
from gateway.runtime.admin_rows import rows_of, wanted_rows
from gateway.runtime.amqp_settings import AmqpSettings, described, done, read_order
from gateway.runtime.connection import Connection
from gateway.runtime.hub import ProcessHub
from gateway.runtime.turn import StreamEndpoint
from store.base import logs
from store.base.admin import ActionRefused, Operations
from store.base.errors import StoreError

ASKED_COUNT_MAX: Final = 64  # queues that the store is asked of at a time

log = logs.get(__name__)


class AmqpOperations:
    """The listings and actions of one process. The numbers of connections are its own."""

    def __init__(self, hub: ProcessHub) -> None:
        self._hub = hub
        self._settings = AmqpSettings(hub)
        self._importing = False

    @property
    def operations(self) -> Operations:
        """Returns the listings and actions, by path."""
        listings = {QUEUES_PATH: self.queues, BINDINGS_PATH: self.bindings, CONNECTIONS_PATH: self.connections}
        actions = {
            CLOSE_PATH: self.close,
            MOVE_PATH: self.move_queue,
            IMPORT_PATH: self.import_definitions,
            REMOVE_USER_PATH: self.remove_user,
        }
        settings = self._settings.operations
        return Operations({**listings, **settings.listings}, {**actions, **settings.actions})

    async def queues(self, query: Mapping[str, str]) -> ListingRows[QueueReport]:
        """Returns the named queues, by virtual host and name. Raises `ActionRefused`."""
        every = [queue for queue in self._hub.queues.registry.queues.values() if not queue.shared]
        found = sorted(wanted_rows(every, query, lambda one: vhost_of(one.definition.name)), key=_place)
        part = rows_of(found, query)
        rows: list[QueueReport] = []
        try:
            for at in range(0, len(part.rows), ASKED_COUNT_MAX):
                rows += await asyncio.gather(*(self._report(one) for one in part.rows[at : at + ASKED_COUNT_MAX]))
        except StoreError as error:
            raise ActionRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        return ListingRows(rows=rows, more=part.more)

    async def _report(self, queue: Queue) -> QueueReport:
        definition = queue.definition
        vhost, name = split_name(definition.name)
        policies = self._hub.queues.registry.policies
        applied = policies.applied(definition.name, definition.arguments)
        return QueueReport(
            vhost=vhost,
            name=name,
            messages=await queue.pump.head.count(),
            consumers=await self._hub.queues.registry.consumers_of(queue),
            durable=definition.durable,
            exclusive=definition.exclusive,
            auto_delete=definition.auto_delete,
            arguments=definition.arguments,
            policy=None if applied.user is None else applied.user.name,
            operator_policy=None if applied.operator is None else applied.operator.name,
            effective_policy=applied.effective,
            group=definition.group,
            former_group=_former_group(definition),
        )

    async def move_queue(self, body: bytes) -> MoveQueue:
        """Moves a queue to another store group. Raises `ActionRefused`."""
        wanted = read_order(body, MoveQueue)
        moved = await done(self._hub.queues.registry.move_queue(in_vhost(wanted.vhost, wanted.name), wanted.group))
        log.info("an operator has moved a queue", queue=moved.name, group=moved.group)
        return msgspec.structs.replace(wanted, group=moved.group, former_group=_former_group(moved))

    async def bindings(self, query: Mapping[str, str]) -> ListingRows[BindingReport]:
        """Returns the bindings that were made, by virtual host and destination. Raises `ActionRefused`."""
        registry = self._hub.queues.registry
        targets: list[Exchange | QueueDefinition] = [
            *(one for one in registry.exchanges if one.bindings),
            *(one.definition for one in registry.queues.values() if one.definition.bindings),
        ]
        targets = wanted_rows(targets, query, lambda one: vhost_of(one.name))
        targets.sort(key=lambda one: split_name(one.name))
        return rows_of(_bindings(targets), query)

    async def connections(self, query: Mapping[str, str]) -> ListingRows[ConnectionReport]:
        """Returns the connections that are open, by number. Raises `ActionRefused`."""
        found = [one for _, one in sorted(self._reports().items())]
        return rows_of(wanted_rows(found, query, lambda one: one.vhost), query)

    def _reports(self) -> dict[int, ConnectionReport]:
        every = self._hub.connections.items()
        return {number: report for number, one in every if (report := _reported(number, one)) is not None}

    async def close(self, body: bytes) -> Closed:
        """Closes connections with 320; returns which. Raises `ActionRefused`."""
        wanted = read_close(body)
        chosen = []
        for number, report in self._reports().items():
            if (
                (wanted.ids is None or report.id in wanted.ids)
                and wanted.user in {None, report.user}
                and wanted.vhost in {None, report.vhost}
            ):
                chosen.append(number)
        for number in chosen:
            if isinstance(connection := self._hub.connections.get(number), Connection):
                connection.force_close(wanted.reason)
        if chosen:
            log.info("an operator has closed connections", count=len(chosen), reason=wanted.reason)
        return Closed(ids=[str(number) for number in chosen])

    async def import_definitions(self, body: bytes) -> ImportReport:
        """Makes the objects of RabbitMQ's definitions, or lists those that it would make. Raises `ActionRefused`."""
        try:
            order = msgspec.json.decode(body, type=ImportOrder)
            found = read_definitions(bytes(order.definitions))
        except ValueError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
        if self._importing:
            raise ActionRefused(HTTPStatus.CONFLICT, "definitions are being imported already; ask again")
        self._importing = True
        try:
            importer = Importer(
                self._hub.queues.registry,
                self._hub.controller,
                configured=self._hub.authenticator.configured,
                dry_run=order.dry_run,
            )
            report = await importer.run(found)
        finally:
            self._importing = False
        made = sum(step.outcome == MADE for step in report.steps)
        if made and not order.dry_run:
            log.info("definitions of RabbitMQ are imported", made=made, of=len(report.steps))
        return report

    async def remove_user(self, body: bytes) -> RemoveUser:
        """Removes a user of the cluster. Raises `ActionRefused`."""
        try:
            wanted = msgspec.json.decode(body, type=RemoveUser)
        except msgspec.DecodeError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
        if self._hub.controller.user(wanted.name) is None:
            raise ActionRefused(HTTPStatus.NOT_FOUND, f"there is no user {wanted.name!r} besides the configuration's")
        try:
            await self._hub.controller.do(DeleteUser(name=wanted.name))
        except ControllerError as error:
            raise ActionRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        return wanted


def read_close(body: bytes) -> CloseConnections:
    """Parses a request to close connections. Raises `ActionRefused`."""
    try:
        wanted = msgspec.json.decode(body, type=CloseConnections)
    except msgspec.DecodeError as error:
        raise ActionRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
    if wanted.ids is None and wanted.user is None and wanted.vhost is None:
        raise ActionRefused(HTTPStatus.BAD_REQUEST, "ids, a user or a vhost say which connections are closed")
    return wanted


def _former_group(definition: QueueDefinition) -> int | None:
    """Returns the store group that a queue is being moved from; None of one that is where it is."""
    return definition.move.group if definition.move is not None and definition.is_moving else None


def _place(queue: Queue) -> tuple[str, str]:
    return split_name(queue.definition.name)


def _bindings(targets: Sequence[Exchange | QueueDefinition]) -> Iterator[BindingReport]:
    for target in targets:
        vhost, name = split_name(target.name)
        for binding in target.bindings:
            yield BindingReport(
                vhost=vhost,
                source=local_name(binding.exchange),
                destination=name,
                destination_type="exchange" if isinstance(target, Exchange) else "queue",
                routing_key=binding.routing_key,
                arguments=binding.arguments,
            )


def _reported(number: int, connection: StreamEndpoint) -> ConnectionReport | None:
    """Returns the report of a connection; None of one that is not operated, or not open."""
    said = described(connection)
    if said is None or not isinstance(connection, Connection):
        return None
    return ConnectionReport(
        id=str(number),
        user=connection.principal.name,
        vhost=said.vhost,
        peer=connection.peer,
        listener=connection.listener_name,
        channels=said.channels,
        consumers=said.consumers,
        unacknowledged=said.unacknowledged,
        state="blocked" if said.blocked else "running",
    )
