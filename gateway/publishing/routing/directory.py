"""The directory: every address that is published to is noted in the store once, so that addresses can be listed.

Off the path of the messages themselves: an address is offered when the router meets it, noted a little later, and
offered again after a restart, when it costs a look-up and nothing in the log. Lists wait for what this process is about
to note; what another one notes they may miss for that time.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from controller.api.client import ControllerClient
from gateway.publishing.routing.router import REMEMBERED_LENGTH_MAX, Router
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.base.streams.event_wait import wait_at_most

PENDING_MAX = 1 << 16  # addresses waiting to be noted; more are not, until they are offered again
NOTED_AT_ONCE = 1_000
PAGE = 1_000
SETTLE_S = 1.0  # that a list waits for addresses that are being noted

log = logs.get(__name__)


class Directory:
    """Notes and lists addresses. It belongs to the event loop; `spawn` runs a coroutine as a supervised task."""

    def __init__(self, store: StoreClient, *, spawn: Callable[[Coroutine[Any, Any, object]], object]) -> None:
        self._store = store
        self._spawn = spawn
        self.pending: dict[str, None] = {}  # len <= PENDING_MAX
        self._noting = False
        self._offered_count = 0  # addresses that have ever been pending
        self._noted_count = 0  # of them, those that are noted, or could not be
        self._noted = asyncio.Event()  # set when some more are
        self._stuck_count = -1  # of noted ones, when a list has waited in vain

    def offer(self, address: str) -> None:
        """Lists an address that is published to, unless it is reserved or no cache keeps it."""
        if address.startswith("$") or len(address) > REMEMBERED_LENGTH_MAX or len(self.pending) >= PENDING_MAX:
            return
        self._offered_count += address not in self.pending
        self.pending[address] = None
        if not self._noting:
            self._noting = True
            self._spawn(self._note())

    async def _note(self) -> None:
        try:
            while self.pending:
                some = list(self.pending)[:NOTED_AT_ONCE]
                for address in some:
                    del self.pending[address]
                try:
                    await self._store.log.note_addresses(some)
                finally:
                    self._noted_count += len(some)
                    self._noted.set()
        except StoreError as error:  # offered again when the router has forgotten them
            log.warning("addresses could not be recorded", error=str(error))
        finally:
            self._noting = False
            self._noted.set()

    async def settle(self) -> None:
        """Waits until all addresses that were offered by now are noted, or cannot be, but not for long.

        So a client that was told that its message is stored finds its address. After a wait in vain, no other list
        waits until the store has noted more.
        """
        offered_count, until_s = self._offered_count, time.monotonic() + SETTLE_S
        while self._noting and self._noted_count < offered_count and self._noted_count != self._stuck_count:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                self._stuck_count = self._noted_count
                return
            self._noted.clear()
            await wait_at_most(self._noted, left_s)

    async def list(
        self,
        prefix: str,
        limit: int,
        *,
        after: str = "",
        router: Router,
        controller: ControllerClient,
        readable: Callable[[str], bool] = lambda _address: True,
    ) -> Sequence[str]:
        """Returns up to `limit` addresses that begin with a prefix and follow `after`, sorted.

        Those of topics that are gone, and those that are not `readable`, are left out.
        """
        await self.settle()
        found: list[str] = []
        while len(found) < limit:
            page = await self._store.log.addresses(prefix, after=after, limit=PAGE)
            found += [
                address
                for address in page
                if controller.topic(router.topic_of(address)) is not None and readable(address)
            ]
            if len(page) < PAGE:
                break
            after = page[-1]
        return found[:limit]
