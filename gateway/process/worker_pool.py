"""The workers of `headgate serve --workers`: messages to them, and their answers; a supervisor keeps the processes."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.config import Config
from gateway.ops.status import Status, WorkerStatus
from gateway.process.child import Child, module_command
from gateway.process.supervisor import READY_POLL_S, Supervisor
from gateway.process.worker_messages import WorkerOrders, encode
from store.base import logs

READY_S = 60.0  # from the start of the first workers until they serve
POLL_S = 1.0  # between two looks at how a worker is
METRICS_S = 5.0  # between two requests for its metrics, without scrapes
ASK_S = 2.0  # for one answer
PAGE_BYTES_MAX = 16 * 1024 * 1024  # of one answer
STOP_S = 10.0  # from SIGTERM to SIGKILL, besides the time that connections have to end

log = logs.get(__name__)


class WorkerSilent(Exception):
    """The worker has not answered in time."""


class WorkerRefused(WorkerSilent):
    """A worker says no."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Worker:
    """One process after the other. `status` and `metrics` are its newest answers."""

    def __init__(self, number: int, pages: Path) -> None:
        self.number = number
        self.pages = pages
        self.child: Child | None = None  # None: it has ended
        self.orders: asyncio.WriteTransport | None = None  # its standard input
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
        return self.child is not None and not self.troubles

    @property
    def trouble(self) -> str | None:
        """Returns why the worker does not serve; None: it does."""
        return None if self.ready else ", ".join(self.troubles)

    def close(self) -> None:
        """Notes that its process has ended."""
        self.child = None
        if self.orders is not None:
            self.orders.close()
            self.orders = None

    def shown(self) -> WorkerStatus:
        """Returns the status that an operator is shown."""
        status = self.status
        return WorkerStatus(
            number=self.number,
            pid=0 if self.child is None else self.child.pid,
            ready=self.ready,
            restarts=self.restarts,
            connections=0 if status is None else sum(status.connections.values()),
        )

    async def look(self) -> None:
        """Asks the worker for its status."""
        try:
            status = msgspec.json.decode(await self.ask("/status"), type=Status)
        except (WorkerSilent, msgspec.MsgspecError) as error:
            self.troubles = (str(error),)
            return
        self.troubles = () if status.ready else status.reasons or ("not ready",)
        self.status = status

    async def count(self) -> None:
        """Asks the worker for its metrics; without an answer the last ones stay."""
        with suppress(WorkerSilent):
            self.metrics = (await self.ask("/metrics")).decode()

    async def ask(self, page: str, *, body: bytes | None = None, timeout_s: float = ASK_S) -> bytes:
        """Returns a page, or with a body an action's answer. Raises `WorkerSilent`."""
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_unix_connection(self.pages)
                try:
                    writer.write(_request(page, body))
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = await _body(reader)
                finally:
                    writer.close()
        except TimeoutError as error:
            raise WorkerSilent(f"does not answer within {timeout_s:g} s") from error
        except (OSError, EOFError) as error:
            raise WorkerSilent(f"does not answer: {str(error) or type(error).__name__}") from error
        status = int(head.split(maxsplit=2)[1])
        if status != HTTPStatus.OK:
            raise WorkerRefused(HTTPStatus(status), answer.decode(errors="replace").strip())
        return answer


class WorkerPool:
    """All workers of one configuration. `gone` is called with each that has ended, before another one replaces it."""

    def __init__(
        self, config: Config, count: int, sockets: Path, *, gone: Callable[[Worker], Coroutine[Any, Any, None]]
    ) -> None:
        self.workers = [Worker(n, sockets / f"worker-{n}.sock") for n in range(1, count + 1)]
        self._config = config
        self._gone = gone
        self._tasks: list[asyncio.Task[None]] = []  # two a worker
        self.supervisor = Supervisor(_launch, stop_s=STOP_S + 2 * config.gateway.shutdown_grace_s)

    async def start(self) -> None:
        """Starts all, and waits until they serve. Raises `ChildFailed`, `WorkerMessageError`: one of them cannot."""
        for worker in self.workers:
            await self._start(worker)
        troubles = {worker.name: worker for worker in self.workers}
        for _ in self.supervisor.becoming_ready(list(troubles), lambda name: troubles[name].trouble, timeout_s=READY_S):
            await asyncio.sleep(READY_POLL_S)
            await asyncio.gather(*(worker.look() for worker in self.workers if not worker.ready))
        for worker in self.workers:
            self._tasks += [asyncio.create_task(self._keep(worker)), asyncio.create_task(self._watch(worker))]

    async def gather(self) -> None:
        """Asks all workers for their metrics."""
        await asyncio.gather(*(worker.count() for worker in self.workers if worker.child is not None))

    def send_config(self, config: Config) -> None:
        """Sends all workers another configuration; those that are started again have it from the start.

        Raises `WorkerMessageError`, and then all workers keep the one before.
        """
        told = [(worker.orders, _orders(config, worker)) for worker in self.workers if worker.orders is not None]
        self._config = config
        for pipe, orders in told:
            pipe.write(orders)

    async def stop(self) -> None:
        """Stops all workers: they stop listening at once; those that do not end are killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        names = [worker.name for worker in self.workers]
        for child in await asyncio.to_thread(self.supervisor.stop, *names):  # they need the store, which is ours
            log.error("a worker does not end, and is killed", worker=child.name, pid=child.pid)
        for worker in self.workers:
            worker.close()

    async def _start(self, worker: Worker) -> None:
        """Starts a worker that is not running. Raises `ChildFailed`, `WorkerMessageError`."""
        worker.pages.unlink(missing_ok=True)
        child = self.supervisor.start(worker.name)
        worker.child, worker.status, worker.troubles = child, None, ("starting",)
        pipe = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, child.process.stdin)
        worker.orders = pipe[0]
        worker.orders.write(_orders(self._config, worker))  # as it is now: `send_config` has passed this worker over

    async def _keep(self, worker: Worker) -> None:
        """Starts a worker again whenever it has ended."""

        async def ended(status: int, again_s: float) -> None:
            pid = 0 if worker.child is None else worker.child.pid
            log.error("a worker has ended", worker=worker.number, pid=pid, status=status, again_s=round(again_s, 3))
            worker.close()
            worker.troubles = (f"has ended with status {status}",)
            try:
                await self._gone(worker)
            except Exception:  # any failure to record it: another worker is needed in its place
                log.exception("the end of a worker could not be recorded", worker=worker.number)
            worker.status, worker.metrics = None, ""

        async def again() -> None:
            worker.restarts += 1
            await self._start(worker)

        await self.supervisor.keep(worker.name, ended=ended, start=again)

    async def _watch(self, worker: Worker) -> None:
        """Asks a worker how it is, again and again."""
        loop = asyncio.get_running_loop()
        counted_s = loop.time()
        while True:
            await asyncio.sleep(POLL_S if worker.ready else READY_POLL_S)
            if worker.child is None:
                continue
            was_ready = worker.ready
            await worker.look()
            if worker.ready != was_ready:
                log.info("a worker serves" if worker.ready else "a worker does not serve", worker=worker.number)
            if loop.time() - counted_s >= METRICS_S:
                counted_s = loop.time()
                await worker.count()


def _launch(name: str) -> Child:
    """Starts a worker, which waits for its orders. Raises `ChildFailed`."""
    return Child.start(name, module_command("gateway.cli", "worker"), pipes=True)


def _orders(config: Config, worker: Worker) -> bytes:
    """Returns the message with all that a worker has to know. Raises `WorkerMessageError`."""
    return encode(WorkerOrders(config=config, pages=worker.pages))


def _request(page: str, body: bytes | None) -> bytes:
    head = f"{'GET' if body is None else 'POST'} {page} HTTP/1.1\r\nhost: localhost\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def _body(reader: asyncio.StreamReader) -> bytes:
    """Returns the rest of an answer. Raises `WorkerSilent`: it is too large."""
    try:
        await reader.readexactly(PAGE_BYTES_MAX)
    except asyncio.IncompleteReadError as error:
        return error.partial
    raise WorkerSilent(f"answers with {PAGE_BYTES_MAX} bytes or more")
