"""The number of connected members that each shared subscription has at other proxies: the basis of fair shares.

Each of several proxies writes its number into a record that expires unless it is renewed, and reads those of the
others. A share that is a little out of date is a little unfair for a second, and nothing else depends on it.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from gateway.domain.address import hash64
from gateway.ownership.following import below, follow_keys
from gateway.ownership.owners import Owners
from gateway.ownership.stored_entries import stored_entries
from store.api.client import StoreClient
from store.api.keys import Change
from store.base import logs
from store.base.errors import StoreError
from store.base.rhythm import Reminder, pause
from store.base.streams import until_one_ends
from store.base.streams.event_wait import wait_at_most

COUNTS = "shared/counts"
SAY_S = 0.25  # that changes gather until they are sent
AGAIN_S = 20.0  # until it is sent again
TTL_MS = 60_000
RETRY_S = 1.0

log = logs.get(__name__)


class MemberCount(msgspec.Struct, frozen=True):
    """The connected members of one shared subscription at one proxy."""

    queue: str
    proxy: str
    count: int


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(MemberCount).decode


class SharedCounts:
    """The counts of one proxy's members and of all others. It belongs to the event loop."""

    def __init__(self, store: StoreClient, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self._here: dict[str, int] = {}
        self._unpublished: dict[str, None] = {}
        self._news = asyncio.Event()  # there is something unpublished
        self._records: dict[str, MemberCount] = {}  # of all proxies, by key
        self._elsewhere: dict[str, int] = {}

    def here(self, queue: str, count: int) -> None:
        """Notes the number of members connected here."""
        if self._owners.alone:
            return
        if count:
            self._here[queue] = count
        else:
            self._here.pop(queue, None)
        self._unpublished[queue] = None
        self._news.set()

    def elsewhere(self, queue: str) -> int:
        """Returns how many members are connected elsewhere."""
        return self._elsewhere.get(queue, 0)

    async def follow(self) -> None:
        """Publishes the own counts and follows those of other proxies, forever."""
        if not self._owners.alone:
            await until_one_ends(self._following(), self._publishing())  # none ends without an error

    # ---- own counts

    async def _publishing(self) -> None:
        again = Reminder(AGAIN_S)
        again.said()
        while True:
            self._news.clear()
            if not self._unpublished:
                await wait_at_most(self._news, again.left_s)
            await pause(SAY_S)  # changes soon after go with it
            if not again.left_s:
                again.said()
                self._unpublished.update(dict.fromkeys(self._here))
            try:
                await self.publish()
            except StoreError as error:
                log.debug("the count of shared subscription members could not be stored yet", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def publish(self) -> None:
        """Publishes the counts that have changed. Raises `StoreError`."""
        for queue in list(self._unpublished):
            count = self._here.get(queue, 0)
            key = f"{COUNTS}/{hash64(queue):016x}/{self._owners.id}"
            if count:
                record = MemberCount(queue, self._owners.id, count)
                await self._store.keys.put(key, _encode(record), ttl_ms=TTL_MS)
            else:
                await self._store.keys.delete(key)
            if self._here.get(queue, 0) == count:
                self._unpublished.pop(queue, None)

    # ---- counts of other proxies

    async def _following(self) -> None:
        await follow_keys(
            self._store,
            below(COUNTS),
            look=self._look,
            changed=self._changed,
            trouble="the counts of shared subscription members at other proxies cannot be read now",
        )

    async def _look(self) -> None:
        self._records = {entry.key: _decode(entry.value) async for entry in stored_entries(self._store, COUNTS)}
        self._add_up()

    async def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.kind == "put":
                self._records[change.key] = _decode(change.value)
            else:
                self._records.pop(change.key, None)
        self._add_up()

    def _add_up(self) -> None:
        elsewhere: dict[str, int] = {}
        for record in self._records.values():
            if record.proxy != self._owners.id:
                elsewhere[record.queue] = elsewhere.get(record.queue, 0) + record.count
        self._elsewhere = elsewhere
