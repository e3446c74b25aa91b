"""One question to one controller, on a connection of its own."""

import asyncio
from typing import Any

import grpc.aio

from controller.api.client import ControllerError, ControllerUnreachable
from controller.wire.wire import ERRORS, BadAnswer, BadRequest, decode, open_streams, path
from store.base.streams import of_call, opened


async def ask(
    address: str, method: str, request: bytes, kind: Any, *, credentials: Any, timeout_s: float
) -> Any | ControllerError:
    """Returns the answer of the controller at an address, or the error: it raises none."""
    async with opened(open_streams(address, credentials)) as channel:
        try:
            async with asyncio.timeout(timeout_s):
                return decode(await channel.unary_unary(path(method))(request), kind)
        except grpc.aio.AioRpcError as error:
            return of_call(error, ERRORS)
        except TimeoutError:
            return ControllerUnreachable(f"{address} has not answered within {timeout_s:g} s")
        except BadRequest as error:
            return BadAnswer(str(error))
