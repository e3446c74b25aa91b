"""The marks of sessions (`gateway.port.marks`) in the key-value views of the logs that their messages are in."""

import asyncio
from collections.abc import Sequence

import msgspec

from gateway.domain.address import hash64
from gateway.ownership.owners import Owned
from gateway.port.marks import Fence, Mark, Marks, OpenedMarks
from gateway.publishing.fences import FENCE_KEPT_MS, fence_of, raise_fences
from store.api.client import StoreClient
from store.api.keys import Entry
from store.format.frame import ROW
from store.format.records import KV_QUEUE, KvPut
from store.format.records import encode as encode_record
from store.guards.rows import guard_row

NAMESPACE = "session-marks"
PAGE = 256
_NAME_BYTES_MAX = 360  # of a session's key in the key of its marks
_BARRIER = "opened"  # written before marks are read, so that all that was handed to the log before can be seen

_Said = tuple[bytes, int]  # the mark, and how many groups have its message

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[_Said, ...]).decode


def marks_key(session: str) -> str:
    """Returns the prefix of the keys of a session's marks; no session's prefix begins with another's."""
    size = len(session.encode("utf-8", "surrogatepass"))
    if size > _NAME_BYTES_MAX:
        return f"{NAMESPACE}/~{hash64(session):016x}{hash64(session[::-1]):016x}/"
    return f"{NAMESPACE}/{size}:{session}/"


def marks_change(marks: Marks, said: Sequence[_Said], pos: int, *, covers: int = 0) -> tuple[bytes, bytes]:
    """Returns the row and the record that keep marks of messages in the same frame; the record will stand at `pos`.

    Where several proxies could own the session the row guards those `covers` rows before it that have the messages.
    """
    record = encode_record(KvPut(f"{marks.key}{marks.slot}", _encode(said)))
    if marks.fence is not None:
        return guard_row(pos, len(record), marks.fence.name, covers=covers, epoch=marks.fence.epoch), record
    return ROW.pack(KV_QUEUE, pos, len(record), 0, 0, 0, 0, 0), record


async def open_marks(store: StoreClient, session: str, owned: Owned, *, used: bool) -> OpenedMarks:
    """Returns the marks of all that any log was given before this call. Later appends of former owners are refused.

    Raises `OwnershipLost`, `StoreError` if a log cannot be asked.
    """
    key = marks_key(session)
    if not used:
        return OpenedMarks(key=key, fence=fence_of(session, owned))
    fence = await raise_fences(store, session, owned)
    found = await asyncio.gather(*(_read(group, one, key, fence) for group, one in store.logs.items()))
    return OpenedMarks(key=key, fence=fence, used=True, found=[mark for marks in found for mark in marks])


async def _read(group: int, store: StoreClient, key: str, fence: Fence | None) -> list[Mark]:
    # A log stores in the order it is asked, so once this is stored, everything sent to it before is stored, too.
    # Where there is a fence, raising it was just that.
    if fence is None:
        await store.keys.put(key + _BARRIER, b"")
    return [
        Mark(int(entry.key[len(key) :]), group, mark, groups)
        for entry in await _entries(store, key)
        if not entry.key.endswith(_BARRIER)
        for mark, groups in _decode(entry.value)
    ]


async def forget_marks(store: StoreClient, session: str, owned: Owned, *, now_ms: int) -> None:
    """Forgets a session's marks; those of a former owner do not come back. Raises as `open_marks` does."""
    await raise_fences(store, session, owned, expires_at_ms=now_ms + FENCE_KEPT_MS)
    await asyncio.gather(*(_forget(one, marks_key(session)) for one in store.logs.values()))


async def _forget(store: StoreClient, key: str) -> None:
    for entry in await _entries(store, key):
        await store.keys.delete(entry.key)


async def _entries(store: StoreClient, key: str) -> list[Entry]:
    entries: list[Entry] = []
    while True:
        page = await store.keys.prefix(key, after=entries[-1].key if entries else "", limit=PAGE)
        entries += page
        if len(page) < PAGE:
            return entries
