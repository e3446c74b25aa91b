"""Fetching a range of the log from another replica."""

from collections.abc import AsyncGenerator

from store.base.streams import Stream, opened
from store.format.frame import HEADER, LogOffset, parse_header
from store.node.replica.context import ReplicaContext
from store.replication.epochs import EpochList
from store.replication.errors import BadMessage
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import RangeEnd, RangePart, RangeRequest

SILENCE_S = 10.0  # a replica that sends nothing for so long is given up


async def fetch_range(
    context: ReplicaContext, address: str, start: LogOffset, end: LogOffset, *, log_end: LogOffset
) -> AsyncGenerator[RangePart, None]:
    """Yields the sound frames that the replica at an address has of a range, in parts, in order; there may be gaps.

    They are whole, in their places and of the epochs that this log has there; their checksums are for `mend` to
    verify. Raises `BadMessage` (also `CorruptFrame`): another frame was sent; `StoreUnreachable`.
    """
    identity, epochs = context.identity, context.disk.epochs
    request = RangeRequest(
        group=context.group,
        replica=context.replica,
        start=start,
        end=end,
        log_end=log_end,
        epochs=epochs.cut(log_end).entries,
        cluster=identity.cluster,
        log=context.disk.log,
        check=identity.check,
    )
    async with opened(context.dial(address)) as channel:
        call = channel.unary_stream(wire.path(wire.FETCH_RANGE))(wire.encode(request))
        stream = Stream(call, wire.ERRORS, f"the replica at {address}")
        at = start
        while True:
            async with stream.within(SILENCE_S):
                message = await stream.read()
            part = wire.decode(message, RangePart | RangeEnd)  # type: ignore[arg-type]
            if isinstance(part, RangeEnd):
                return
            if part.start < at:
                raise BadMessage(f"a part at {part.start}, behind which {at} was sent already")
            at = _check(part, epochs)
            if at > end:
                raise BadMessage(f"a part from {part.start} to {at}, where {end} was asked for")
            yield part


def _check(part: RangePart, epochs: EpochList) -> LogOffset:
    """Returns where a part ends.

    Raises `BadMessage`, `CorruptFrame`: its frames are not whole, or not of this log.
    """
    at, skip = LogOffset(part.start), 0
    while skip < len(part.frames):
        header = parse_header(part.frames[skip : skip + HEADER.size], log_offset=at)
        if header is None or skip + header.size_bytes > len(part.frames):
            raise BadMessage(f"the frame at {at} is cut short")
        if header.epoch != epochs.epoch_at(at):
            raise BadMessage(f"the frame at {at} is of epoch {header.epoch}, and here of {epochs.epoch_at(at)}")
        skip += header.size_bytes
        at = LogOffset(at + header.size_bytes)
    return at
