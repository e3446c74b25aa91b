"""Fences: the owner of a session or a bridge closes the logs to frames that a former owner may still send.

A proxy that was stopped and goes on, or that was cut off, sends its clients' messages, to any group. Nothing tells it
to stop. So a process that takes over raises the fence of the name in every log, and only then reads the logs, or a
bridge's upstream: frames of the owner before are refused from there on, whatever they carry (`store.guards`).
"""

import asyncio

from gateway.domain.idempotency import digest
from gateway.ownership.owners import Owned, OwnershipLost
from gateway.port.marks import Fence
from store.api.client import StoreClient
from store.api.log import Appended
from store.base.errors import AppendOutcomeUnknown, StoreError
from store.format.frame import FRAME_GUARDED, UnplacedFrame
from store.guards.rows import FENCES, epoch_in, fence_record, guard_row

FENCE_KEPT_MS = 24 * 3_600_000  # after a session has ended: how late its last owner's frames may come
TRIES_COUNT = 3  # of a fence whose outcome is unknown: raising it twice does no harm


def fence_of(name: str, owned: Owned) -> Fence | None:
    """Returns the fence that an owner's frames carry; None where no other proxy can own names."""
    return Fence(digest(name), owned.epoch) if owned.epoch else None


def fence_change(fence: Fence, pos: int, *, covers: int, expires_at_ms: int = 0) -> tuple[bytes, bytes]:
    """Returns the guard row and the record that raise a fence; the record will stand at `pos` of the payload.

    The `covers` rows before it are stored only if the fence was not raised higher.
    """
    record = fence_record(fence.name, fence.epoch, expires_at_ms=expires_at_ms)
    return guard_row(pos, len(record), fence.name, covers=covers, epoch=fence.epoch), record


async def raise_fences(store: StoreClient, name: str, owned: Owned, *, expires_at_ms: int = 0) -> Fence | None:
    """Closes all logs to former owners of a name; returns its owner's fence, None where no other proxy can own names.

    Raises `OwnershipLost` when there is a later owner, `StoreError` when a log cannot be asked.
    """
    fence = fence_of(name, owned)
    if fence is None:
        return None
    newest = await _raise_in_all(store, fence, expires_at_ms)
    if newest:
        # A later owner; or revisions have begun again further back, after an unclean election of the home group.
        await owned.confirm()
        fence = Fence(fence.name, max(newest + 1, owned.epoch))
        if await _raise_in_all(store, fence, expires_at_ms):
            raise OwnershipLost(name)
    return fence


async def _raise_in_all(store: StoreClient, fence: Fence, expires_at_ms: int) -> int:
    """Raises a fence in all logs; 0, or the epoch of a later owner."""
    return max(await asyncio.gather(*(_raise(log, fence, expires_at_ms) for log in store.logs.values())), default=0)


async def _raise(store: StoreClient, fence: Fence, expires_at_ms: int) -> int:
    row, record = fence_change(fence, 0, covers=0, expires_at_ms=expires_at_ms)
    frame = UnplacedFrame.build(row, record, flags=FRAME_GUARDED)
    result = await _append(store, frame)
    for _ in range(TRIES_COUNT - 1):
        if isinstance(result, AppendOutcomeUnknown):
            result = await _append(store, frame)
    if isinstance(result, StoreError):
        raise result
    if not result.failed:
        return 0
    entry = await store.keys.get(fence.name.hex(), namespace=FENCES)
    return fence.epoch if entry is None else epoch_in(entry.value)


async def _append(store: StoreClient, frame: UnplacedFrame) -> Appended | StoreError:
    done: asyncio.Future[Appended | StoreError] = asyncio.get_running_loop().create_future()
    store.log.append(frame, lambda result: None if done.done() else done.set_result(result))
    return await done
