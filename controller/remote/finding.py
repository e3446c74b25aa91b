"""Controllers that a node's configuration does not name any more: they are looked for where they were last."""

import asyncio
from typing import Final

from controller.disk.known import KnownControllers
from controller.remote.remote import RemoteController
from store.base import logs

CONFIGURED_S: Final = 10.0  # until controllers are looked for that the configuration does not name

log = logs.get(__name__)


async def find(controller: RemoteController, known: KnownControllers) -> None:
    """Waits for a controller: of those named, and when none answers for a while, of those known from before.

    Raises `ControllerClosed`.
    """
    try:
        async with asyncio.timeout(CONFIGURED_S):
            await controller.ready()
    except TimeoutError:
        if known.kept:
            log.warning("no controller of cluster.controllers answers", asking=", ".join(known.kept))
        controller.also(known.kept)
        await controller.ready()


def keep(controller: RemoteController, known: KnownControllers) -> None:
    """Keeps where the controllers are, now and after every change."""

    def learn() -> None:
        known.learn([one.address for one in controller.members()])

    learn()
    controller.watch(learn)
