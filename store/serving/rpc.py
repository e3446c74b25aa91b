"""The store's gRPC server, for readers in other processes, such as Spark's executors, and for proxies.

It serves any `StoreClient`, so it stands in front of the store in its own process and in one process with
everything else alike. For readers Topics, Bounds, OffsetAtTime and Health are unary, Fetch is a server stream of
chunks (`store.rpc.wire`). gRPC's flow control carries back-pressure: a chunk is read from the store when the
last one has been taken, so a slow reader costs one chunk of memory.

Proxies have a service of their own on the same port (`store.serving.service`). It can write, so it is there only when
it is asked for.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec

from controller.api.client import ControllerClient, ControllerError
from store.api.client import StoreClient
from store.base import listening, pipes
from store.base.errors import OffsetOutOfRange, StoreClosed, StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.rpc import wire
from store.rpc.paths import MESSAGE_BYTES_MAX, NODE_SERVICE
from store.serving.service import NodeService

STREAMS_MAX = 64  # fetches served at the same time; each holds at most one chunk
CALLS_MAX = 1_024  # of all kinds at the same time: beyond, gRPC answers RESOURCE_EXHAUSTED by itself
SENT_BYTES_MAX = MESSAGE_BYTES_MAX + (16 << 20)  # frames to replicas go several in a message, a largest one among them

Unary = Callable[[bytes], Awaitable[bytes]]
RequestT = TypeVar("RequestT")

_log = logging.getLogger(__name__)


class StoreService:
    """A running gRPC server over a store and a controller; `start` makes one.

    `store` is the store that readers are served from; None while there is none. `node` serves proxies, if it was asked
    for.
    """

    def __init__(
        self,
        store: StoreClient | None,
        controller: ControllerClient,
        node: NodeService | None,
        *,
        by_first_level: bool = False,
    ) -> None:
        self.by_first_level = by_first_level
        self.store = store
        self.node = node
        self._controller = controller
        self._streams = 0  # <= STREAMS_MAX
        self._server: Any = None
        self.port = 0  # where it listens, once started

    @classmethod
    async def start(
        cls,
        store: StoreClient | None,
        controller: ControllerClient,
        address: str = "127.0.0.1:8081",
        *,
        node: NodeService | None = None,
        credentials: Any = None,
        more: Mapping[str, Mapping[str, Any]] | None = None,
        by_first_level: bool = False,
    ) -> "StoreService":
        """Serves on `address`, host and port; port 0 takes a free one. Raises OSError when it cannot be bound.

        `more` are the handlers of other services on the same port, by service and method.
        `credentials` are `store.rpc.credentials`'; without them everybody may connect.
        `by_first_level`: every topic is named by its addresses' first level, so that readers may skip others.
        """
        service = cls(store, controller, node, by_first_level=by_first_level)
        own = {wire.SERVICE: service._handlers()}
        if node is not None:
            own[NODE_SERVICE] = node.handlers()
        service._server, service.port = await listening.serve(
            listening.Server if node is None else pipes.PipeServer,
            address,
            {**own, **(more or {})},
            credentials=credentials,
            received_bytes_max=wire.REQUEST_BYTES_MAX,
            sent_bytes_max=SENT_BYTES_MAX,
            calls_count_max=CALLS_MAX,
        )
        return service

    async def stop(self, grace_s: float | None = None) -> None:
        """Takes no more calls, lets those in flight go on for `grace_s` seconds, then ends them."""
        if self.node is not None:
            await self.node.stand_down()
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handlers(self) -> dict[str, Any]:
        """Returns handlers by method name; bytes go in and out as they are."""
        unary = {
            wire.TOPICS: self._topics,
            wire.BOUNDS: self._bounds,
            wire.OFFSET_AT_TIME: self._offset_at_time,
            wire.HEALTH: self._health,
        }
        handlers = {name: grpc.unary_unary_rpc_method_handler(_guarded(answer)) for name, answer in unary.items()}
        return handlers | {wire.FETCH: grpc.unary_stream_rpc_method_handler(self._fetch)}

    def _reading(self) -> StoreClient:
        if self.store is None:
            raise StoreClosed("the node has no store open")
        return self.store

    # ---- unary methods

    async def _topics(self, _request: bytes) -> bytes:
        return wire.encode([wire.TopicEntry(topic.name, topic.queues) for topic in self._controller.topics()])

    async def _bounds(self, request: bytes) -> bytes:
        asked = _parse(request, wire.BoundsRequest)
        store = self._reading()
        return wire.encode([await store.queues.bounds(QueueNumber(queue)) for queue in asked.queues])

    async def _offset_at_time(self, request: bytes) -> bytes:
        asked = _parse(request, wire.OffsetAtTimeRequest)
        return wire.encode(await self._reading().queues.offset_at_time(QueueNumber(asked.queue), asked.time_ms))

    async def _health(self, _request: bytes) -> bytes:
        return wire.encode(wire.HealthAnswer(self._reading().log.confirmed, self._streams, self.by_first_level))

    # ---- the stream

    async def _fetch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            asked = _parse(request, wire.FetchRequest)
            listening.admit(context)
            if self._streams >= STREAMS_MAX:
                raise wire.TooManyStreams(f"{STREAMS_MAX} fetches are in progress")
            self._streams += 1
            try:
                async for chunk in self._chunks(asked):
                    yield chunk
            finally:
                self._streams -= 1
        except (StoreError, ControllerError) as error:
            await wire.ERRORS.refuse(context, error, logger=_log)

    async def _chunks(self, asked: wire.FetchRequest) -> AsyncIterator[bytes]:
        """Yields the chunks of `[offset, end)`, which must lie within the queue's bounds."""
        queue, offset = QueueNumber(asked.queue), QueueOffset(asked.offset)
        store = self._reading()
        bounds = await store.queues.bounds(queue)
        end = bounds.next if asked.end is None else asked.end
        if not bounds.first <= offset <= end <= bounds.next:
            raise OffsetOutOfRange(max(offset, end) if offset >= bounds.first else offset, *bounds)
        while offset < end:
            fetched = await store.queues.fetch(
                queue, offset, max_bytes=asked.chunk_bytes, max_rows=min(end - offset, wire.CHUNK_ROWS_MAX)
            )
            assert fetched.next > offset, "a fetch below the next offset brings something"
            yield wire.encode_chunk(fetched)
            offset = fetched.next


def _parse(request: bytes, kind: type[RequestT]) -> RequestT:
    """Returns the request as a value; raises `BadRequest`."""
    if len(request) > wire.REQUEST_BYTES_MAX:
        raise wire.BadRequest(f"a request of {len(request)} bytes, which may have {wire.REQUEST_BYTES_MAX}")
    try:
        return msgspec.msgpack.decode(request, type=kind)
    except msgspec.MsgspecError as error:
        raise wire.BadRequest(str(error)) from error


def _guarded(answer: Unary) -> Callable[[bytes, Any], Awaitable[bytes]]:
    """Returns the method as gRPC calls it, its errors turned into statuses."""

    async def call(request: bytes, context: Any) -> bytes:
        try:
            answered = await answer(request)
            listening.admit(context)
            return answered
        except (StoreError, ControllerError) as error:
            await wire.ERRORS.refuse(context, error, logger=_log)

    return call
