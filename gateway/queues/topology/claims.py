"""Owning the name of a queue for as long as it is made or removed, so that two proxies do not give it two numbers."""

import asyncio

from gateway.domain.errors import Refusal
from gateway.ownership.owners import Owned, Owners, Taken
from store.base import logs
from store.base.errors import StoreError

PREFIX = "queues/"  # of the names that are owned
CLAIM_S = 3.0  # that another proxy may take to make or to remove a queue of a name
CLAIM_RETRY_S = 0.02

log = logs.get(__name__)


async def claim(owners: Owners, name: str) -> Owned:
    """Owns the name of a queue, which another proxy may own for a while. Raises `Refusal`, `StoreError`."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + CLAIM_S
    while True:
        try:
            return await owners.take(f"{PREFIX}{name}", wait=False)
        except Taken:
            if loop.time() > until_s:
                raise
            await asyncio.sleep(CLAIM_RETRY_S)


async def release(owned: Owned) -> None:
    """Releases the name of a queue that is gone or was never ours: it is free now, or when this process ends."""
    try:
        await owned.release()
    except (StoreError, Refusal) as error:
        log.warning("the name of a deleted queue could not be released yet", error=str(error))
