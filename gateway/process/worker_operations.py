"""The listings and actions of several workers as those of one gateway.

Each worker knows all queues and bindings: one of them is asked. Connections are each worker's own: their numbers have
the worker's in front, `2.37`. The sessions of a client are asked of all workers: one of them may have its connection.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final
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
    Closed,
    ConnectionReport,
    ListingRows,
    VhostReport,
)
from gateway.ops.client_report import SESSIONS_PATH, SessionReports, merged
from gateway.process.worker_pool import Worker, WorkerPool, WorkerRefused, WorkerSilent
from gateway.runtime.admin_rows import rows_of
from gateway.runtime.amqp_operations import read_close
from store.base.admin import ACTION_TIMEOUT_S, PAGE_TIMEOUT_S, ActionRefused, Operations

# All workers know, or do, the same here: one of them is asked.
_LISTINGS_OF_ALL: Final = (QUEUES_PATH, BINDINGS_PATH, POLICIES_PATH)
_ACTIONS_OF_ALL: Final = (
    IMPORT_PATH,
    MOVE_PATH,
    REMOVE_USER_PATH,
    SET_POLICY_PATH,
    CLEAR_POLICY_PATH,
    ADD_VHOST_PATH,
    DELETE_VHOST_PATH,
    SET_LIMITS_PATH,
    CLEAR_LIMITS_PATH,
)


class WorkerOperations:
    """Asks the workers, and merges their answers. All methods raise `ActionRefused`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    @property
    def operations(self) -> Operations:
        """Returns the listings and actions, by path."""
        listings = {path: partial(self._list, path) for path in _LISTINGS_OF_ALL}
        actions = {path: partial(self._do, path) for path in _ACTIONS_OF_ALL}
        own = {CONNECTIONS_PATH: self.connections, VHOSTS_PATH: self.vhosts, SESSIONS_PATH: self.sessions}
        return Operations({**listings, **own}, {**actions, CLOSE_PATH: self.close})

    async def _list(self, path: str, query: Mapping[str, str]) -> Any:
        return msgspec.json.decode(await _ask(self._ready[0], path, query))

    async def _do(self, path: str, body: bytes) -> Any:
        return msgspec.json.decode(await _ask(self._ready[0], path, {}, body))

    @property
    def _ready(self) -> Sequence[Worker]:
        found = [one for one in self._pool.workers if one.ready]
        if not found:
            raise ActionRefused(HTTPStatus.SERVICE_UNAVAILABLE, "no worker serves now; ask again")
        return found

    async def connections(self, query: Mapping[str, str]) -> ListingRows[ConnectionReport]:
        """Returns the connections of all workers."""
        every = await asyncio.gather(*(_connections(one, query) for one in self._ready))
        return rows_of([one for some in every for one in some], query)

    async def sessions(self, query: Mapping[str, str]) -> SessionReports:
        """Returns the connections and sessions of a client, of all workers."""
        asked = [_ask(one, SESSIONS_PATH, query) for one in self._ready]
        return merged([msgspec.json.decode(one, type=SessionReports) for one in await asyncio.gather(*asked)])

    async def vhosts(self, query: Mapping[str, str]) -> ListingRows[VhostReport]:
        """Returns the virtual hosts, with the connections of all workers."""
        asked = [_ask(one, VHOSTS_PATH, query) for one in self._ready]
        pages = [msgspec.json.decode(one, type=ListingRows[VhostReport]) for one in await asyncio.gather(*asked)]
        connections = Counter[str]()
        for page in pages:
            connections.update({one.vhost: one.connections for one in page.rows})
        rows = [msgspec.structs.replace(one, connections=connections[one.vhost]) for one in pages[0].rows]
        return ListingRows(rows=rows, more=pages[0].more)

    async def close(self, body: bytes) -> Closed:
        """Closes connections at all workers."""
        wanted = read_close(body)

        async def close_at(worker: Worker) -> list[str]:
            front = f"{worker.number}."
            ids = None
            if wanted.ids is not None:
                ids = [one.removeprefix(front) for one in wanted.ids if one.startswith(front)]
            order = msgspec.json.encode(msgspec.structs.replace(wanted, ids=ids))
            found = msgspec.json.decode(await _ask(worker, CLOSE_PATH, {}, order), type=Closed)
            return [front + one for one in found.ids]

        found = await asyncio.gather(*(close_at(one) for one in self._ready))
        return Closed(ids=[one for some in found for one in some])


async def _connections(worker: Worker, query: Mapping[str, str]) -> Sequence[ConnectionReport]:
    """Returns all connections of a worker, with its number in front of theirs."""
    found: list[ConnectionReport] = []
    more = True
    while more:
        part = {**query, "offset": str(len(found)), "limit": str(ROWS_COUNT_MAX)}
        page = msgspec.json.decode(await _ask(worker, CONNECTIONS_PATH, part), type=ListingRows[ConnectionReport])
        found += page.rows
        more = page.more
    return [msgspec.structs.replace(one, id=f"{worker.number}.{one.id}") for one in found]


async def _ask(worker: Worker, path: str, query: Mapping[str, str], body: bytes | None = None) -> bytes:
    """Returns a worker's answer. Raises `ActionRefused`."""
    target = f"{path}?{urlencode(query)}" if query else path
    try:
        return await worker.ask(target, body=body, timeout_s=PAGE_TIMEOUT_S if body is None else ACTION_TIMEOUT_S)
    except WorkerRefused as refused:
        raise ActionRefused(refused.status, _detail(str(refused))) from refused
    except WorkerSilent as silent:
        raise ActionRefused(HTTPStatus.SERVICE_UNAVAILABLE, f"{worker.name} {silent}") from silent


def _detail(text: str) -> str:
    """Returns the sentence in a refusal."""
    try:
        return str(msgspec.json.decode(text)["detail"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text
