"""Snapshots of a simulated replica's views, in place of those that are files (`store.node.snapshots`)."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from google_crc32c import value

from store.base.errors import SnapshotUnusable
from store.base.streams import Stream
from store.format.frame import LogOffset
from store.node import master_role, replacing, replica_role
from store.replication.epochs import EpochList
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import SnapshotHead, SnapshotPart, SnapshotRequest


class _Sender:
    """The master's side."""

    def __init__(self, _directory) -> None:
        pass

    async def send(self, store, epochs: EpochList, asked: SnapshotRequest, context) -> None:
        if asked.starts_over and store.is_damaged:
            raise SnapshotUnusable("the master's log is damaged too")
        if store.views.spoiled:
            raise SnapshotUnusable("the master's views are damaged")
        data, first = pickle.dumps(store.views), store.replication.first
        kept = epochs.cut(first).trim(first).entries
        sound = not store.is_damaged
        head = SnapshotHead(asked.epoch, store.group, first, store.log.confirmed, len(data), kept, sound)
        await context.write(wire.encode(head))
        await context.write(wire.encode(SnapshotPart(0, data, value(data))))


async def _fetch(context, address: str, epoch: int, *, starts_over: bool = False) -> None:
    """Fetches a snapshot as a replica does: whole and beside the log, with the platter's permission."""
    channel = context.dial(address)
    try:
        request = wire.encode(SnapshotRequest(context.group, context.replica, epoch, starts_over))
        call = channel.unary_stream(wire.path(wire.SNAPSHOT))(request)
        head = wire.decode(await Stream(call, wire.ERRORS, "the master").read(), SnapshotHead)
        part = wire.decode(await Stream(call, wire.ERRORS, "the master").read(), SnapshotPart)
        context.disk.platter.fetched = LogOffset(head.first), EpochList.of(head.epochs), pickle.loads(part.data)
    finally:
        with suppress(Exception):
            await channel.close()


async def _install(context, lost_end: LogOffset | None) -> None:
    """Replaces log, epochs and views in one step."""
    first, epochs, views = context.disk.platter.fetched
    context.disk.keep(epochs)
    context.disk.platter.begin_anew(first, views, lost_end)


@contextmanager
def in_place() -> Iterator[None]:
    """Makes nodes take these functions for their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(master_role, "SnapshotSender", _Sender)
        patch.setattr(replica_role, "fetch_snapshot", _fetch)
        patch.setattr(replacing, "install_fetched", _install)
        yield
