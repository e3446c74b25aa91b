"""Answers of the requests of `gateway.port.push`: subscriptions are made, shown, changed and ended here.

A subscription is a key. Any process may change the key; a watch tells the process that runs the subscription.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.base.turns import Turns
from gateway.domain.access import Identity, Permissions
from gateway.domain.address import subscription_address
from gateway.domain.cursor import beginning_of, cursor_of, offsets_of
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.kv import Match
from gateway.port.push import (
    CreateSubscription,
    DeleteSubscription,
    DeliveryStatus,
    GetSubscription,
    ListSubscriptions,
    PauseSubscription,
    PushSubscription,
    SubscriptionsPage,
    SubscriptionSpec,
    UpdateSubscription,
)
from gateway.push.checks import check_spec, check_spec_before
from gateway.push.delivery import status_key
from gateway.push.guard import SinkGuard, SinkUnreachable, resolve
from gateway.push.manager import subscription_key
from gateway.push.sender import SinkKinds
from gateway.push.settings import SubscriptionsConfig
from gateway.push.spec import SINK_GONE, SUBSCRIPTIONS, SubscriptionRecord, with_secrets, without_secrets
from store.api.client import StoreClient
from store.api.keys import Delete, Entry, Put
from store.base import logs
from store.base.errors import RevisionConflict
from store.format.frame import Position, QueueNumber

RESOLVE_S: Final = 3.0  # for a look at where a sink's name leads
TRIES_MAX: Final = 5  # of a change that others' changes come before
ID_CHARS_MAX: Final = 64
NEW: Final = "new"  # in place of the id of one that is to be made, in access rules
_PAGE: Final = 500  # keys read at a time

log = logs.get(__name__)


class PushRegistry:
    """All subscriptions, by their keys. It belongs to the event loop."""

    def __init__(
        self,
        store: StoreClient,
        config: SubscriptionsConfig,
        guard: SinkGuard,
        kinds: SinkKinds,
        *,
        new_id: Callable[[], str],
        now_ms: Callable[[], int],
        owner: Callable[[Identity], Identity] = lambda identity: identity,
    ) -> None:
        """Takes `owner`, which returns the identity that a client's subscriptions are delivered by."""
        self._store = store
        self._config = config
        self._guard = guard
        self._kinds = kinds
        self._new_id = new_id
        self._now_ms = now_ms
        self._owner = owner
        self._turns = Turns()  # of those that are created: the limit counts those before

    async def create(self, who: Principal, request: CreateSubscription) -> PushSubscription:
        """See `CreateSubscription`."""
        spec, id_ = request.spec, self._new_id()
        who.permissions.check("manage", subscription_address(who.name, NEW))
        check_spec(spec, self._guard, self._kinds)
        await self._check_reach(who.permissions, spec)
        record = SubscriptionRecord(
            id=id_,
            spec=msgspec.structs.replace(spec, id=None),
            identity=self._owner(who.permissions.identity),
            start=dict(self._start(spec)),
            created_ms=self._now_ms(),
        )
        async with self._turns.within(NEW):
            if await self._store.keys.count(f"{SUBSCRIPTIONS}/", f"{SUBSCRIPTIONS}0") >= self._config.subscriptions_max:
                raise Refusal(Cause.QUOTA, f"there are {self._config.subscriptions_max} subscriptions already")
            value = msgspec.msgpack.encode(record)
            revision = await self._store.keys.put(subscription_key(id_), value, expected_revision=0)
        log.info("subscription created", subscription=id_, user=who.name, sink=spec.sink)
        return _shown(record, revision, DeliveryStatus(state="pending"))

    async def get(self, who: Principal, request: GetSubscription) -> PushSubscription:
        """See `GetSubscription`."""
        record, entry = await self._found(request.id)
        _check_sees(who.permissions, record)
        return _shown(record, entry.revision, await self._status(request.id))

    async def list(self, who: Principal, request: ListSubscriptions) -> SubscriptionsPage:
        """See `ListSubscriptions`."""
        found: list[PushSubscription] = []
        after = f"{SUBSCRIPTIONS}/{request.after}" if request.after else ""
        while page := await self._store.keys.prefix(f"{SUBSCRIPTIONS}/", after=after, limit=_PAGE):
            for entry in page:
                record = _record(entry)
                if not _sees(who.permissions, record):
                    continue
                if len(found) == request.limit:
                    return SubscriptionsPage(subscriptions=found, after=found[-1].id)
                found.append(_shown(record, entry.revision, await self._status(record.id)))
            after = page[-1].key
        return SubscriptionsPage(subscriptions=found, after=None)

    async def update(self, who: Principal, request: UpdateSubscription) -> PushSubscription:
        """See `UpdateSubscription`."""
        spec = request.spec
        if spec.id not in {None, request.id}:
            raise Refusal(Cause.MALFORMED, "id: is not that of the path")
        _check_manages(who.permissions, (await self._found(request.id))[0])
        check_spec_before(spec, self._guard, self._kinds)
        await self._check_reach(who.permissions, spec)

        def changed(record: SubscriptionRecord) -> SubscriptionRecord:
            new = with_secrets(msgspec.structs.replace(spec, id=None), record.spec)
            check_spec(new, self._guard, self._kinds)
            gone = record.gone and new.sink == record.spec.sink
            paused = record.paused and (gone or not record.gone)
            identity = self._owner(who.permissions.identity)
            return msgspec.structs.replace(record, spec=new, identity=identity, gone=gone, paused=paused)

        return await self._change(who, request.id, changed, match=request.match)

    async def pause(self, who: Principal, request: PauseSubscription) -> PushSubscription:
        """See `PauseSubscription`."""
        paused = request.paused

        def changed(record: SubscriptionRecord) -> SubscriptionRecord:
            return msgspec.structs.replace(record, paused=paused, gone=record.gone and paused)

        return await self._change(who, request.id, changed, match=request.match)

    async def delete(self, who: Principal, request: DeleteSubscription) -> PushSubscription:
        """See `DeleteSubscription`."""
        for _ in range(TRIES_MAX):
            record, entry = await self._changeable(who, request.id, request.match)
            status = await self._status(request.id)
            try:
                await self._store.keys.transact(
                    {entry.key: entry.revision}, [Delete(entry.key), Delete(status_key(request.id))]
                )
            except RevisionConflict:
                continue
            log.info("subscription deleted", subscription=request.id, user=who.name)
            return _shown(record, entry.revision, status)
        raise _too_often()

    # ---- inside

    async def _check_reach(self, permissions: Permissions, spec: SubscriptionSpec) -> None:
        """Raises `Refusal` for addresses that the asker may not read or publish to, and for a sink that is refused."""
        for pattern in spec.config.addresses:
            permissions.check_filter(pattern)
        if (dead := spec.protocolsettings.deadletter) is not None:
            permissions.check("publish", dead)
        url = self._guard.parse(spec.sink, self._kinds[spec.protocol].ports)
        assert url.hostname is not None
        try:  # each connection checks again: this one look is for who makes the subscription
            async with asyncio.timeout(RESOLVE_S):
                await resolve(self._guard, url.hostname)
        except (TimeoutError, SinkUnreachable):
            pass  # it may be found later

    def _start(self, spec: SubscriptionSpec) -> dict[QueueNumber, int]:
        """Returns where a new subscription begins in each log. Raises `StoreError` where the end is not known."""
        logs_ = self._store.logs
        if spec.config.start == "earliest":
            return dict(offsets_of(cursor_of({group: beginning_of(group) for group in logs_})))
        ends = {group: Position(one.log.confirmed, 0) for group, one in logs_.items()}
        return dict(offsets_of(cursor_of(ends)))

    async def _found(self, id_: str) -> tuple[SubscriptionRecord, Entry]:
        entry = await self._store.keys.get(subscription_key(id_)) if len(id_) <= ID_CHARS_MAX else None
        if entry is None:
            raise Refusal(Cause.NOT_FOUND, f"there is no subscription {id_[:ID_CHARS_MAX]!r}")
        return _record(entry), entry

    async def _status(self, id_: str) -> DeliveryStatus:
        entry = await self._store.keys.get(status_key(id_))
        if entry is None:
            return DeliveryStatus()
        return msgspec.msgpack.decode(entry.value, type=DeliveryStatus)

    async def _change(
        self,
        who: Principal,
        id_: str,
        changed: Callable[[SubscriptionRecord], SubscriptionRecord],
        *,
        match: Match,
    ) -> PushSubscription:
        for _ in range(TRIES_MAX):
            record, entry = await self._changeable(who, id_, match)
            new = changed(record)
            put = Put(entry.key, msgspec.msgpack.encode(new))
            try:
                done = await self._store.keys.transact({entry.key: entry.revision}, [put])
            except RevisionConflict:
                continue
            return _shown(new, done.revision, await self._status(id_))
        raise _too_often()

    async def _changeable(self, who: Principal, id_: str, match: Match) -> tuple[SubscriptionRecord, Entry]:
        """Returns a subscription that somebody may change now. Raises `Refusal`."""
        record, entry = await self._found(id_)
        _check_manages(who.permissions, record)
        if not match.holds(entry.revision):
            raise Refusal(Cause.PRECONDITION, f"the subscription is at revision {entry.revision}")
        return record, entry


def _too_often() -> Refusal:
    return Refusal(Cause.OVERLOAD, "the subscription changes too often", retry_after_ms=1_000)


def _record(entry: Entry) -> SubscriptionRecord:
    return msgspec.msgpack.decode(entry.value, type=SubscriptionRecord)


def _shown(record: SubscriptionRecord, revision: int, status: DeliveryStatus) -> PushSubscription:
    if record.paused:
        status = msgspec.structs.replace(status, state="gone" if record.gone else "paused")
        if record.gone:
            status = msgspec.structs.replace(status, error=SINK_GONE)
    elif status.state in {"paused", "gone"}:
        status = msgspec.structs.replace(status, state="pending")
    spec = without_secrets(msgspec.structs.replace(record.spec, id=record.id))
    return PushSubscription(id=record.id, revision=revision, spec=spec, status=status)


def _address(record: SubscriptionRecord) -> str:
    return subscription_address(record.identity.name, record.id)


def _sees(permissions: Permissions, record: SubscriptionRecord) -> bool:
    access = permissions.access
    if access is None:
        return True
    return any(access.may(action, _address(record)) for action in ("subscribe", "manage"))


def _check_sees(permissions: Permissions, record: SubscriptionRecord) -> None:
    """Raises `Refusal` as if it were not there: an id tells nothing to users who may not see its subscription."""
    if not _sees(permissions, record):
        raise Refusal(Cause.NOT_FOUND, f"there is no subscription {record.id!r}")


def _check_manages(permissions: Permissions, record: SubscriptionRecord) -> None:
    _check_sees(permissions, record)
    permissions.check("manage", _address(record))
