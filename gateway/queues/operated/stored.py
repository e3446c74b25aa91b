"""The policies and virtual hosts that operators have set, as the store keeps them for all proxies."""

from typing import Final

import msgspec

from gateway.domain.address import escape_level
from gateway.domain.keys import kv_key
from gateway.ownership.stored_entries import stored_entries
from gateway.queues.leaving.policies import PolicyPlace, StoredPolicy, check_stored
from store.api.client import StoreClient
from store.base import logs

POLICIES, VHOSTS = "amqp/policies", "amqp/vhosts"
PLACES: Final = (POLICIES, VHOSTS)

_encode = msgspec.msgpack.encode
_policy = msgspec.msgpack.Decoder(StoredPolicy).decode

log = logs.get(__name__)


class StoredSettings:
    """Reads and writes what operators have set. All methods raise `StoreError`."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store

    async def policies(self) -> list[StoredPolicy]:
        """Returns the policies. What is not understood is left out, with a warning."""
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

    async def vhosts(self) -> list[str]:
        """Returns the virtual hosts that were made."""
        return [entry.value.decode() async for entry in stored_entries(self._store, VHOSTS)]

    async def add_vhost(self, vhost: str) -> None:
        """Stores that there is a virtual host."""
        await self._store.keys.put(kv_key(VHOSTS, vhost), vhost.encode())


def is_setting(key: str) -> bool:
    """Returns whether a key is one of those that are kept here."""
    return any(key.startswith(f"{place}/") for place in PLACES)


def _policy_key(place: PolicyPlace) -> str:
    kind = "operators" if place.operator else "users"
    return kv_key(POLICIES, f"{kind}/{escape_level(place.vhost)}/{place.name}")
