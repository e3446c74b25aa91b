"""One worker of `headgate serve --workers`: a proxy on ports that it shares with the others.

The process that starts it sends its orders through its standard input (`gateway.process.worker_messages`): the
configuration as that process has it, so that all workers have the same one whatever happens to the file, and no secret
is in an environment. Users and rules that change while it runs come in the same way. It ends when that process
ends (`gateway.process.child`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from gateway.config.config import Config
from gateway.process.worker_messages import LENGTH, WorkerMessageError, WorkerOrders, check_length, decode
from store.base import logs
from store.base.process_errors import HeadgateError


def _first() -> WorkerOrders:
    """Returns the first orders, and reads nothing behind them. Raises `HeadgateError`: there are none."""
    stdin = sys.stdin.fileno()
    try:
        return decode(_exactly(stdin, check_length(_exactly(stdin, LENGTH.size))))
    except (EOFError, WorkerMessageError) as error:
        why = f" ({error})" if str(error) else ""
        raise HeadgateError(f"a worker is started by headgate serve --workers{why}") from error


def _exactly(file: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = os.read(file, count - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


async def _more() -> AsyncIterator[Config]:
    """Yields the configurations of later orders. Raises `WorkerMessageError`."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with suppress(asyncio.IncompleteReadError):  # the supervisor has gone, and so does the worker
        while True:
            length = check_length(await reader.readexactly(LENGTH.size))
            yield decode(await reader.readexactly(length)).config


def serve() -> int:
    """Runs a worker; returns its exit status. Raises `ServerFailed`, `HeadgateError`: there are no orders."""
    orders = _first()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent sends it the changes
    from gateway.process.app import serve_worker  # noqa: PLC0415 - the parent of workers need not load a gateway

    logs.configure(orders.config.log)
    return serve_worker(orders.config, orders.pages, _more)
