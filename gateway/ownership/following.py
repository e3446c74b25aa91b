"""The one way to follow keys of the store: all entries, then each change, and again after an error."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NoReturn

from store.api.client import StoreClient
from store.api.keys import Change
from store.base import logs
from store.base.errors import StoreError
from store.base.streams import Backoff

FOLLOW_MIN_S: Final = 0.5  # between two attempts
FOLLOW_MAX_S: Final = 4.0

log = logs.get(__name__)


async def follow_keys(
    store: StoreClient,
    keys: tuple[str, str],
    *,
    look: Callable[[], Awaitable[None]],
    changed: Callable[[Sequence[Change]], Awaitable[None]],
    trouble: str,
    backoff: Backoff | None = None,
) -> NoReturn:
    """Follows the keys from the first of `keys` to before the second, until it is cancelled.

    `look` takes stock: it is called when the watch has begun, so that no change falls between both, and again after
    each time that the watch has broken. Then `changed` gets each change once, in order. A `StoreError` of either, or of
    the watch, breaks the watch; it is logged as `trouble`. Pauses between attempts become longer until `look` returns,
    and differ by chance, so that proxies do not all ask a store that comes back at one moment.
    """
    backoff = backoff or Backoff(FOLLOW_MIN_S, FOLLOW_MAX_S)
    while True:
        try:
            async with aclosing(store.keys.watch(*keys)) as changes:
                await look()
                backoff.reset()
                async for some in changes:
                    await changed(some.changes)
        except StoreError as error:
            log.warning(trouble, error=str(error), retry_s=backoff.longest_s)
        await backoff.pause()


def below(namespace: str) -> tuple[str, str]:
    """Returns the range of the keys in a namespace."""
    return f"{namespace}/", f"{namespace}0"  # "0" is the character behind "/"
