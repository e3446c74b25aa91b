"""One worker of `headgate serve --workers`: a proxy on ports that it shares with the others.

What it is to do it is told by the process that starts it, through its standard input: the configuration as that has it,
so that all workers have the same one whatever happens to the file, and no secret is in an environment. Users and rules
may change while it runs: it is told in the same way. It lives no longer than that process.
"""

import asyncio
import ctypes
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gateway import logs
from gateway.config import Config
from gateway.errors import HeadgateError

__all__ = ["Told", "serve", "written"]

_PR_SET_PDEATHSIG = 1
_LENGTH = Struct("!I")  # of what follows it


class Told(NamedTuple):
    """What a worker has to know. `pages` is the Unix socket where it says how it is."""

    config: Config
    pages: Path
    parent: int  # process id


def written(told: Told) -> bytes:
    """What a worker is told, as its standard input brings it."""
    data = pickle.dumps(told)
    return _LENGTH.pack(len(data)) + data


def _read(data: bytes) -> Told:
    told: Told = pickle.loads(data)  # noqa: S301 - from the process that has started this one
    return told


def _first() -> Told:
    """What it is told first; nothing behind that is read. Raises `HeadgateError`: nobody says what to do."""
    stdin = sys.stdin.fileno()
    try:
        return _read(_exactly(stdin, _LENGTH.unpack(_exactly(stdin, _LENGTH.size))[0]))
    except (EOFError, pickle.UnpicklingError) as error:
        raise HeadgateError("a worker is started by headgate serve --workers") from error


def _exactly(file: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(file, count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


async def _more() -> AsyncIterator[Config]:
    """The configurations that it is told of later."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with suppress(asyncio.IncompleteReadError):  # whoever tells us has gone, and so do we
        while True:
            length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
            yield _read(await reader.readexactly(length)).config


def serve() -> int:
    """Be a worker; the exit status. Raises `StartError`, `HeadgateError`: nobody says what to do."""
    told = _first()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is told of what has changed
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != told.parent:  # it has ended before we could ask to end with it
        return 1
    from gateway.app import serve_worker  # noqa: PLC0415 - whoever tells workers what to do need not load a gateway

    logs.configure(told.config.log)
    return serve_worker(told.config, told.pages, _more)
