"""Asking other controllers who they are, and how far they know us to have been."""

import asyncio
from collections.abc import Mapping
from typing import Any

from controller.api.client import ControllerError, WrongCluster
from controller.wire.asking import ask
from controller.wire.wire import IDENTIFY, Identification, Introduction, encode

ANSWER_S = 1.0  # for one controller to answer


async def ask_all(
    addresses: Mapping[int, str], introduction: Introduction, *, credentials: Any
) -> dict[int, Identification | ControllerError]:
    """Returns the answer of each of these controllers, by id. Raises nothing: an error is an answer too."""
    found = await asyncio.gather(*(_ask(id_, at, introduction, credentials) for id_, at in addresses.items()))
    return dict(zip(addresses, found, strict=True))


async def _ask(
    id_: int, address: str, introduction: Introduction, credentials: Any
) -> Identification | ControllerError:
    asked = encode(introduction)
    found = await ask(address, IDENTIFY, asked, Identification, credentials=credentials, timeout_s=ANSWER_S)
    if isinstance(found, ControllerError):
        return found
    assert isinstance(found, Identification)
    if found.id != id_:
        return WrongCluster(f"at {address} is controller {found.id}, and not {id_} (cluster.controllers)")
    return found
