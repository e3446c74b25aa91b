"""The subscriptions of this process: of several proxies one runs each, and another one goes on when it dies.

All processes watch the subscriptions' keys. Each tries to own the name of each subscription; the one that does runs it
until the subscription changes, is deleted, or another process takes it. Events that a former owner has delivered and
not committed are delivered again: push is at least once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from gateway.domain.access import Identity, Permissions
from gateway.domain.cursor import offsets_of
from gateway.domain.session_user import SessionUser
from gateway.ownership.following import below, follow_keys
from gateway.ownership.owned_task import OwnedTask
from gateway.ownership.owners import Owned, Owners, OwnershipLost
from gateway.ownership.stored_entries import stored_entries
from gateway.push.context import PushContext
from gateway.push.delivery import PushDelivery, SinkGone, status_key
from gateway.push.sender import SinkKinds
from gateway.push.spec import SUBSCRIPTIONS, SubscriptionRecord
from store.api.keys import Change, Delete, Put
from store.base import logs
from store.base.errors import RevisionConflict, StoreError

PREFIX: Final = "push/"  # of the names that are owned
LOOK_S: Final = 10.0  # between two looks whether a subscription is free; a watch tells of its end before
FIRST_S: Final = 0.2  # that a process waits by chance for a new subscription, so that not one has them all
AGAIN_S: Final = 5.0  # after a failure that is our own
FOLLOW_MIN_S, FOLLOW_MAX_S = 0.2, 5.0  # between attempts to read the subscriptions

log = logs.get(__name__)
_decode = msgspec.msgpack.Decoder(SubscriptionRecord).decode


def subscription_key(id_: str) -> str:
    """Returns the key of a subscription."""
    return f"{SUBSCRIPTIONS}/{id_}"


class PushManager:
    """All subscriptions that there are. It belongs to the event loop."""

    def __init__(
        self,
        context: PushContext,
        owners: Owners,
        kinds: SinkKinds,
        *,
        permissions_of: Callable[[Identity], Permissions],
        spawn: Callable[[Coroutine[Any, Any, object]], asyncio.Task[None]],
    ) -> None:
        self._context = context
        self._owners = owners
        self._kinds = kinds
        self._permissions_of = permissions_of
        self._spawn = spawn
        self._runners: dict[str, _Runner] = {}
        self._ending: set[asyncio.Task[None]] = set()  # runners of subscriptions that are deleted
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Runs those that are not another process's."""
        self._owners.serve(PREFIX, self)
        self._following = self._spawn(self._follow())

    async def stop(self) -> None:
        """Lets deliveries in flight end, commits the cursors, and lets others go on."""
        if self._following is not None:
            self._following.cancel()
        tasks = [*(runner.task for runner in self._runners.values()), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def deliveries(self) -> list[PushDelivery]:
        """Returns the subscriptions that this process runs."""
        return [runner.delivery for runner in self._runners.values() if runner.delivery is not None]

    # ---- the subscriptions that there are

    async def _follow(self) -> None:
        await follow_keys(
            self._context.store,
            below(SUBSCRIPTIONS),
            look=self._look,
            changed=self._changed,
            trouble="subscriptions cannot be read now",
        )

    async def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            id_ = change.key.removeprefix(f"{SUBSCRIPTIONS}/")
            if change.kind == "put":
                self._there(id_, change.value, change.revision)
            else:
                self._gone(id_)

    async def _look(self) -> None:
        there = {
            entry.key.removeprefix(f"{SUBSCRIPTIONS}/"): entry
            async for entry in stored_entries(self._context.store, SUBSCRIPTIONS)
        }
        for id_ in [id_ for id_ in self._runners if id_ not in there]:
            self._gone(id_)
        for id_, entry in there.items():
            self._there(id_, entry.value, entry.revision)

    def _there(self, id_: str, value: bytes, revision: int) -> None:
        """Starts a subscription that is new, or restarts one that has changed."""
        try:
            record = _decode(value)
        except msgspec.MsgspecError:
            log.exception("a subscription's record is invalid", subscription=id_)
            return
        runner = self._runners.get(id_)
        if runner is None:
            runner = self._runners[id_] = _Runner(
                self._context, self._owners, self._kinds, record, revision, permissions_of=self._permissions_of
            )
            runner.task = self._spawn(runner.run())
        else:
            runner.change(record, revision)

    def _gone(self, id_: str) -> None:
        runner = self._runners.pop(id_, None)
        if runner is not None:
            runner.end()
            self._ending.add(runner.task)
            runner.task.add_done_callback(self._ending.discard)

    # ---- `gateway.ownership.owners.OwnershipListener`

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """See `OwnershipListener`."""
        runner = self._runners.get(name.removeprefix(PREFIX))
        if runner is not None:
            await runner.owned_task.hand_over()

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """See `OwnershipListener`. It is free from now on; of one that is deleted nothing is to stay."""
        id_ = name.removeprefix(PREFIX)
        owned = await take()
        if await self._context.store.keys.get(subscription_key(id_)) is None:
            await owned.forget([Delete(status_key(id_))])
        await owned.release()
        if (runner := self._runners.get(id_)) is not None:
            runner.owned_task.look_now()

    async def on_fenced(self) -> None:
        """See `OwnershipListener`."""
        for runner in self._runners.values():
            runner.owned_task.lose()


class _Runner:
    """Runs one subscription while this process owns its name, again and again: each time as its record is then."""

    task: asyncio.Task[None]

    def __init__(
        self,
        context: PushContext,
        owners: Owners,
        kinds: SinkKinds,
        record: SubscriptionRecord,
        revision: int,
        *,
        permissions_of: Callable[[Identity], Permissions],
    ) -> None:
        self.delivery: PushDelivery | None = None
        self._context = context
        self._owners = owners
        self._kinds = kinds
        self._permissions_of = permissions_of
        self._record = record
        self._revision = revision
        self._name = f"{PREFIX}{record.id}"
        self._delivering: asyncio.Task[None] | None = None  # None as soon as it is cancelled: its end takes a while
        self.owned_task = OwnedTask(self._name, self._work, owners, look_s=LOOK_S, chance=context.chance)

    def change(self, record: SubscriptionRecord, revision: int) -> None:
        """Continues with another record."""
        if revision > self._revision:
            self._record, self._revision = record, revision
            self._stop_delivery()
            self.owned_task.look_now()

    def end(self) -> None:
        """Ends the work of a subscription that is deleted."""
        self.owned_task.end([Delete(status_key(self._record.id))])

    async def run(self) -> None:
        """Runs the subscription until it is cancelled or deleted."""
        if not self._owners.alone:
            await asyncio.sleep(FIRST_S * self._context.chance.random())
        await self.owned_task.run()

    async def _work(self, owned: Owned) -> None:
        while True:
            await self._deliver(owned)

    async def _deliver(self, owned: Owned) -> None:
        """Delivers as the record is now, until it changes. Raises `OwnershipLost`."""
        record = self._record
        kind = self._kinds.get(record.spec.protocol)
        delivery = self.delivery = PushDelivery(record, self._context, self._permissions_of(record.identity), kind)
        delivering = self._delivering = asyncio.ensure_future(delivery.run(owned))
        try:
            await asyncio.wait([delivering])
        finally:
            self._stop_delivery()
            await asyncio.gather(delivering, return_exceptions=True)
            self.delivery = None
            await self._write_cursor(delivery, owned)
        failure = None if delivering.cancelled() else delivering.exception()
        if isinstance(failure, OwnershipLost):
            raise failure
        if isinstance(failure, SinkGone):
            await self._sink_gone()
        elif failure is not None:
            say = log.warning if isinstance(failure, StoreError) else log.error
            say("a subscription has failed and is begun again", subscription=self._name, exc_info=failure)
            await asyncio.sleep(AGAIN_S)

    def _stop_delivery(self) -> None:
        delivering, self._delivering = self._delivering, None
        if delivering is not None:
            delivering.cancel()

    async def _write_cursor(self, delivery: PushDelivery, owned: Owned) -> None:
        """Commits how far a delivery has come. Raises `OwnershipLost`."""
        cursor = delivery.last_cursor
        if cursor is None:
            return
        try:
            await owned.write(delivery.changed_status(with_cursor=True), cursor=offsets_of(cursor))
        except StoreError as error:
            log.warning(
                "a subscription's last cursor was not committed: deliveries since the one before are repeated",
                subscription=self._name,
                error=str(error),
            )

    async def _sink_gone(self) -> None:
        """Pauses the subscription until a client resumes it; if it has changed meanwhile, that counts."""
        record = msgspec.structs.replace(self._record, paused=True, gone=True)
        put = Put(subscription_key(record.id), msgspec.msgpack.encode(record))
        try:
            done = await self._context.store.keys.transact({put.key: self._revision}, [put])
            self._record, self._revision = record, done.revision
            log.warning("a sink answers 410 Gone: its subscription is paused", subscription=record.id)
        except (RevisionConflict, StoreError) as error:
            log.warning("a subscription could not be paused yet", subscription=record.id, error=str(error))
            await asyncio.sleep(AGAIN_S)
