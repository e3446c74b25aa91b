"""The runner of the servers: `headgate serve`, its workers, `proxy`, `store`, `controller` and `cluster up`.

`run_server` gives a process its limits and its event loop, and the server a `ServerRun`: the stack of opened resources,
which are closed in reverse order, and the event that SIGTERM and SIGINT set. A server returns when it has ended in
order. An error that it raises ends the process, and the command line makes a sentence and an exit code of it.
"""

import asyncio
import contextlib
import gc
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from store.base import logs
from store.base.listening import UNAUTHENTICATED
from store.base.memory import HeapTrimming, heap_trim, memory_limit_bytes, resident_bytes
from store.base.rhythm import pause

SWITCH_INTERVAL_S = 0.0005  # how long the loop may keep the interpreter from the store's threads
GC_THRESHOLD = 50_000  # new containers between two looks for cycles: messages make none, so most looks find none
HEAP_LOOK_S = 1.0  # between two looks whether to give freed memory back

log = logs.get(__name__)
T = TypeVar("T")


class StopRequested(Exception):
    """The process is asked to stop before its server is ready; `run_server` then ends as asked."""


class ServerRun:
    """One server's run. It belongs to the event loop, and is made inside it."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self.stack = stack
        self.stopped = asyncio.Event()
        self.trimming = HeapTrimming(memory_limit_bytes(0))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    async def start(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of some work; cancels it when the process is asked to stop. Raises `StopRequested`."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self.stopped.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise StopRequested
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def settle(self) -> None:
        """Freezes the objects that the start has left: they stay, and a full collection need not walk them."""
        gc.unfreeze()  # of an earlier start in this process
        gc.collect()
        gc.freeze()

    def _stop(self, number: signal.Signals) -> None:
        if self.stopped.is_set():
            log.warning("a second signal ends the process at once", signal=number.name)
            sys.stderr.flush()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        log.info("stopping", signal=number.name)
        self.stopped.set()


def hangups() -> asyncio.Event:
    """Returns an event that SIGHUP sets, which ends the process no more."""
    signalled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, signalled.set)
    return signalled


def run_server(serve: Callable[[ServerRun], Awaitable[None]]) -> int:
    """Runs a server in this process until SIGTERM or SIGINT; a second signal ends it at once. Returns the exit status.

    Raises the errors of `serve`.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every connection is a file
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_THRESHOLD)
    uvloop.run(_run(serve))
    return 0


async def _run(serve: Callable[[ServerRun], Awaitable[None]]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        run = ServerRun(stack)
        trimming = asyncio.ensure_future(_trim_heap(run.trimming))
        trimming.add_done_callback(_log_failure)
        try:
            with contextlib.suppress(StopRequested):
                await serve(run)
        finally:
            trimming.cancel()
    log.info("stopped")


def _log_failure(trimming: asyncio.Task[None]) -> None:
    """Logs why freed memory goes back to the system no more. The server goes on: it only holds more of it."""
    if not trimming.cancelled() and (error := trimming.exception()) is not None:
        log.error("freed memory is no longer given back to the system", exc_info=error)


async def _trim_heap(trimming: HeapTrimming) -> None:
    """Gives freed memory back to the system when it is due, forever. A thread does it: it may take 1 ms a MB."""
    trim, budget = heap_trim(), UNAUTHENTICATED
    while trim is not None:
        await pause(HEAP_LOOK_S)
        before_bytes, began_s = resident_bytes(), time.monotonic()
        if not trimming.due(
            peak_bytes=budget.peak_bytes,
            held_bytes=budget.held_bytes,
            resident_bytes=before_bytes,
            now_ms=int(began_s * 1_000),
        ):
            continue
        await asyncio.to_thread(trim)
        after_bytes, ended_s = resident_bytes(), time.monotonic()
        budget.restart_peak()
        trimming.trimmed(before_bytes - after_bytes, now_ms=int(ended_s * 1_000))
        log.debug(
            "freed memory was given back to the system",
            before_bytes=before_bytes,
            after_bytes=after_bytes,
            seconds=round(ended_s - began_s, 3),
        )
