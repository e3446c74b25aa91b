"""Asks the controllers of a cluster once: connects, asks, and disconnects."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from controller.api.client import ControllerUnreachable
from controller.remote.remote import RemoteController
from gateway.operating.unreachable import why_unreachable
from store.base.clock import now_ms
from store.base.process_errors import NothingAnswers

ANSWER_S = 5.0  # for the controllers to answer
T = TypeVar("T")


class NoController(ControllerUnreachable, NothingAnswers):
    """Raised where no controller answers."""


async def asked(
    addresses: Sequence[str], work: Callable[[RemoteController], Awaitable[T]], *, credentials: Any = None
) -> T:
    """Returns the result of some work with the controllers. Raises `NoController`, `ControllerError`."""
    controller = RemoteController(addresses, now_ms=now_ms, credentials=credentials)
    try:
        try:
            async with asyncio.timeout(ANSWER_S):
                await controller.ready()
        except TimeoutError as error:
            why = await asyncio.to_thread(why_unreachable, addresses, credentials)
            raise NoController(why) from error
        return await work(controller)
    finally:
        await controller.close()
