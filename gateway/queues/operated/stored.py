"""The policies and virtual hosts that operators have set, as the store keeps them for all proxies."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.domain.address import escape_level
from gateway.domain.keys import kv_key
from gateway.ownership.stored_entries import stored_entries
from gateway.queues.leaving.policies import PolicyPlace, StoredPolicy, check_stored
from gateway.queues.operated.vhosts import VhostLimits
from store.api.client import StoreClient
from store.api.keys import Delete, Put
from store.base import logs

POLICIES, VHOSTS = "amqp/policies", "amqp/vhosts"
DELETED, LIMITS = "amqp/deleted-vhosts", "amqp/vhost-limits"
DELETED_MS: Final = 3_600_000  # that a deleted virtual host is remembered when all in it is gone
PLACES: Final = (POLICIES, VHOSTS, DELETED, LIMITS)

_encode = msgspec.msgpack.encode
_policy = msgspec.msgpack.Decoder(StoredPolicy).decode

log = logs.get(__name__)


class _Limits(msgspec.Struct, frozen=True):
    vhost: str
    limits: VhostLimits


_limits = msgspec.msgpack.Decoder(_Limits).decode


class StoredVhosts(NamedTuple):
    """The virtual hosts that were made, those that were deleted, and limits."""

    names: list[str]
    deleted: list[str]
    limits: Mapping[str, VhostLimits]


class StoredSettings:
    """Reads and writes the operators' settings. All methods raise `StoreError`."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store

    async def policies(self) -> list[StoredPolicy]:
        """Returns the policies. Entries that are not understood are left out, with a warning."""
        found = []
        async for entry in stored_entries(self._store, POLICIES):
            try:
                found.append(check_stored(_policy(entry.value)))
            except (msgspec.DecodeError, ValueError) as error:
                log.warning("a policy is not understood and has no effect; set it again", error=str(error))
        return found

    async def put_policy(self, one: StoredPolicy) -> None:
        """Stores a policy in the place of the one of the same name."""
        await self._store.keys.put(_policy_key(one.place), _encode(one))

    async def delete_policy(self, place: PolicyPlace) -> bool:
        """Removes a policy; returns whether it was there."""
        return await self._store.keys.delete(_policy_key(place))

    async def vhosts(self) -> StoredVhosts:
        """Returns all stored records of virtual hosts."""
        found = [_limits(entry.value) async for entry in stored_entries(self._store, LIMITS)]
        limits = {one.vhost: one.limits for one in found}
        return StoredVhosts(await self._names(VHOSTS), await self._names(DELETED), limits)

    async def _names(self, place: str) -> list[str]:
        return [entry.value.decode() async for entry in stored_entries(self._store, place)]

    async def add_vhost(self, vhost: str) -> None:
        """Stores that there is a virtual host, deleted before or not."""
        await self._store.keys.transact({}, [Put(kv_key(VHOSTS, vhost), vhost.encode()), Delete(deleted_key(vhost))])

    async def delete_vhost(self, vhost: str) -> None:
        """Stores that there is no such virtual host any more, and nothing in it."""
        gone = [Delete(kv_key(VHOSTS, vhost)), Delete(kv_key(LIMITS, vhost))]
        await self._store.keys.transact({}, [Put(deleted_key(vhost), vhost.encode()), *gone])

    async def finish_deletion(self, vhost: str) -> None:
        """Remembers for a while that a virtual host was deleted, for proxies that learn of it late."""
        await self._store.keys.put(deleted_key(vhost), vhost.encode(), ttl_ms=DELETED_MS)

    async def permit_vhost(self, vhost: str) -> None:
        """Forgets that a virtual host was deleted, as the configuration names it."""
        await self._store.keys.delete(deleted_key(vhost))

    async def put_limits(self, vhost: str, limits: VhostLimits) -> None:
        """Stores the limits of a virtual host."""
        await self._store.keys.put(kv_key(LIMITS, vhost), _encode(_Limits(vhost, limits)))

    async def delete_limits(self, vhost: str) -> bool:
        """Removes the limits of a virtual host; returns whether it had any."""
        return await self._store.keys.delete(kv_key(LIMITS, vhost))


def deleted_key(vhost: str) -> str:
    """Returns the key that is there where a virtual host was deleted."""
    return kv_key(DELETED, vhost)


def is_setting(key: str) -> bool:
    """Returns whether a key is one of those that are kept here."""
    return any(key.startswith(f"{place}/") for place in PLACES)


def _policy_key(place: PolicyPlace) -> str:
    kind = "operators" if place.operator else "users"
    return kv_key(POLICIES, f"{kind}/{escape_level(place.vhost)}/{place.name}")
