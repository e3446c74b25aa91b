"""The processes of `headgate serve --workers`: started, asked how they are, started again, and ended."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.config import Config
from gateway.ops.status import Status, WorkerStatus
from gateway.process.app import StartError
from gateway.process.worker_messages import Told, WorkerMessageError, encode
from store.base import logs

__all__ = ["Worker", "WorkerPool", "WorkerSilent"]

READY_S = 60.0  # from the start of the first workers until they serve
READY_POLL_S = 0.05
POLL_S = 1.0  # between two looks at how a worker is
METRICS_S = 5.0  # between two looks at what it has counted, when nobody asks
ASK_S = 2.0  # for one answer
PAGE_BYTES_MAX = 16 * 1024 * 1024  # of one answer
AGAIN_MIN_S, AGAIN_MAX_S = 0.1, 10.0  # until a worker that has ended is started again
STEADY_S = 30.0  # after so long a worker that ends has not failed at once
STOP_S = 10.0  # from SIGTERM to SIGKILL, besides what connections are given to end

log = logs.get(__name__)


class WorkerSilent(Exception):
    """A worker does not say what it was asked."""


class Worker:
    """One process after the other. `status` and `metrics` are what it said last."""

    def __init__(self, number: int, pages: Path) -> None:
        self.number = number
        self.pages = pages
        self.process: asyncio.subprocess.Process | None = None  # None: it has ended
        self.status: Status | None = None  # None: not ready yet
        self.metrics = ""
        self.restarts = 0
        self.troubles: tuple[str, ...] = ("starting",)

    @property
    def name(self) -> str:
        """Returns the worker's name among processes."""
        return f"worker-{self.number}"

    @property
    def ready(self) -> bool:
        """Returns whether the worker serves."""
        return self.process is not None and not self.troubles

    def shown(self) -> WorkerStatus:
        """Returns the status that an operator is shown."""
        status = self.status
        return WorkerStatus(
            number=self.number,
            pid=0 if self.process is None else self.process.pid,
            ready=self.ready,
            restarts=self.restarts,
            connections=0 if status is None else sum(status.connections.values()),
        )

    async def look(self) -> None:
        """Ask it how it is."""
        try:
            status = msgspec.json.decode(await self._ask("/status"), type=Status)
        except (WorkerSilent, msgspec.MsgspecError) as error:
            self.troubles = (str(error),)
            return
        self.troubles = () if status.ready else status.reasons or ("not ready",)
        self.status = status

    async def count(self) -> None:
        """Ask it what it has counted; without an answer the last one stands."""
        with suppress(WorkerSilent):
            self.metrics = (await self._ask("/metrics")).decode()

    async def _ask(self, page: str) -> bytes:
        """A page. Raises `WorkerSilent`."""
        try:
            async with asyncio.timeout(ASK_S):
                reader, writer = await asyncio.open_unix_connection(self.pages)
                try:
                    writer.write(f"GET {page} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                    body = await _body(reader)
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            raise WorkerSilent(f"does not answer: {error or type(error).__name__}") from error
        if head.split(maxsplit=2)[1] != str(HTTPStatus.OK.value).encode():
            raise WorkerSilent(body.decode(errors="replace").strip())
        return body


class WorkerPool:
    """All workers of one configuration. `gone` is told of each that has ended, before another one is in its place."""

    def __init__(
        self, config: Config, count: int, sockets: Path, *, gone: Callable[[Worker], Coroutine[Any, Any, None]]
    ) -> None:
        self.workers = [Worker(n, sockets / f"worker-{n}.sock") for n in range(1, count + 1)]
        self._config = config
        self._gone = gone
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []  # two a worker

    async def start(self) -> None:
        """Starts all, and waits until they serve. Raises `StartError`, `WorkerMessageError`: one of them cannot."""
        for worker in self.workers:
            await self._spawn(worker)
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.gather(*map(self._first, self.workers))
        except TimeoutError as error:
            raise StartError(f"the workers do not serve within {READY_S:g} s") from error
        for worker in self.workers:
            self._tasks += [asyncio.create_task(self._keep(worker)), asyncio.create_task(self._watch(worker))]

    async def gather(self) -> None:
        """Ask all what they have counted."""
        await asyncio.gather(*(worker.count() for worker in self.workers if worker.process is not None))

    def tell(self, config: Config) -> None:
        """Tells all workers another configuration; those that are started again have it from the start.

        Raises `WorkerMessageError`, and then all workers keep the one before.
        """
        running = [(worker.process, _orders(config, worker)) for worker in self.workers if worker.process is not None]
        self._config = config
        for process, orders in running:
            _send(process, orders)

    async def stop(self) -> None:
        """Have all stop listening at once and end; those that do not are ended."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        grace_s = STOP_S + 2 * self._config.gateway.shutdown_grace_s
        await asyncio.gather(*(_end(worker, grace_s) for worker in self.workers))

    async def _spawn(self, worker: Worker) -> None:
        """Starts a worker that is not running. Raises `StartError`, `WorkerMessageError`."""
        worker.pages.unlink(missing_ok=True)
        orders = _orders(self._config, worker)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.cli", "worker"),
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,  # what is typed at a terminal is for us alone
            )
        except OSError as error:
            raise StartError(f"a worker cannot be started: {error.strerror}") from error
        worker.process, worker.status, worker.troubles = process, None, ("starting",)
        _send(process, orders)

    async def _first(self, worker: Worker) -> None:
        """Wait until a worker that was started serves. Raises `StartError`."""
        assert worker.process is not None
        while not worker.ready:
            if worker.process.returncode is not None:
                raise StartError(f"{worker.name} has ended with status {worker.process.returncode} before it served")
            await asyncio.sleep(READY_POLL_S)
            await worker.look()

    async def _keep(self, worker: Worker) -> None:
        """Start a worker again whenever it has ended."""
        loop = asyncio.get_running_loop()
        again_s = AGAIN_MIN_S
        while worker.process is not None:
            began_s = loop.time()
            status = await worker.process.wait()
            if loop.time() - began_s >= STEADY_S:
                again_s = AGAIN_MIN_S
            log.error(
                "a worker has ended", worker=worker.number, pid=worker.process.pid, status=status, again_s=again_s
            )
            worker.process, worker.troubles = None, (f"has ended with status {status}",)
            try:
                await self._gone(worker)
            except Exception:  # whatever cannot be noted, another one is needed in its place
                log.exception("what a worker has left is not noted", worker=worker.number)
            worker.status, worker.metrics = None, ""
            while worker.process is None:
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, AGAIN_MAX_S)
                worker.restarts += 1
                try:
                    await self._spawn(worker)
                except (StartError, WorkerMessageError) as error:
                    log.error("a worker cannot be started", worker=worker.number, error=str(error))

    async def _watch(self, worker: Worker) -> None:
        """See how a worker is, again and again."""
        loop = asyncio.get_running_loop()
        counted_s = loop.time()
        while True:
            await asyncio.sleep(POLL_S if worker.ready else READY_POLL_S)
            if worker.process is None:
                continue
            was_ready = worker.ready
            await worker.look()
            if worker.ready != was_ready:
                log.info("a worker serves" if worker.ready else "a worker does not serve", worker=worker.number)
            if loop.time() - counted_s >= METRICS_S:
                counted_s = loop.time()
                await worker.count()


def _orders(config: Config, worker: Worker) -> bytes:
    """Returns the message with all that a worker has to know. Raises `WorkerMessageError`."""
    return encode(Told(config=config, pages=worker.pages, parent=os.getpid()))


def _send(process: asyncio.subprocess.Process, orders: bytes) -> None:
    """Writes a message to a worker, which may have ended: that is noticed when its process is waited for."""
    assert process.stdin is not None
    process.stdin.write(orders)


async def _body(reader: asyncio.StreamReader) -> bytes:
    """Returns the rest of an answer. Raises `WorkerSilent`: it is too large."""
    try:
        await reader.readexactly(PAGE_BYTES_MAX)
    except asyncio.IncompleteReadError as error:
        return error.partial
    raise WorkerSilent(f"answers with {PAGE_BYTES_MAX} bytes or more")


async def _end(worker: Worker, grace_s: float) -> None:
    """End a worker: politely and, when that does not help in time, at once."""
    process = worker.process
    if process is None or process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        log.error("a worker does not end, and is killed", worker=worker.number, pid=process.pid)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
