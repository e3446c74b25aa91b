"""Asking other controllers who they are, and how far they know us to have been."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from controller.api.client import ControllerError, WrongCluster
from controller.wire.commander import broken
from controller.wire.peers import open_channel
from controller.wire.wire import IDENTIFY, Acquaintance, BadAnswer, BadRequest, Introduction, decode, encode, path

__all__ = ["ANSWER_S", "ask_all"]

ANSWER_S = 1.0  # for one controller to answer


async def ask_all(
    addresses: Mapping[int, str], introduction: Introduction, *, credentials: Any
) -> dict[int, Acquaintance | ControllerError]:
    """Returns the answer of each of these controllers, by id. Raises nothing: an error is an answer too."""
    found = await asyncio.gather(*(_ask(id_, at, introduction, credentials) for id_, at in addresses.items()))
    return dict(zip(addresses, found, strict=True))


async def _ask(id_: int, address: str, introduction: Introduction, credentials: Any) -> Acquaintance | ControllerError:
    channel = open_channel(address, credentials)
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await channel.unary_unary(path(IDENTIFY))(encode(introduction), timeout=ANSWER_S)
        found: Acquaintance = decode(answer, Acquaintance)
    except grpc.aio.AioRpcError as error:
        return await broken(None, error)
    except TimeoutError:
        return ControllerError(f"{address} has not answered within {ANSWER_S:g} s")
    except BadRequest as error:
        return BadAnswer(str(error))
    finally:
        with suppress(Exception):
            await channel.close()
    if found.id != id_:
        return WrongCluster(f"at {address} is controller {found.id}, and not {id_} (cluster.controllers)")
    return found
