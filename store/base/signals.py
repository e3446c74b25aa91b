"""Being asked to stop, the first time politely, the second one at once; and to read the configuration again."""

import asyncio
import signal
import sys

from store.base import logs

__all__ = ["hangups", "stop_on_signals"]

log = logs.get(__name__)


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. A second signal ends the process."""
    stopped = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set():
            log.warning("forced", signal=number.name)
            sys.stderr.flush()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        log.info("stopping", signal=number.name)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopped


def hangups() -> asyncio.Event:
    """An event that SIGHUP sets, which ends the process no more."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, heard.set)
    return heard
