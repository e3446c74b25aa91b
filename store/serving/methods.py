"""The methods of a session, run on the store. Most of them are the `StoreClient` method of the same name."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from store.api.client import StoreClient
from store.api.log import IndexKind
from store.base.errors import StoreError
from store.format.frame import LogOffset, Position, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.rpc import arguments, wire
from store.rpc.budget import Share
from store.rpc.calls import encode

if TYPE_CHECKING:
    from store.serving.session import Session

__all__ = ["METHODS", "VALUE_BYTES", "Method"]

OFFSETS_COUNT_MAX = 1 << 20  # named by one call
VALUE_BYTES = 64 << 10  # what is reserved for an answer whose size nobody knows


def _offsets(ranges: Sequence[tuple[int, int]]) -> Sequence[QueueOffset]:
    """Ranges of queue offsets one by one. Raises `BadRequest` where that would take too long."""
    if sum(max(end - start, 0) for start, end in ranges) > OFFSETS_COUNT_MAX:
        raise wire.BadRequest(f"more than {OFFSETS_COUNT_MAX} offsets in one call")
    return [QueueOffset(at) for at in chain.from_iterable(range(start, end) for start, end in ranges)]


def _errors(outcomes: Sequence[str | StoreError | None]) -> bytes:
    """Encodes the outcomes of handles: of each a text, or an error."""
    return encode([(None, wire.describe(one)) if isinstance(one, StoreError) else (one, None) for one in outcomes])


# ---- the methods
#
# Each is run with the session, its arguments, the call's number and a share of the session's budget for what it reads.

_Run: TypeAlias = Callable[["Session", Any, int, Share], Awaitable[bytes]]


class Method(NamedTuple):
    """A method of a session: the decoder of its arguments, and the function that runs it."""

    decode: Callable[[msgspec.Raw], Any]
    run: _Run
    anywhere: bool  # whether a replica may answer it
    waits: bool  # whether it changes nothing, and may take for ever


def _simple(ask: Callable[[StoreClient, Any], Coroutine[Any, Any, Any]], *, reads: bool = False) -> _Run:
    """A method whose result is encoded as it is; `reads` when that may be large."""

    async def run(session: "Session", asked: Any, _number: int, share: Share) -> bytes:
        if reads:
            await share.acquire(VALUE_BYTES)
        return encode(await ask(session.store, asked))

    return run


def _given_back(run: _Run) -> _Run:
    """A method behind which there is something to lend, and others may wait for that."""

    async def then_tell(session: "Session", asked: Any, number: int, share: Share) -> bytes:
        answer = await run(session, asked, number, share)
        session.given_back(QueueNumber(asked.queue))
        return answer

    return then_tell


async def _queue_configs(store: StoreClient, asked: arguments.QueueConfigs) -> list[QueueConfig | None]:
    return [store.queues.config(QueueNumber(queue)) for queue in asked.queues]


async def _now(result: object) -> object:
    """A method that is done when it returns, as one that is awaited."""
    return result


def _find(store: StoreClient, asked: arguments.Find) -> Coroutine[Any, Any, Sequence[Position]]:
    below = None if asked.below is None else Position(LogOffset(asked.below[0]), asked.below[1])
    return store.log.find(
        IndexKind(asked.kind),
        asked.hash,
        from_ms=asked.from_ms,
        until_ms=asked.until_ms,
        below=below,
        limit=asked.limit,
    )


_READS: Mapping[str, _Run] = {
    "hello": lambda session, asked, _n, _s: session.hello(asked),
    "ping": _simple(lambda _store, _asked: _now(None)),
    "cancel": lambda session, asked, _n, _s: session.cancel(asked),
    "scan": lambda session, asked, _n, share: session.scan(asked, share),
    "fetch": lambda session, asked, _n, share: session.fetch(asked, share),
    "read": _simple(lambda store, a: store.log.read(Position(LogOffset(a.frame), a.row)), reads=True),
    "bounds": _simple(lambda store, a: store.queues.bounds(QueueNumber(a.queue))),
    "queue_configs": _simple(_queue_configs),
    "offset_at_time": _simple(lambda store, a: store.queues.offset_at_time(QueueNumber(a.queue), a.time_ms)),
    "last": _simple(lambda store, a: store.log.last(a.address_hash)),
    "find": _simple(_find),
    "addresses": _simple(lambda store, a: store.log.addresses(a.prefix, after=a.after, limit=a.limit), reads=True),
}  # what a replica may answer

_MASTERS: Mapping[str, _Run] = {
    "configure_queues": lambda session, asked, _n, _s: session.configure_queues(asked),
    "note_addresses": _simple(lambda store, a: store.log.note_addresses(a.addresses)),
    "kv_get": _simple(lambda store, a: store.keys.get(a.key, namespace=a.namespace)),
    "kv_put": _simple(
        lambda store, a: store.keys.put(
            a.key,
            a.value,
            expected_revision=a.expected_revision,
            namespace=a.namespace,
            ttl_ms=a.ttl_ms,
            expires_at_ms=a.expires_at_ms,
        )
    ),
    "kv_delete": _simple(
        lambda store, a: store.keys.delete(a.key, expected_revision=a.expected_revision, namespace=a.namespace)
    ),
    "kv_transact": _simple(
        lambda store, a: store.keys.transact(a.compares, arguments.operations_of(a.operations), namespace=a.namespace)
    ),
    "kv_prefix": _simple(
        lambda store, a: store.keys.prefix(a.prefix, after=a.after, limit=a.limit, namespace=a.namespace), reads=True
    ),
    "kv_range": _simple(
        lambda store, a: store.keys.range(
            a.start, a.end, namespace=a.namespace, after=a.after, limit=a.limit, at_revision=a.at_revision
        ),
        reads=True,
    ),
    "kv_count": _simple(lambda store, a: store.keys.count(a.start, a.end, namespace=a.namespace)),
    "kv_hold": lambda session, _a, _n, _s: session.kv_hold(),
    "kv_release": lambda session, asked, _n, _s: session.kv_release(asked),
    "kv_watch": lambda session, asked, number, _s: session.kv_watch(asked, number),
    "kv_watched": lambda session, asked, _n, share: session.kv_watched(asked, share),
    "kv_unwatch": lambda session, asked, _n, _s: session.kv_unwatch(asked),
    "kv_namespaces": _simple(lambda store, _a: store.keys.namespaces()),
    "kv_limit": _simple(
        lambda store, a: store.keys.limit(a.namespace, keys_max=a.keys_max, size_bytes_max=a.size_bytes_max)
    ),
    "commit_offsets": _simple(lambda store, a: store.groups.commit(a.group, a.offsets)),
    "offsets": _simple(lambda store, a: store.groups.offsets(a.group)),
    "delete_group": _simple(lambda store, a: store.groups.delete(a.group)),
    "cancel_timer": _simple(lambda store, a: store.timers.cancel(a.timer)),
    "timers": _simple(lambda store, a: store.timers.entries(after=a.after, limit=a.limit), reads=True),
    "take": lambda session, asked, _n, share: session.take(asked, share),
    "release": lambda session, asked, _n, _s: session.release(asked),
    "lease_policy": _simple(lambda store, a: store.leases.policy(QueueNumber(a.queue), group=a.group)),
    "set_lease_policy": _simple(
        lambda store, a: store.leases.set_policy(QueueNumber(a.queue), a.policy, group=a.group)
    ),
    "waiting": _simple(lambda store, a: store.leases.waiting(QueueNumber(a.queue), group=a.group)),
    "first_waiting": _simple(lambda store, a: store.leases.first_waiting(QueueNumber(a.queue), group=a.group)),
    "purge": _simple(lambda store, a: store.leases.purge(QueueNumber(a.queue), group=a.group)),
    "delete_queue": _simple(lambda store, a: store.queues.delete(QueueNumber(a.queue))),
}


def _owned(ask: Callable[[StoreClient, int, Sequence[QueueOffset], Any], Awaitable[Any]]) -> _Run:
    """A method of what an owner holds."""

    async def run(session: "Session", asked: Any, _number: int, _share: Share) -> bytes:
        return encode(await ask(session.store, session.owner(asked.owner), _offsets(asked.offsets), asked))

    return run


_OWNERS: Mapping[str, _Run] = {
    "settle": _owned(lambda store, owner, offsets, a: store.leases.settle(a.queue, owner, offsets, group=a.group)),
    "forward": _owned(
        lambda store, owner, offsets, a: store.leases.forward(a.queue, owner, offsets, a.rows, a.payload, group=a.group)
    ),
    "reject": _owned(
        lambda store, owner, offsets, a: store.leases.reject(a.queue, owner, offsets, reason=a.reason, group=a.group)
    ),
    "requeue": _given_back(
        _owned(
            lambda store, owner, offsets, a: _now(
                store.leases.requeue(a.queue, owner, offsets, delivered=a.delivered, delay_ms=a.delay_ms, group=a.group)  # type: ignore[func-returns-value]
            )
        )
    ),
    "extend": _owned(
        lambda store, owner, offsets, a: store.leases.extend(
            a.queue, owner, offsets, invisible_ms=a.invisible_ms, group=a.group
        )
    ),
}


def _handled(ask: Callable[[StoreClient, Any], Awaitable[Sequence[str | StoreError | None]]]) -> _Run:
    """A method that answers for each of some handles."""

    async def run(session: "Session", asked: Any, _number: int, _share: Share) -> bytes:
        return _errors(await ask(session.store, asked))

    return run


_HANDLES: Mapping[str, _Run] = {
    "settle_handles": _handled(lambda store, a: store.leases.settle_handles(a.handles)),
    "requeue_handles": _handled(lambda store, a: store.leases.requeue_handles(a.handles, delay_ms=a.delay_ms)),
    "extend_handles": _handled(lambda store, a: store.leases.extend_handles(a.handles, invisible_ms=a.invisible_ms)),
}

METHODS: Mapping[str, Method] = {
    name: Method(msgspec.msgpack.Decoder(arguments.ARGUMENTS[name]).decode, run, name in _READS, name == "kv_watched")
    for name, run in {**_READS, **_MASTERS, **_OWNERS, **_HANDLES}.items()
}
assert METHODS.keys() == arguments.ARGUMENTS.keys()
