"""One connection after the other to a peer, and the parts of each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from store.base.streams.backoff import Backoff

REFUSALS_MAX = 64  # texts that are remembered so that each is logged once

Errors = type[Exception] | tuple[type[Exception], ...]


async def keep_connected(
    attempt: Callable[[], Awaitable[object]],
    backoff: Backoff,
    *,
    name: Callable[[], str],
    logger: logging.Logger,
    lost: Errors,
    refusals: Errors = (),
    wake: asyncio.Event | None = None,
) -> NoReturn:
    """Connects again and again, until it is cancelled.

    `attempt` connects, says hello, serves the connection until it breaks, and calls `backoff.reset()` when it worked.
    Between attempts is a pause, which `wake` cuts short. `lost` are the errors of a peer that is away, which are logged
    for debugging. Of them `refusals` need an operator: each is logged as an error, once. `name` begins the log line.
    """
    logged: set[str] = set()  # len <= REFUSALS_MAX
    while True:
        try:
            await attempt()
        except lost as error:
            text = f"{name()}: {error}"
            if isinstance(error, refusals) and text not in logged:
                if len(logged) >= REFUSALS_MAX:
                    logged.clear()
                logged.add(text)
                logger.error("%s", text)
            logger.debug("%s", text)
        except Exception:
            logger.exception("%s: failed", name())
        await backoff.pause(wake)


async def until_one_ends(*parts: Awaitable[object], until: "asyncio.Future[Any] | None" = None) -> None:
    """Runs the parts of a connection side by side until one of them ends, raises its error, and cancels the others.

    `until` ends all parts without an error of theirs, and is not cancelled.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    ends: list[asyncio.Future[Any]] = [*tasks]
    if until is not None:
        ends.append(until)
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if until is None or not until.done():
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Silence:
    """Notices that nothing has come from a peer for `limit_s`, at the latest after twice that.

    A timer a message would cost more than the answer is worth, so it looks once in `limit_s`.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._received = False  # since the last look

    def received(self) -> None:
        """Notes that the peer has sent something."""
        self._received = True

    async def lasts(self) -> None:
        """Returns when the peer has been silent for too long."""
        while True:
            self._received = False
            await asyncio.sleep(self.limit_s)
            if not self._received:
                return
