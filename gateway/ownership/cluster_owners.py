"""Owners of names among several proxies: a key for each name, by which whatever its owner writes is fenced.

    owners/{name}            who owns it: the proxy. Its revision is in every transaction that the owner makes, so one
                             who was away and comes back late changes nothing.
    proxies/alive/{proxy}    is there while the proxy is (`gateway.ownership.presence`)
    proxies/wanted/{name}    another proxy asks the owner for it; the newest one who asks is given it
    proxies/heirs/{proxy}    the proxy that finishes the work of one that is gone

A name is taken by making its key, or, when its owner is gone, or does not let go of it in time, by replacing it: always
by compare-and-set, so one wins. The owner sees by its watch that it is asked, writes its last word and the new owner in
one transaction. The names of a proxy that is gone are found by their keys, and taken over in the same way by one of the
others: while that proxy makes its last writes, no other can own the name.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from weakref import WeakValueDictionary

from controller.api.client import Service
from gateway.domain.errors import Cause, Refusal
from gateway.domain.keys import kv_key
from gateway.domain.session_user import SessionUser, check_user
from gateway.ownership.following import below, follow_keys
from gateway.ownership.outage_lease import OutageLease
from gateway.ownership.owner_keys import (
    OWNERS,
    RELEASE_REQUESTS,
    OwnedName,
    OwnerRecord,
    PendingTakeover,
    ReleaseRequest,
    decode_owner,
    decode_release_request,
    encode,
    owner_key,
    release_request_key,
)
from gateway.ownership.owners import (
    NOTHING_SEEN,
    Operations,
    Owned,
    OwnershipListener,
    OwnershipLost,
    Revisions,
    Spawn,
    Taken,
)
from gateway.ownership.presence import ALIVE, SUCCESSORS, Presence
from gateway.ownership.stored_entries import stored_entries
from gateway.port.adapter import Random
from store.api.client import StoreClient
from store.api.keys import Change, Delete, Put
from store.base import logs
from store.base.errors import AppendOutcomeUnknown, RevisionConflict, StoreError
from store.base.rhythm import until_next_s
from store.base.streams.event_wait import wait_at_most

PROXIES = "proxies"
TAKEOVER_S = 3.0  # that a living owner has to let go of a name
RELEASE_REQUEST_TTL_MS = 60_000  # of a request that was never answered
TAKEN_OVER_COUNT = 64
RETRY_S = 1.0
RENEW_RETRY_S = 0.25  # until a failed renewal of the presence key is tried again
SHORTENED = 300  # characters of a name whose key may not hold all of it

log = logs.get(__name__)


class ClusterOwners:
    """`gateway.ownership.owners.Owners` of one of several proxies. It belongs to the event loop.

    `ttl_s` is how long its presence key may stay without renewal, `outage_s` how much longer while `service` says that
    no proxy can renew one (`gateway.ownership.outage_lease`). `clock` counts seconds and never goes back.
    """

    alone = False

    def __init__(
        self,
        store: StoreClient,
        *,
        ttl_s: float,
        random: Random,
        clock: Callable[[], float] = time.monotonic,
        takeover_s: float = TAKEOVER_S,
        service: Callable[[], Awaitable[Service]] | None = None,
        outage_s: float = 0.0,
    ) -> None:
        self.store = store
        self.presence = Presence(store, ttl_s=ttl_s, random=random, clock=clock)
        self.outage_lease = OutageLease(self.presence, service, outage_s=outage_s, clock=clock)
        self.asked: dict[str, ReleaseRequest] = {}  # names that other proxies ask this one for
        self.takeover_s = takeover_s
        self._listeners: dict[str, OwnershipListener] = {}  # by prefix
        self._waiting: dict[str, PendingTakeover] = {}
        self._owned: WeakValueDictionary[str, OwnedName] = WeakValueDictionary()  # as long as they are used
        self._deaths = asyncio.Event()  # set when a proxy may have ended and left names behind
        self._spawn: Spawn = asyncio.ensure_future
        self._closed = False
        self._not_renewed = False  # a failed renewal was logged
        self._renewing = asyncio.Lock()  # behind a pause two are asked for at once, which would enter by two ids

    @property
    def id(self) -> str:
        """See `Owners`."""
        return self.presence.id

    async def is_first(self) -> bool:
        """See `Owners`."""
        return not [one async for one in stored_entries(self.store, ALIVE) if not one.key.endswith(self.id)]

    def serve(self, prefix: str, listener: OwnershipListener) -> None:
        """See `Owners`."""
        self._listeners[prefix] = listener

    async def start(self, spawn: Spawn) -> None:
        """See `Owners`."""
        self._spawn = spawn
        await self.presence.enter()
        log.info("this proxy is one of several", proxy=self.presence.id)
        spawn(self._watch())
        spawn(self._renewals())
        spawn(self.outage_lease.run())
        spawn(self._watch_deaths())

    async def close(self) -> None:
        """See `Owners`."""
        self._closed = True
        await self.presence.leave()

    # ---- taking

    async def take(
        self, name: str, *, wait: bool = True, user: SessionUser | None = None, seen: Revisions = NOTHING_SEEN
    ) -> Owned:
        """See `Owners`."""
        waiting = PendingTakeover()
        try:
            return await self._take(name, waiting, wait=wait, user=user, seen=seen)
        finally:
            if self._waiting.get(name) is waiting:
                del self._waiting[name]

    async def _take(
        self, name: str, waiting: PendingTakeover, *, wait: bool, user: SessionUser | None, seen: Revisions
    ) -> Owned:
        key = owner_key(name)
        expected, until_s = 0, 0.0  # the revision of the key, and until when its owner is waited for
        as_seen = True
        loop = asyncio.get_running_loop()
        while True:
            self._check_present()
            mine = Put(key, encode(OwnerRecord(name, self.presence.id, user)))
            operations: Operations = (mine, Delete(release_request_key(name))) if until_s else (mine,)
            try:
                compares = {**seen, key: expected} if as_seen else {key: expected}
                done = await self.store.keys.transact(compares, operations)
                return self._own(OwnedName(self, name, done.revision, user=user, as_seen=as_seen), name)
            except (RevisionConflict, AppendOutcomeUnknown):
                as_seen = False
            while True:
                waiting.changed.clear()
                entry = await self.store.keys.get(key)
                expected = 0
                if entry is None:
                    break
                record = decode_owner(entry.value)
                owner = record.proxy
                if owner == self.presence.id:  # handed over, or taken before the watch reported it
                    return self._own(OwnedName(self, name, entry.revision, user=record.user), name)
                if waiting.outbid:
                    raise Taken(name)
                expected = entry.revision
                gone = not await self.presence.is_there(owner)
                if gone and await self.outage_lease.may_take_over(owner):
                    break
                check_user(name, record.user, user)
                if not wait:
                    raise Taken(name)
                if waiting.asked != owner:
                    until_s = until_s or loop.time() + self.takeover_s
                    self._waiting[name] = waiting
                    waiting.asked = owner
                    waiting.mine = await self._ask(ReleaseRequest(name, self.presence.id, owner, user))
                    continue  # the owner may have released it before it read this
                if loop.time() >= until_s:
                    log.warning(
                        "a proxy does not release the ownership of a name that another proxy has requested",
                        name=name,
                        proxy=owner,
                    )
                    break
                await wait_at_most(waiting.changed, until_s - loop.time())
                self._check_present()

    def _own(self, owned: OwnedName, name: str) -> OwnedName:
        self._owned[name] = owned
        return owned

    def released(self, name: str, owned: OwnedName) -> None:
        """See `Owning`."""
        if self._owned.get(name) is owned:
            del self._owned[name]

    async def _ask(self, record: ReleaseRequest) -> int:
        return await self.store.keys.put(
            release_request_key(record.name), encode(record), ttl_ms=RELEASE_REQUEST_TTL_MS
        )

    def _check_present(self) -> None:
        if self.presence.remaining_s <= 0:
            raise Refusal(
                Cause.UNAVAILABLE,
                "this node cannot reach the rest of the cluster; try again later",
                retry_after_ms=1_000,
            )

    # ---- changes by others

    async def _watch(self) -> None:
        """Reads the other proxies' requests, and which of them are gone."""
        await follow_keys(
            self.store,
            below(PROXIES),
            look=self._look,
            changed=self._changes,
            trouble="changes of ownership by other proxies cannot be read now",
        )

    async def _changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._changed(change)

    async def _look(self) -> None:
        self.outage_lease.forget()
        await self._look_for_release_requests()
        await self._look_for_lost_names()
        self._deaths.set()  # a proxy may have ended while this one did not watch

    async def _look_for_release_requests(self) -> None:
        async for entry in stored_entries(self.store, RELEASE_REQUESTS):
            self._release_requested(decode_release_request(entry.value), entry.revision)

    async def _look_for_lost_names(self) -> None:
        """Gives up names that another proxy has replaced this one at while it did not watch: no request is left."""
        if not self._owned:
            return
        ours = set()
        async for entry in stored_entries(self.store, OWNERS):
            record = decode_owner(entry.value)
            if record.proxy == self.presence.id:
                ours.add(record.name)
        for name, owned in list(self._owned.items()):
            if name not in ours:
                now = await self.store.keys.get(owner_key(name))  # it may have been taken after the owners were read
                if now is None or decode_owner(now.value).proxy != self.presence.id:
                    self._spawn(self._give_up(name, owned))

    async def _give_up(self, name: str, owned: OwnedName) -> None:
        if self._owned.get(name) is owned and (listener := self._listener(name)) is not None:
            log.warning("another proxy has taken a name over while this one did not hear of it", name=name)
            await self._release_by(listener, name, None)

    def _changed(self, change: Change) -> None:
        if change.key.startswith(ALIVE) and change.kind != "put":
            log.info("a proxy has ended", proxy=change.key.removeprefix(f"{ALIVE}/"), how=change.kind)
            self._deaths.set()
            for waiting in self._waiting.values():
                waiting.changed.set()
        elif change.key.startswith(ALIVE):
            self.outage_lease.forget(change.key.removeprefix(f"{ALIVE}/"))
        elif change.key.startswith(RELEASE_REQUESTS) and change.kind == "put":
            self._release_requested(decode_release_request(change.value), change.revision)
        elif change.key.startswith(RELEASE_REQUESTS):
            name = self._name_of(change.key)
            self.asked.pop(name, None)
            if (there := self._waiting.get(name)) is not None:
                there.asked = ""
                there.changed.set()

    def _name_of(self, key: str) -> str:
        name = key.removeprefix(f"{RELEASE_REQUESTS}/")
        if name in self._waiting or name in self.asked:
            return name
        shortened = (one for one in (*self._waiting, *self.asked) if len(one) >= SHORTENED)
        return next((one for one in shortened if release_request_key(one) == key), name)

    def _release_requested(self, record: ReleaseRequest, revision: int) -> None:
        name = record.name
        waiting = self._waiting.get(name)
        if waiting is not None and record.by != self.presence.id:
            waiting.others = max(waiting.others, revision)
            waiting.changed.set()
        if record.of == self.presence.id:
            self.asked[name] = record
            self._spawn(self._release_to(record))

    async def _release_to(self, record: ReleaseRequest) -> None:
        """Releases a name that another proxy asks for; if it was not ours any more, has the other one look again."""
        name = record.name
        try:
            if (listener := self._listener(name)) is not None:
                await self._release_by(listener, name, record.user)
        finally:
            if self.asked.get(name) is record:
                del self.asked[name]
        entry = await self.store.keys.get(release_request_key(name))
        if entry is not None and decode_release_request(entry.value) == record:
            held = await self.store.keys.get(owner_key(name))
            if held is None or decode_owner(held.value).proxy != self.presence.id:
                try:
                    await self.store.keys.delete(entry.key, expected_revision=entry.revision)
                except RevisionConflict:
                    log.debug("another proxy requests the name by now", name=name)

    async def _release_by(self, listener: OwnershipListener, name: str, user: SessionUser | None) -> None:
        try:
            await listener.on_release_requested(name, user)
        except Taken:
            log.debug("another proxy owns the name already", name=name)
        except (StoreError, Refusal) as error:  # taken from us when the other one's patience is over
            log.warning("the ownership of a name could not be handed over", name=name, error=str(error))

    def _listener(self, name: str) -> OwnershipListener | None:
        return next((one for prefix, one in self._listeners.items() if name.startswith(prefix)), None)

    # ---- being there

    async def _renewals(self) -> None:
        while not self._closed:
            wait_s = until_next_s(self.presence.interval_s)
            if self.presence.present:
                if not self.presence.renewed:
                    wait_s = min(wait_s, RENEW_RETRY_S)
                wait_s = min(wait_s, max(self.presence.remaining_s, 0.0))
            await asyncio.sleep(wait_s)
            if not self._closed:
                await self.renew()

    async def renew(self) -> None:
        """Renews the presence key; owns nothing any more if that comes too late."""
        self._look_at_clock()
        async with self._renewing:
            if self._closed:
                return
            await self._renew(self.presence)
        self._look_at_clock()

    async def _renew(self, presence: Presence) -> None:
        try:
            limit_s = presence.interval_s
            async with asyncio.timeout(min(limit_s, presence.remaining_s) if presence.present else limit_s):
                if presence.present:
                    await presence.renew()
                else:
                    await presence.enter()
                    log.info("this proxy is back among the others", proxy=presence.id)
                    self._deaths.set()
            if self._not_renewed:
                log.info("this proxy's presence key is renewed again", proxy=presence.id)
            self._not_renewed = False
        except RevisionConflict:
            self._lose_ownership("its presence key has expired")
        except (StoreError, TimeoutError) as error:
            (log.debug if self._not_renewed else log.warning)(
                "this proxy's presence key could not be renewed", error=repr(error)
            )
            self._not_renewed = True

    def _look_at_clock(self) -> None:
        if self.presence.present and self.presence.remaining_s <= 0:
            self._lose_ownership("its presence key was not renewed in time")

    def _lose_ownership(self, why: str) -> None:
        log.warning("this proxy has lost the ownership of all sessions and queues", proxy=self.presence.id, why=why)
        self.presence.present = False
        self.asked.clear()
        for waiting in self._waiting.values():
            waiting.changed.set()
        for listener in self._listeners.values():
            self._spawn(listener.on_fenced())

    # ---- names of proxies that have ended

    async def _watch_deaths(self) -> None:
        while True:
            await self._deaths.wait()
            self._deaths.clear()
            try:
                done = not self.presence.present or (self.presence.settled and await self.look_for_dead())
            except StoreError as error:
                log.warning(
                    "a session or queue of a proxy that has ended could not be taken over yet",
                    error=str(error),
                    retry_s=RETRY_S,
                )
                done = False
            if not done:
                self._deaths.set()
                await asyncio.sleep(RETRY_S)

    async def look_for_dead(self) -> bool:
        """Takes over the names of proxies that are gone; False when something is still to be done."""
        left: dict[str, list[tuple[str, int]]] = {}
        there: dict[str, bool] = {}
        async for entry in stored_entries(self.store, OWNERS):
            record = decode_owner(entry.value)
            if record.proxy not in there:
                there[record.proxy] = await self.presence.is_there(record.proxy)
            if not there[record.proxy]:
                left.setdefault(record.proxy, []).append((record.name, entry.revision))
        return all([await self._take_over(proxy, names) for proxy, names in left.items()])

    async def _take_over(self, proxy: str, names: Sequence[tuple[str, int]]) -> bool:
        """Takes over the names of a dead proxy, unless another proxy does. Returns whether nothing is left to do."""
        if not await self.outage_lease.may_take_over(proxy):
            return False
        if not await self._become_successor(proxy):
            return True
        if not await self.outage_lease.may_take_over(proxy):
            return False
        log.info("taking over the sessions and queues of a proxy that has ended", proxy=proxy, names=len(names))
        done = True
        for n in range(0, len(names), TAKEN_OVER_COUNT):
            some = names[n : n + TAKEN_OVER_COUNT]
            done = (
                all(await asyncio.gather(*(self._take_over_name(name, revision) for name, revision in some))) and done
            )
        if done:
            await self.presence.taken_over(proxy)
            self.outage_lease.forget(proxy)
        return done

    async def _become_successor(self, proxy: str) -> bool:
        key = kv_key(SUCCESSORS, proxy)
        entry = await self.store.keys.get(key)
        if entry is not None:
            successor = entry.value.decode()
            if successor == self.presence.id:
                return True
            if await self.presence.is_there(successor):
                return False
        try:
            await self.presence.take_over(proxy, expected_revision=0 if entry is None else entry.revision)
        except RevisionConflict:
            return False
        return True

    async def _take_over_name(self, name: str, revision: int) -> bool:
        listener = self._listener(name)
        take = partial(self._seize, name, revision)
        try:
            if listener is not None:
                await listener.on_owner_lost(name, take)
            else:
                await (await take()).release()
        except (Taken, OwnershipLost):
            pass  # another process goes on with it already
        except (StoreError, Refusal) as error:
            log.warning(
                "a session or queue of a proxy that has ended could not be taken over yet", name=name, error=str(error)
            )
            return False
        return True

    async def _seize(self, name: str, revision: int) -> Owned:
        """Replaces the key of an owner that is gone. Raises `Taken`."""
        self._check_present()
        key = owner_key(name)
        try:
            record = encode(OwnerRecord(name, self.presence.id))
            put = await self.store.keys.put(key, record, expected_revision=revision)
        except RevisionConflict as conflict:
            raise Taken(name) from conflict
        return self._own(OwnedName(self, name, put), name)
