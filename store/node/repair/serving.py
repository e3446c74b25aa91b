"""Ranges of the log for replicas that have them damaged, from a replica in either role.

Two logs are the same as far as their lists of epochs say (`store.replication.epochs`), and no further: nothing behind
that is sent, so that a tail which went another way never takes the place of the group's. A few ranges are sent at a
time, one to each replica, in parts, with pauses: replication and clients come first.
"""

import asyncio
import logging
from typing import Any

from store.base.errors import NotMaster, StoreClosed, StoreOverloaded, StoreUnreachable
from store.format.frame import LogOffset
from store.local.local import LocalStore
from store.node.replica.auth import refusal
from store.node.replica.context import ReplicaContext
from store.replication.epochs import EpochList
from store.replication.errors import BadEpochs, BadMessage
from store.replication.messages import Hello
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import RangeEnd, RangePart, RangeRequest, SealsAnswer, SealsRequest

logger = logging.getLogger(__name__)

RANGES_MAX = 4  # sent at the same time
PART_BYTES = 4 << 20  # of frames in one message, but for a frame that is larger
BYTES_PER_S = 64 << 20  # of one range: a few per cent of a disk's reading rate
SILENCE_S = 10.0  # an asker that takes nothing for so long is given up


class RangeServer:
    """The server of one node's ranges; see `store.node.replica.context.RepairServices`."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._busy: set[int] = set()  # replicas that are being sent a range; len <= RANGES_MAX

    async def send(self, request: bytes, context: Any) -> None:
        """Sends the sound frames of a range. Raises `StoreError`, OSError."""
        asked = wire.decode(request, RangeRequest)
        self._check(asked)
        if not asked.start < asked.end <= asked.log_end:
            raise BadMessage(f"no range from {asked.start} to {asked.end} in a log that ends at {asked.log_end}")
        if asked.replica in self._busy or len(self._busy) >= RANGES_MAX:
            raise StoreOverloaded(f"{len(self._busy)} ranges of the log are being sent, {RANGES_MAX} at most")
        self._busy.add(asked.replica)
        try:
            await self._send(asked, context)
        except TimeoutError as error:
            raise StoreUnreachable(f"replica {asked.replica} has taken nothing for {SILENCE_S:g} s") from error
        finally:
            self._busy.discard(asked.replica)

    def seals(self, request: bytes) -> bytes:
        """Returns the digests of closed segments. Raises `StoreError`."""
        asked = wire.decode(request, SealsRequest)
        self._check(asked)
        known: dict[tuple[int, int], bytes] = {(one.start, one.end): one.digest for one in self._store().seals()}
        return wire.encode(SealsAnswer(tuple([known.get(one, b"") for one in asked.segments])))

    def _check(self, asked: RangeRequest | SealsRequest) -> None:
        """Raises `NotMaster`, and `BadMessage` for an asker that is no other replica of this group."""
        context = self._context
        if asked.group != context.group:
            raise NotMaster(f"this node is of store group {context.group}, not {asked.group}")
        hello = Hello(
            group=asked.group,
            replica=asked.replica,
            session=0,
            epoch=0,
            epochs=(),
            first=0,
            end=0,
            cluster=asked.cluster,
            log=asked.log,
            check=asked.check,
        )
        refused = refusal(hello, context.identity, context.disk.log, context.known())
        if refused is not None:
            raise BadMessage(refused.text)
        if context.known().replica(asked.replica) is None or asked.replica == context.replica:
            raise BadMessage(f"there is no other replica {asked.replica}")

    async def _send(self, asked: RangeRequest, context: Any) -> None:
        common = self._common(asked)
        at, limit = LogOffset(asked.start), min(LogOffset(asked.end), common)
        while at < limit:
            at, frames = await self._store().replication.read_sound(at, PART_BYTES, end=limit)
            if not frames:
                break
            async with asyncio.timeout(SILENCE_S):
                await context.write(wire.encode(RangePart(at, frames)))
            at = LogOffset(at + len(frames))
            await asyncio.sleep(len(frames) / BYTES_PER_S)
        async with asyncio.timeout(SILENCE_S):
            await context.write(wire.encode(RangeEnd(common)))

    def _common(self, asked: RangeRequest) -> LogOffset:
        """Returns the log offset up to which this log is the same as the asker's, and on disk."""
        store = self._store()
        try:
            theirs = EpochList.of(asked.epochs)
        except BadEpochs as error:
            raise BadMessage(str(error)) from error
        found = self._context.disk.epochs.cut(store.replication.end).common(
            store.replication.end, theirs, LogOffset(asked.log_end)
        )
        return LogOffset(0) if found is None else min(found.at, store.replication.flushed)

    def _store(self) -> LocalStore:
        store = self._context.disk.store
        if store is None:
            raise StoreClosed("this replica is between two roles")
        return store
