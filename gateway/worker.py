"""One worker of `headgate serve --workers`: a proxy on ports that it shares with the others.

What it is to do it is told by the process that starts it, through its standard input: the configuration as that has it,
so that all workers have the same one whatever happens to the file, and no secret is in an environment. It lives no
longer than that process.
"""

import ctypes
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from gateway import logs
from gateway.config import Config
from gateway.errors import HeadgateError

__all__ = ["Told", "serve"]

_PR_SET_PDEATHSIG = 1


class Told(NamedTuple):
    """What a worker has to know. `pages` is the Unix socket where it says how it is."""

    config: Config
    pages: Path
    parent: int  # process id


def serve() -> int:
    """Be a worker; the exit status. Raises `StartError`, `HeadgateError`: nobody says what to do."""
    try:
        told: Told = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the process that has started this one
    except (EOFError, pickle.UnpicklingError) as error:
        raise HeadgateError("a worker is started by headgate serve --workers") from error
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != told.parent:  # it has ended before we could ask to end with it
        return 1
    from gateway.app import serve_worker  # noqa: PLC0415 - whoever tells workers what to do need not load a gateway

    logs.configure(told.config.log)
    return serve_worker(told.config, told.pages)
