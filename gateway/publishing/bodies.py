"""Bodies in parts: stored part by part, published by a message that names them, read part by part, copied.

Each part is a frame in the log of every store group in which a queue wants the message, so that queue and parts lie in
one log and are kept together. The message has rows for named queues alone. See `store.format.body_parts`.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Random
from gateway.port.bodies import BodyParts, StoredBody, parts_of, with_parts
from gateway.publishing.pending_counts import recounted, unsure_gates
from gateway.publishing.publishing import Producer, refusal_of
from gateway.publishing.routing.router import Router
from store.api.client import StoreClient
from store.api.log import Appended
from store.api.message import Message, encode
from store.base import logs
from store.base.errors import CorruptFrame, StoreError, StoreUnreachable
from store.format.body_parts import UPLOAD_MS_MAX, part_frame, part_of
from store.format.frame import ROW, ROW_EXTRA, LogOffset, Position, UnplacedFrame

RETRY_AFTER_MS: Final = 1_000

log = logs.get(__name__)


class Bodies:
    """The bodies in parts of one process.

    `appended` is called with the queues that got something.
    """

    def __init__(
        self,
        store: StoreClient,
        router: Router,
        *,
        random: Random,
        appended: Callable[[Sequence[int]], None],
        now_ms: Callable[[], int],
        compress_bytes_min: int = 0,
    ) -> None:
        self._store = store
        self._router = router
        self.takes: Callable[[int], bool] = lambda _queue: True  # False for one that is read by other protocols
        self._appended = appended
        self._random = random
        self._producers: dict[int, Producer] = {}  # by store group
        self._now_ms = now_ms
        self._compress_bytes_min = compress_bytes_min

    # ---- publishing

    async def begin(self, message: Message) -> Sequence[int]:
        """See `BeginBody`. Raises `Refusal`."""
        if message.deliver_at_ms is not None:
            raise Refusal(Cause.PRECONDITION, "a body as long as this one cannot be delayed")
        if message.retain:
            raise Refusal(Cause.PRECONDITION, "a body as long as this one cannot be retained")
        return sorted(self.groups_of(self.queues_of(message))) or [self._store.group]

    def queues_of(self, message: Message) -> list[int]:
        """Returns the named queues that a message with a body in parts goes to. Raises `Refusal`."""
        queues, _ = self._router.named_only(message)
        return [queue for queue in queues if self.takes(queue)]

    def groups_of(self, queues: Iterable[int]) -> set[int]:
        """Returns the store groups that queues lie in."""
        return {self._router.groups[queue] for queue in queues}

    async def store_part(self, groups: Collection[int], data: bytes) -> Mapping[int, LogOffset]:
        """See `StorePart`. Raises `StoreError`."""
        frames = await asyncio.gather(*(self._append_part(group, data) for group in groups))
        return dict(zip(groups, frames, strict=True))

    async def _append_part(self, group: int, data: bytes) -> LogOffset:
        return await self._append(
            group,
            lambda producer: part_frame(
                data,
                time_ms=self._now_ms(),
                producer_id=producer.id,
                sequence=producer.sequence,
                compress_bytes_min=self._compress_bytes_min,
            ),
        )

    async def publish(self, message: Message, began_ms: int) -> StoredBody:
        """See `PublishBody`. Raises `Refusal`, `StoreError`."""
        parts = parts_of(message)
        assert parts is not None
        if abs(self._now_ms() - began_ms) > UPLOAD_MS_MAX:
            why = f"the body has taken longer than {UPLOAD_MS_MAX // 1_000} s to come"
            raise Refusal(Cause.OVERLOAD, why, retry_after_ms=RETRY_AFTER_MS)
        if unsure := unsure_gates(self._router.gates, [(message, self.queues_of(message))]):
            await recounted(unsure)
        queues = self.queues_of(message)
        if not self.groups_of(queues) <= parts.frames.keys():
            why = "the queues that want the message have changed while its body came"
            raise Refusal(Cause.OVERLOAD, why, retry_after_ms=RETRY_AFTER_MS)
        gates = self._router.gates
        admitted = [queue for queue in queues if (gate := gates.get(queue)) is None or gate.admit(message)]
        landing = [(gate, gate.admitted) for queue in admitted if (gate := gates.get(queue)) is not None]
        try:
            await self._put(message, admitted)
        finally:
            for gate, count in landing:
                gate.landed(count)
        log.info(
            "a message with a body in parts goes to queues alone, and to no reader of topics",
            address=message.address,
            size_bytes=parts.size_bytes,
            queues=len(queues),
        )
        return StoredBody(queues=len(queues), overflowed=len(admitted) < len(queues))

    async def _put(self, message: Message, queues: Sequence[int]) -> None:
        """Stores a message for queues: a frame in each of their store groups."""
        _, address_hash = self._router.named_only(message)
        record = encode(message)
        by_group: dict[int, list[bytes]] = {}
        for queue in queues:
            row = ROW.pack(queue, 0, len(record), ROW_EXTRA, 0, address_hash, 0, message.time_ms)
            by_group.setdefault(self._router.groups[queue], []).append(row)
        results = await asyncio.gather(
            *(self._append_rows(group, b"".join(rows), record) for group, rows in by_group.items()),
            return_exceptions=True,
        )
        failed = [one for one in results if isinstance(one, BaseException)]
        if len(failed) < len(results) or not failed:
            self._appended(tuple(queues))
        if not failed:
            return
        if len(failed) < len(results) and isinstance(failed[0], StoreError):
            raise Refusal(Cause.UNKNOWN, f"stored in part: {refusal_of(failed[0]).detail}", retry_after_ms=5_000)
        raise failed[0]

    async def _append_rows(self, group: int, rows: bytes, record: bytes) -> LogOffset:
        return await self._append(
            group,
            lambda producer: UnplacedFrame.build(rows, record, producer_id=producer.id, sequence=producer.sequence),
        )

    async def _append(self, group: int, make: Callable[[Producer], UnplacedFrame]) -> LogOffset:
        """Appends a frame to the log of a store group; returns where it is once it is durable. Raises `StoreError`."""
        store = self._store.logs.get(group)
        if store is None:
            raise StoreUnreachable(f"store group {group} is not known here")
        producer = self._producers.get(group)
        if producer is None:
            producer = self._producers[group] = Producer(self._random.getrandbits(63) | 1)
        producer.sequence += 1
        appended: asyncio.Future[LogOffset] = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StoreError) -> None:
            if isinstance(outcome, StoreError):
                # Its number stays unused, which the store takes for a lost frame: begin another sequence.
                if self._producers.get(group) is producer:
                    del self._producers[group]
                if not appended.done():
                    appended.set_exception(outcome)
            elif not appended.done():
                appended.set_result(outcome.frame)

        store.log.append(make(producer), done)
        return await appended

    # ---- reading

    async def read_part(self, frame: LogOffset) -> bytes:
        """See `ReadPart`. Raises `Refusal`, `StoreError`."""
        try:
            record = await self._store.log.read(Position(frame, 0))
            if record is not None:
                return part_of(record, frame)
            if not await self._is_trimmed(frame):
                raise StoreUnreachable(f"the store lacks a frame that it has confirmed, at log offset {frame}")
            why = f"a part of a body is gone: it lay at log offset {frame}"
        except CorruptFrame as error:
            why = f"a part of a body is lost: {error}"
        log.error("a message is lost: its body cannot be read", why=why)
        raise Refusal(Cause.DAMAGED, why)

    async def _is_trimmed(self, frame: LogOffset) -> bool:
        """Returns whether the log begins behind a frame. A new master may for a moment not know how far it reaches."""
        found, _ = await self._store.log.scan(Position(frame, 0), None, max_bytes=1)
        return bool(found) and found[0].start > frame

    async def copy(self, message: Message, groups: Collection[int]) -> Message:
        """Returns the message with its parts stored anew in some store groups.

        So they are as young as the message that is about to be stored. Raises `Refusal` (DAMAGED), `StoreError`.
        """
        parts = parts_of(message)
        assert parts is not None
        frames: dict[int, list[LogOffset]] = {group: [] for group in groups}
        for frame in next(iter(parts.frames.values())):
            stored = await self.store_part(groups, await self.read_part(frame))
            for group, at in stored.items():
                frames[group].append(at)
        return with_parts(message, BodyParts(parts.size_bytes, frames))
