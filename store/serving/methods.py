"""The methods of a session, run on the store.

Most of them are made from their rows of the table of calls (`store.rpc.table`); `_SPELLED` has those that do more.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from store.api.log import IndexKind
from store.base.errors import StoreError
from store.format.body_parts import PART_BYTES
from store.format.frame import LogOffset, Position, QueueNumber, QueueOffset
from store.rpc import arguments, wire
from store.rpc.budget import Share
from store.rpc.calls import encode
from store.rpc.table import CALLS, Kind, Row, Shape
from store.serving.method import VALUE_BYTES, Method, Run
from store.serving.session import ServingSession

OFFSETS_COUNT_MAX = 1 << 20  # named by one call


def _offsets(ranges: Sequence[tuple[int, int]]) -> Sequence[QueueOffset]:
    """Returns ranges of queue offsets one by one. Raises `BadRequest` where that would take too long."""
    if sum(max(end - start, 0) for start, end in ranges) > OFFSETS_COUNT_MAX:
        raise wire.BadRequest(f"more than {OFFSETS_COUNT_MAX} offsets in one call")
    return [QueueOffset(at) for at in chain.from_iterable(range(start, end) for start, end in ranges)]


def _errors(outcomes: Sequence[str | StoreError | None]) -> bytes:
    """Encodes the outcomes of handles: of each a text, or an error."""
    return encode([(None, wire.describe(one)) if isinstance(one, StoreError) else (one, None) for one in outcomes])


# ---- the methods
#
# Each is run with the session, its arguments, the call's number and a share of the session's budget for its reads.


def _plain(row: Row) -> Run:
    """Makes the method of a row whose result is encoded as it is."""
    shape, reads = Shape(row), row.reads
    ask, unpack = shape.ask, shape.unpack

    async def run(session: ServingSession, asked: Any, _number: int, share: Share) -> bytes:
        if reads:
            await share.acquire(VALUE_BYTES)
        given, named = unpack(asked)
        return encode(await ask(session.store)(*given, **named))

    return run


def _owned(row: Row) -> Run:
    """Makes the method of a row for an owner's leases."""
    shape = Shape(row)
    ask, unpack = shape.ask, shape.unpack

    async def run(session: ServingSession, asked: Any, _number: int, _share: Share) -> bytes:
        (queue, owner, offsets, *given), named = unpack(asked)
        return encode(await ask(session.store)(queue, session.owner(owner), _offsets(offsets), *given, **named))

    return run


def _handled(row: Row) -> Run:
    """Makes the method of a row that answers for each of some handles."""
    shape = Shape(row)
    ask, unpack = shape.ask, shape.unpack

    async def run(session: ServingSession, asked: Any, _number: int, _share: Share) -> bytes:
        given, named = unpack(asked)
        return _errors(await ask(session.store)(*given, **named))

    return run


async def _ping(_session: ServingSession, _asked: arguments.Ping, _number: int, _share: Share) -> bytes:
    return encode(None)


async def _read(session: ServingSession, asked: arguments.Read, _number: int, share: Share) -> bytes:
    await share.acquire(PART_BYTES)
    return encode(await session.store.log.read(Position(LogOffset(asked.frame), asked.row)))


async def _last(session: ServingSession, asked: arguments.Last, _number: int, _share: Share) -> bytes:
    return encode(await session.store.log.last(asked.address_hash))


async def _find(session: ServingSession, asked: arguments.Find, _number: int, _share: Share) -> bytes:
    below = None if asked.below is None else Position(LogOffset(asked.below[0]), asked.below[1])
    found = await session.store.log.find(
        IndexKind(asked.kind),
        asked.hash_,
        from_ms=asked.from_ms,
        until_ms=asked.until_ms,
        below=below,
        limit=asked.limit,
    )
    return encode(found)


async def _queue_configs(session: ServingSession, asked: arguments.QueueConfigs, _number: int, _share: Share) -> bytes:
    return encode([session.store.queues.config(QueueNumber(queue)) for queue in asked.queues])


async def _requeue(session: ServingSession, asked: arguments.Requeue, _number: int, _share: Share) -> bytes:
    """Gives back messages, which other sessions may wait for."""
    queue, owner = QueueNumber(asked.queue), session.owner(asked.owner)
    session.store.leases.requeue(
        queue,
        owner,
        _offsets(asked.offsets),
        delivered=asked.delivered,
        delay_ms=asked.delay_ms,
        group=asked.group,
    )
    session.given_back(queue)
    return encode(None)


async def _settle(session: ServingSession, asked: arguments.Settle, _number: int, _share: Share) -> bytes:
    leases, queue, owner = session.store.leases, QueueNumber(asked.queue), session.owner(asked.owner)
    if asked.urgent:
        await leases.settle(queue, owner, _offsets(asked.offsets), group=asked.group)
    else:  # shielded, as the store's work continues when no caller waits any more
        await asyncio.shield(leases.settle_soon(queue, owner, _offsets(asked.offsets), group=asked.group))
    return encode(None)


async def _forward(session: ServingSession, asked: arguments.Forward, _number: int, _share: Share) -> bytes:
    session.check_rows(asked.rows, asked.payload)
    queue, owner, offsets = QueueNumber(asked.queue), session.owner(asked.owner), _offsets(asked.offsets)
    await session.store.leases.forward(queue, owner, offsets, asked.rows, asked.payload, group=asked.group)
    return encode(None)


async def _commit(session: ServingSession, asked: arguments.Commit, _number: int, _share: Share) -> bytes:
    session.check_rows(asked.rows, asked.payload)
    settled = [(QueueNumber(queue), _offsets(ranges)) for queue, ranges in asked.settled]
    await session.store.leases.commit(session.owner(asked.owner), settled, asked.rows, asked.payload)
    return encode(None)


_SPELLED: Mapping[str, Run] = {
    "hello": lambda session, asked, _n, _s: session.hello(asked),
    "ping": _ping,
    "cancel": lambda session, asked, _n, _s: session.cancel(asked),
    "scan": lambda session, asked, _n, share: session.scan(asked, share),
    "fetch": lambda session, asked, _n, share: session.fetch(asked, share),
    "last": _last,
    "find": _find,
    "read": _read,
    "queue_configs": _queue_configs,
    "configure_queues": lambda session, asked, _n, _s: session.configure_queues(asked),
    "kv_hold": lambda session, _a, _n, _s: session.kv_hold(),
    "kv_release": lambda session, asked, _n, _s: session.kv_release(asked),
    "kv_watch": lambda session, asked, number, _s: session.kv_watch(asked, number),
    "kv_watched": lambda session, asked, _n, share: session.kv_watched(asked, share),
    "kv_unwatch": lambda session, asked, _n, _s: session.kv_unwatch(asked),
    "take": lambda session, asked, _n, share: session.take(asked, share),
    "settle": _settle,
    "forward": _forward,
    "commit": _commit,
    "requeue": _requeue,
    "release": lambda session, asked, _n, _s: session.release(asked),
}
_MADE = {Kind.PLAIN: _plain, Kind.OWNED: _owned, Kind.HANDLED: _handled}

METHODS: Mapping[str, Method] = {
    name: Method(
        msgspec.msgpack.Decoder(row.request).decode,
        _SPELLED[name] if name in _SPELLED else _MADE[row.kind](row),
        row.anywhere,
        row.waits,
    )
    for name, row in CALLS.items()
}
assert METHODS.keys() >= _SPELLED.keys(), "a method that is spelled has no row in store.rpc.table"
