"""Futures that have ended already, for calls that answer with one."""

import asyncio


def succeeded() -> "asyncio.Future[None]":
    """Returns a future that has ended well."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def failed(error: Exception) -> "asyncio.Future[None]":
    """Returns a future that has failed."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
