"""The settings that operators change while a process serves: policies and virtual hosts, stored for all proxies."""

import asyncio
from collections.abc import Collection

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, in_vhost, vhost_of
from gateway.queues.leaving.policies import POLICIES_COUNT_MAX, Policies, PolicyPlace, StoredPolicy
from gateway.queues.operated.vhosts import VhostLimits
from gateway.queues.topology.topology import Topology
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import QueueNumber

RULED_COUNT_MAX = 256  # queues that are given their rules at a time; 3 ms with ten policies
VHOSTS_COUNT_MAX = 1_000  # 0.5 KB each, and 30 us when one is made

log = logs.get(__name__)


class SettingsRegistry(Topology):
    """Changes settings, and applies them to existing queues and exchanges."""

    _streams_behind = False  # the store could not be told the policies' retention of streams

    async def _read_settings(self) -> None:
        """See `Topology`."""
        await self._read_vhosts()
        await self._take_over(await self._settings.policies())

    async def _read_vhosts(self) -> None:
        if self.vhosts.take_over(*await self._settings.vhosts()):
            self._unfinished()
        for vhost in self.vhosts.names:
            self._know_vhost(vhost)

    # ---- virtual hosts

    async def has_vhost(self, vhost: str) -> bool:
        """Returns whether there is a virtual host, which was made elsewhere perhaps. Raises `StoreError`."""
        if vhost not in self.vhosts.names and self._definitions.shared:
            async with self._changing:
                await self._read_vhosts()
        return vhost in self.vhosts.names

    async def make_vhost(self, vhost: str) -> None:
        """Makes a virtual host, unless it is there. Raises `Refusal`, `StoreError`.

        QUOTA where there are too many, CONFLICT while something is left of one of that name that was deleted.
        """
        if await self.has_vhost(vhost):
            return
        async with self._changing:
            if len(self.vhosts.names) >= VHOSTS_COUNT_MAX:
                raise Refusal(Cause.QUOTA, f"there are {VHOSTS_COUNT_MAX} virtual hosts already")
            if self._left_in(vhost):
                raise Refusal(Cause.CONFLICT, f"vhost '{vhost}' is being deleted; try again")
            await self._settings.add_vhost(vhost)
            self.vhosts.made(vhost)
            self._know_vhost(vhost)

    def _left_in(self, vhost: str) -> bool:
        """Returns whether anything is in a virtual host, the exchanges that each of them has included."""
        return bool(self.vhosts.queues(vhost)) or any(vhost_of(name) == vhost for name in self._exchanges)

    async def set_limits(self, vhost: str, limits: VhostLimits) -> None:
        """Sets the limits of a virtual host, in the place of those that it had. Raises `Refusal`, `StoreError`."""
        await self._check_vhost(vhost)
        check_limits(vhost, limits)
        await self._settings.put_limits(vhost, limits)
        await self._settings_changed()

    async def clear_limits(self, vhost: str) -> None:
        """Removes the limits of a virtual host. Raises `Refusal` (NOT_FOUND where it has none), `StoreError`."""
        deleted = await self._settings.delete_limits(vhost)
        await self._settings_changed()
        if not deleted:
            raise Refusal(Cause.NOT_FOUND, f"vhost '{vhost}' has no limits")

    async def _check_vhost(self, vhost: str) -> None:
        if not await self.has_vhost(vhost):
            raise Refusal(Cause.NOT_FOUND, f"there is no virtual host '{vhost}'")

    # ---- policies

    @property
    def policies(self) -> Policies:
        """Returns the policies."""
        return self._policies

    async def set_policy(self, policy: StoredPolicy) -> None:
        """Sets a policy, in the place of the one of its name, for present and future queues. Raises `Refusal`."""
        await self._check_vhost(policy.policy.vhost)
        await self._change(lambda: self._set_policy(policy))

    async def _set_policy(self, policy: StoredPolicy) -> None:
        place = policy.place
        self.vhosts.check(in_vhost(place.vhost, ""))
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

    async def _rule_all(self) -> None:
        """Gives all exchanges and queues the rules that policies say now, with the topology locked."""
        self._notify_exchanges()
        for nth, queue in enumerate(list(self.queues.values())):
            if nth % RULED_COUNT_MAX == RULED_COUNT_MAX - 1:
                await asyncio.sleep(0)  # the lock keeps the queues the same
            rules = self._rules(queue.definition)
            if rules != queue.rules:
                queue.rules = rules
                self._ruled(queue)
        await self._configure_streams()

    async def _configure_streams(self) -> None:
        """Tells the store how long streams are kept, by the present policies, with the topology locked."""
        said = self._store.queues.config
        streams = [queue for queue in self.queues.values() if queue.stream]
        wanted = [self._queue_config(one.number, one.definition.name, one.definition.arguments) for one in streams]
        try:
            await self._store.queues.configure([one for one in wanted if one != said(QueueNumber(one.queue))])
            self._streams_behind = False
        except StoreError as error:
            log.warning("policies of streams could not be stored yet: retention stays as it was", error=str(error))
            self._streams_behind = True
            self._unfinished()


def check_limits(vhost: str, limits: VhostLimits) -> None:
    """Raises `Refusal` (PRECONDITION) for limits that a virtual host cannot have."""
    if vhost == DEFAULT_VHOST and limits.max_connections >= 0:
        raise Refusal(Cause.PRECONDITION, "gateway.connections_max limits the connections of vhost '/'")


def said_policy(place: PolicyPlace) -> str:
    """Returns the words for a policy."""
    return f"{'operator policy' if place.operator else 'policy'} '{place.name}' in vhost '{place.vhost}'"
