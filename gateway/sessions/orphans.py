"""Sessions whose connection ended with a former run of the process: another proxy has to publish their wills."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.domain.errors import Refusal
from store.base import logs
from store.base.errors import StoreError

AT_ONCE_COUNT = 64
AGAIN_S = 1.0

log = logs.get(__name__)


async def end_all_orphans(orphans: Sequence[str], see_to: Callable[[str], Awaitable[object]]) -> None:
    """Sees to all of them, some at once. A refusal by the store or the gateway is tried again until it succeeds."""
    left = list(orphans)
    while left:
        some, left = left[:AT_ONCE_COUNT], left[AT_ONCE_COUNT:]
        found = await asyncio.gather(*(see_to(key) for key in some), return_exceptions=True)
        for key, error in zip(some, found, strict=True):
            if isinstance(error, StoreError | Refusal):
                log.warning("a will could not be published yet", session=key, error=str(error))
                left.append(key)
            elif isinstance(error, BaseException):
                raise error
        if any(found):
            await asyncio.sleep(AGAIN_S)
