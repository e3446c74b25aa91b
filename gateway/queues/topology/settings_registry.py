"""The settings that operators change while a process serves: policies and virtual hosts, stored for all proxies."""

from collections.abc import Collection

from gateway.domain.errors import Cause, Refusal
from gateway.queues.leaving.policies import POLICIES_COUNT_MAX, Policies, PolicyPlace, StoredPolicy
from gateway.queues.topology.topology import Topology

VHOSTS_COUNT_MAX = 1_000  # 0.5 KB each, and 30 us when one is made


class SettingsRegistry(Topology):
    """Changes settings, and applies them to what there is."""

    # ---- virtual hosts

    async def has_vhost(self, vhost: str) -> bool:
        """Returns whether there is a virtual host, which was made elsewhere perhaps. Raises `StoreError`."""
        if vhost not in self.vhosts and self._definitions.shared and vhost in await self._settings.vhosts():
            self._know_vhost(vhost)
        return vhost in self.vhosts

    async def make_vhost(self, vhost: str) -> None:
        """Makes a virtual host, unless it is there. Raises `Refusal` (QUOTA), `StoreError`."""
        async with self._changing:
            if not await self.has_vhost(vhost):
                if len(self.vhosts) >= VHOSTS_COUNT_MAX:
                    raise Refusal(Cause.QUOTA, f"there are {VHOSTS_COUNT_MAX} virtual hosts already")
                await self._settings.add_vhost(vhost)
                self._know_vhost(vhost)

    # ---- policies

    @property
    def policies(self) -> Policies:
        """Returns the policies."""
        return self._policies

    async def set_policy(self, policy: StoredPolicy) -> None:
        """Sets a policy, in the place of the one of its name, for what there is and what will be. Raises `Refusal`."""
        await self._change(lambda: self._set_policy(policy))

    async def _set_policy(self, policy: StoredPolicy) -> None:
        vhost, place = policy.policy.vhost, policy.place
        if not await self.has_vhost(vhost):
            raise Refusal(Cause.NOT_FOUND, f"there is no virtual host '{vhost}'")
        if place in self._policies.configured:
            raise Refusal(Cause.CONFLICT, f"the configuration has {said_policy(place)}; change it there")
        stored = self._policies.stored
        if place not in stored and len(stored) >= POLICIES_COUNT_MAX:
            raise Refusal(Cause.QUOTA, f"{POLICIES_COUNT_MAX} policies are set already; clear others first")
        await self._settings.put_policy(policy)
        await self._take_over({**stored, place: policy}.values())

    async def clear_policy(self, place: PolicyPlace) -> None:
        """Removes a policy that was set at run time. Raises `Refusal`, NOT_FOUND where there is none."""
        await self._change(lambda: self._clear_policy(place))

    async def _clear_policy(self, place: PolicyPlace) -> None:
        deleted = await self._settings.delete_policy(place)
        await self._take_over([one for at, one in self._policies.stored.items() if at != place])
        if deleted:
            return
        if place in self._policies.configured:
            raise Refusal(Cause.CONFLICT, f"{said_policy(place)} is in the configuration; take it out there")
        raise Refusal(Cause.NOT_FOUND, f"there is no {said_policy(place)}")

    async def _take_over(self, policies: Collection[StoredPolicy]) -> None:
        if self._policies.take_over(policies):
            await self._rule_all()


def said_policy(place: PolicyPlace) -> str:
    """Returns the words for a policy."""
    return f"{'operator policy' if place.operator else 'policy'} '{place.name}' in vhost '{place.vhost}'"
