"""A store in memory behind the real gRPC service, for tests of what reads it from other threads and processes."""

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from controller.api.client import Topic
from store.api.message import Message, encode
from store.api.queues import Bounds, Fetched
from store.base.errors import OffsetOutOfRange
from store.format.frame import ROW, Frame, QueueOffset, UnplacedFrame
from store.serving.rpc import StoreService
from tests.support.store.store_kit import placed


def unplaced(messages: Sequence[tuple[int, Message]]) -> UnplacedFrame:
    """Returns the frame of messages, each with its queue."""
    rows, records, at = [], [], 0
    for queue, message in messages:
        record = encode(message)
        rows.append(ROW.pack(queue, at, len(record), 0, 0, 0, 0, message.time_ms))
        records.append(record)
        at += len(record)
    return UnplacedFrame.build(b"".join(rows), b"".join(records))


class FakeStore:
    """Frames in a list and, of each queue, where its records are. As much of `StoreClient` as reading takes."""

    def __init__(self) -> None:
        self.log = self.queues = self  # its subjects, as far as they go
        self.frames: list[Frame] = []
        self.index: dict[int, list[tuple[int, int]]] = {}  # queue -> (frame's index, row) by offset
        self.first: dict[int, int] = {}  # queue -> first offset kept
        self.end = 0
        self.before_fetch: Callable[[], None] = lambda: None

    @property
    def confirmed(self) -> int:
        return self.end

    def append(self, messages: Sequence[tuple[int, Message]], stored_at_ms: int = 1_000) -> Frame:
        """Stores messages, each with its queue, as one frame."""
        built = unplaced(messages)
        frame = placed(built, self.end, stored_at_ms=stored_at_ms)
        assert frame is not None
        at = len(self.frames)
        places = [(queue, (at, row)) for row, (queue, _) in enumerate(messages)]
        self.frames.append(frame)
        for queue, place in places:
            self.index.setdefault(queue, []).append(place)
        self.end = frame.end
        return frame

    async def bounds(self, queue: int) -> Bounds:
        return Bounds(QueueOffset(self.first.get(queue, 0)), QueueOffset(len(self.index.get(queue, ()))))

    async def offset_at_time(self, queue: int, time_ms: int) -> QueueOffset:
        stored = [self.frames[at].header.stored_at_ms for at, _ in self.index.get(queue, ())]
        return QueueOffset(max(bisect_left(stored, time_ms), self.first.get(queue, 0)))

    async def fetch(self, queue: int, offset: int, *, max_bytes: int, max_rows: int = 1 << 30) -> Fetched:
        self.before_fetch()
        first, next_ = await self.bounds(queue)
        if not first <= offset <= next_:
            raise OffsetOutOfRange(offset, first, next_)
        frames: list[Frame] = []
        rows: list[list[int]] = []
        size, end, last = 0, offset, -1
        for at, row in self.index.get(queue, ())[offset : offset + max_rows]:
            if at != last:
                if frames and size + len(self.frames[at].data) > max_bytes:
                    break
                frames.append(self.frames[at])
                rows.append([])
                size, last = size + len(self.frames[at].data), at
            rows[-1].append(row)
            end += 1
        return Fetched(frames, rows, QueueOffset(offset), QueueOffset(end))


class FakeController:
    """Topics in a dict."""

    def __init__(self, topics: dict[str, tuple[int, ...]]) -> None:
        self.by_name = topics

    def topics(self) -> Iterable[Topic]:
        return [Topic(name=name, queues=queues) for name, queues in self.by_name.items()]


class Serving:
    """The gRPC service over a store, on an event loop in a thread of its own, for blocking clients."""

    def __init__(self, store: FakeStore, controller: FakeController, credentials: Any = None) -> None:
        self.store, self.controller, self.credentials = store, controller, credentials
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.service: StoreService | None = None
        self.port = 0

    def start(self) -> None:
        """Listens, on the port of the last time if there was one."""
        at, controller = f"127.0.0.1:{self.port}", self.controller
        starting = StoreService.start(self.store, controller, at, credentials=self.credentials)  # type: ignore[arg-type]
        self.service = asyncio.run_coroutine_threadsafe(starting, self.loop).result(10)
        self.port = self.service.port

    def stop(self) -> None:
        """Stops the server at once, as if its process died."""
        if self.service is not None:
            asyncio.run_coroutine_threadsafe(self.service.stop(0), self.loop).result(10)
            self.service = None

    def close(self) -> None:
        """Stops the server, and joins its thread."""
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    @property
    def target(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"


@contextmanager
def serving(topics: dict[str, tuple[int, ...]], credentials: Any = None) -> Iterator[Serving]:
    """Yields a served, empty store with these topics, over TLS where it has credentials."""
    running = Serving(FakeStore(), FakeController(topics), credentials)
    try:
        running.start()
        yield running
    finally:
        running.close()
