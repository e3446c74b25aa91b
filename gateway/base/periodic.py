"""Work of a gateway beside its connections: what is done again and again, and what goes on without an end."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from store.base import logs
from store.base.errors import StoreError
from store.base.rhythm import pause

AGAIN_S: Final = 1.0  # until work without an end that has failed begins again

Work: TypeAlias = Callable[[], Coroutine[Any, Any, object]]

log = logs.get(__name__)


async def every(interval_ms: int, work: Work) -> None:
    """Does some work once in each interval, forever."""
    while True:
        await pause(interval_ms / 1_000)
        await _succeeds(work)


async def endless(work: Work) -> None:
    """Does some work that has no end, and begins it again when it fails. It returns where there is nothing to do."""
    while not await _succeeds(work):
        await pause(AGAIN_S)


async def _succeeds(work: Work) -> bool:
    """Does some work; returns whether it has not failed."""
    try:
        await work()
    except StoreError as error:
        log.warning("periodic work failed", error=str(error))
    except Exception:  # our own bug: the next round may do better, and other work goes on
        log.exception("periodic work failed")
    else:
        return True
    return False
