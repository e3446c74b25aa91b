"""A synchronous client of the store's gRPC service, for readers that have no event loop: Spark, scripts, notebooks.

Every call is a read and may be repeated: while the server is away or overloaded the reader tries again, with back-off,
for `retry_s` seconds since the last thing that worked; a fetch goes on at the record where it was interrupted. Frames
are checked end to end: both checksums of every frame, and every row's queue.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import grpc
import msgspec

from store.api.queues import Bounds, Fetched
from store.base.errors import RemoteFailure, StoreUnreachable
from store.base.streams import Backoff
from store.format.frame import Frame, QueueOffset
from store.rpc import wire

RETRY_S = 30.0
CALL_S = 10.0  # a unary call that takes longer is given up and repeated
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 2.0
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 20_000, 10_000  # a stream whose server vanished is noticed in 30 s

_AGAIN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED})
AnswerT = TypeVar("AnswerT")
ChunkT = TypeVar("ChunkT", Fetched, wire.ChunkSizes)


class RemoteReader:
    """Reads the store at `target`, host and port. A context manager; not for several threads at once.

    Several targets, with commas between them, have the same store, as the proxies of a cluster: while one is away the
    next one is asked. `first` is the number of the one to begin with.
    `credentials` are `store.rpc.credentials`'; without them the connection is plain.
    """

    def __init__(
        self,
        target: str,
        *,
        retry_s: float = RETRY_S,
        chunk_bytes: int = wire.CHUNK_BYTES,
        credentials: Any = None,
        first: int = 0,
    ) -> None:
        self.target = target
        self._targets = target.split(",")
        self._turn = first % len(self._targets)
        self._credentials = credentials
        self._retry_s = retry_s
        self._chunk_bytes = min(max(chunk_bytes, wire.CHUNK_BYTES_MIN), wire.CHUNK_BYTES_MAX)
        self._open()

    def _open(self) -> None:
        """Makes the channel to the target whose turn it is; it connects when it is first used."""
        target, credentials = self._targets[self._turn], self._credentials
        options = (
            ("grpc.max_receive_message_length", wire.MESSAGE_BYTES_MAX),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.enable_http_proxy", 0),  # a store is reached directly, whatever the environment says of proxies
        )
        self._channel: Any = (
            grpc.insecure_channel(target, options=options)
            if credentials is None
            else grpc.secure_channel(target, credentials.for_grpc(), options=options)
        )
        self._unary = {
            name: self._channel.unary_unary(f"/{wire.SERVICE}/{name}")
            for name in (wire.TOPICS, wire.BOUNDS, wire.OFFSET_AT_TIME, wire.HEALTH)
        }
        self._stream = self._channel.unary_stream(f"/{wire.SERVICE}/{wire.FETCH}")

    def __enter__(self) -> "RemoteReader":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; fetches in flight end with an error."""
        self._channel.close()

    def _after(self, error: Any, patience: "_RetryLimit") -> None:
        """Waits before a repetition, and turns to the next target. Raises final errors."""
        patience.wait_after(error)
        if len(self._targets) > 1:
            self._channel.close()
            self._turn = (self._turn + 1) % len(self._targets)
            self._open()

    def topics(self) -> dict[str, tuple[int, ...]]:
        """Returns every topic and its queue numbers. Raises `StoreUnreachable`, like every method here."""
        return {entry.name: entry.queues for entry in self._call(wire.TOPICS, b"", list[wire.TopicEntry])}

    def bounds(self, queues: Sequence[int]) -> dict[int, Bounds]:
        """Returns the readable range of each queue."""
        found: dict[int, Bounds] = {}
        for i in range(0, len(queues), wire.QUEUES_MAX):
            some = tuple(queues[i : i + wire.QUEUES_MAX])
            answer = self._call(wire.BOUNDS, wire.encode(wire.BoundsRequest(some)), list[tuple[int, int]])
            if len(answer) != len(some):
                raise wire.BadAnswer(f"bounds of {len(answer)} queues where {len(some)} were asked for")
            found |= {q: Bounds(QueueOffset(a), QueueOffset(b)) for q, (a, b) in zip(some, answer, strict=True)}
        return found

    def offset_at_time(self, queue: int, time_ms: int) -> QueueOffset:
        """Returns the first offset of a queue stored at or after a time (ms since 1970); `next` when there is none."""
        request = wire.encode(wire.OffsetAtTimeRequest(queue, time_ms))
        return QueueOffset(self._call(wire.OFFSET_AT_TIME, request, int))

    def health(self) -> wire.HealthAnswer:
        """Asks whether the store answers, and how far its log is confirmed."""
        return self._call(wire.HEALTH, b"", wire.HealthAnswer)

    def fetch_chunks(self, queue: int, start: int, end: int | None = None) -> Iterator[Fetched]:
        """Yields records `start` to `end` (exclusive; None: the present end) of a queue, many frames at a time.

        Ends when all of them have come. Raises `OffsetOutOfRange` when they are not all there, `CorruptFrame`,
        `BadAnswer`, `StoreUnreachable`, `RemoteFailure`.
        """
        return self._chunks(queue, start, end, partial(wire.decode_chunk, queue=queue))

    def fetch_sizes(self, queue: int, start: int, end: int) -> Generator[wire.ChunkSizes, None, None]:
        """Yields the sizes of records, many at a time. Raises the same, but for damage that it does not look for."""
        return self._chunks(queue, start, end, wire.decode_sizes)

    def _chunks(
        self, queue: int, start: int, end: int | None, decode: Callable[[bytes], ChunkT]
    ) -> Generator[ChunkT, None, None]:
        if end is None:
            end = self.bounds([queue])[queue].next
        patience = _RetryLimit(self.target, self._retry_s)
        while start < end:
            call = self._stream(wire.encode(wire.FetchRequest(queue, start, end, self._chunk_bytes)))
            try:
                for data in call:
                    chunk = decode(data)
                    if chunk.offset != start or not start < chunk.next <= end:
                        raise wire.BadAnswer(f"offsets {chunk.offset} to {chunk.next} came where {start} was due")
                    yield chunk
                    start = chunk.next
                    patience.reset()
                if start < end:
                    raise wire.BadAnswer(f"a fetch of queue {queue} ended at {start}, before {end}")
            except grpc.RpcError as error:
                self._after(error, patience)
            finally:
                call.cancel()

    def fetch(
        self, queue: int, start: int, end: int | None = None
    ) -> Generator[tuple[Frame, Sequence[int], int], None, None]:
        """Yields the same, a frame at a time: the frame, its rows of the queue, and the first one's queue offset."""
        for chunk in self.fetch_chunks(queue, start, end):
            offset = int(chunk.offset)
            for frame, rows in zip(chunk.frames, chunk.rows, strict=True):
                yield frame, rows, offset
                offset += len(rows)

    def _call(self, method: str, request: bytes, kind: Callable[..., AnswerT]) -> AnswerT:
        """Makes one unary call, and repeats it while that makes sense."""
        patience = _RetryLimit(self.target, self._retry_s)
        while True:
            try:
                answer = self._unary[method](request, timeout=CALL_S)
            except grpc.RpcError as error:
                self._after(error, patience)
                continue
            try:
                value: AnswerT = msgspec.msgpack.decode(answer, type=kind)
            except msgspec.MsgspecError as error:
                raise wire.BadAnswer(f"{method}: {error}") from error
            return value


class _RetryLimit:
    """The limits of a reader's retries: the back-off doubles, and the time since the last success is bounded."""

    def __init__(self, target: str, retry_s: float) -> None:
        self._target, self._retry_s = target, retry_s
        self.reset()

    def reset(self) -> None:
        """Resets the back-off and the time limit after a success."""
        self._since_s: float | None = None
        self._backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)

    def wait_after(self, error: Any) -> None:
        """Sleeps before the next try; raises the reader's error when there is to be none."""
        status = error.code()
        if status not in _AGAIN:
            refused = wire.ERRORS.ended_with(error.trailing_metadata())
            raise refused or RemoteFailure(f"{status.name}: {error.details()}") from error
        now_s = time.monotonic()
        self._since_s = self._since_s if self._since_s is not None else now_s
        if now_s - self._since_s + self._backoff.longest_s > self._retry_s:
            why = f"{status.name} for {self._retry_s:g} s: {error.details()}"
            raise StoreUnreachable(f"the store at {self._target} cannot be read, {why}") from error
        time.sleep(self._backoff.next_s())
