"""The deletion of virtual hosts, with all that is in them.

A deletion begins with a key in the store: from then on no proxy lets a client in, or makes anything there. Then the
connections are closed, and queues, exchanges and policies removed. When a proxy ends meanwhile, the others go on, or
the next start does: a process that finds something in a deleted virtual host removes it.
"""

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, vhost_of
from gateway.queues.topology.definitions import Changed
from gateway.queues.topology.moving_registry import MovingRegistry
from store.base import logs
from store.base.errors import StoreError

REMOVED_COUNT_MAX = 64  # queues that are removed before others may change something

log = logs.get(__name__)


class VhostRegistry(MovingRegistry):
    """Changes exchanges, queues and bindings, and deletes virtual hosts."""

    async def delete_vhost(self, vhost: str) -> None:
        """Deletes a virtual host with all that is in it, and closes its connections. Raises `Refusal`, `StoreError`.

        UNAVAILABLE where it is deleted, and something could not be removed yet: that follows by itself.
        """
        await self.check_deletable(vhost)
        async with self._changing:
            await self._settings.delete_vhost(vhost)
            self.vhosts.delete(vhost)
            self._unfinished()
        if not await self._cleared(vhost):
            raise Refusal(Cause.UNAVAILABLE, f"vhost '{vhost}' is deleted; its contents are being removed")

    async def check_deletable(self, vhost: str) -> None:
        """Raises `Refusal` where there is no such virtual host, or one that stays, and `StoreError`."""
        await self._check_vhost(vhost)
        if vhost == DEFAULT_VHOST:
            raise Refusal(Cause.CONFLICT, "vhost '/' is always there")
        if vhost in self.vhosts.configured:
            raise Refusal(Cause.CONFLICT, f"the configuration has vhost '{vhost}': take it out of queues.vhosts first")

    async def finish(self) -> bool:
        """See `QueueRegistry`."""
        left = [vhost for vhost, is_empty in self.vhosts.deleted.items() if not is_empty]
        cleared = [await self._cleared(vhost) for vhost in left]
        return await super().finish() and all(cleared)

    async def _cleared(self, vhost: str) -> bool:
        """Removes the remains of a deleted virtual host; returns whether all is gone."""
        try:
            return await self._clear(vhost)
        except StoreError as error:
            log.warning("a deleted virtual host could not be cleared yet", vhost=vhost, error=str(error))
            return False

    async def _clear(self, vhost: str) -> bool:
        """See `_cleared`. Raises `StoreError`."""
        if self._definitions.shared:
            await self._take_stock()  # definitions that other proxies have made there a moment ago
        queues = [name for name in self.queues if vhost_of(name) == vhost]
        for at in range(0, len(queues), REMOVED_COUNT_MAX):
            async with self._changing:
                if vhost not in self.vhosts.deleted:
                    return True  # it was made again: its contents now are its own
                await self._drop_soon(name for name in queues[at : at + REMOVED_COUNT_MAX] if name in self.queues)
        for name in [name for name in self._exchanges if vhost_of(name) == vhost]:
            async with self._changing:
                if vhost not in self.vhosts.deleted:
                    return True
                exchange = self._exchanges.get(name)
                if exchange is not None:
                    try:
                        await self._drop_exchange(exchange)
                    except Changed:
                        await self._look_again(name, exchange=True)
        async with self._changing:
            return not self._left_in(vhost) and await self._forget_vhost(vhost)

    async def _forget_vhost(self, vhost: str) -> bool:
        """Removes the policies of a deleted virtual host in which nothing is left."""
        stored = self._policies.stored
        for place in [place for place in stored if place.vhost == vhost]:
            await self._settings.delete_policy(place)
        await self._take_over([one for place, one in stored.items() if place.vhost != vhost])
        if vhost not in self.vhosts.deleted:
            return True
        if vhost in self.vhosts.configured:  # since it was deleted
            await self._settings.permit_vhost(vhost)
            self.vhosts.made(vhost)
            self._know_vhost(vhost)
        else:
            await self._settings.finish_deletion(vhost)
            self.vhosts.deleted[vhost] = True
        return True
