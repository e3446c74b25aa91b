"""Runs the demonstration: the gateway, Spark and the fleets up; watch; everything down, with the balance."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
from rich.console import Console
from rich.live import Live

from deploy.demo import balance, view
from deploy.demo.balance import Row
from deploy.demo.children import FleetChild, launch, stop, wait_until
from deploy.demo.dashboard import Dashboard
from deploy.demo.findings_heard import FindingsHeard
from deploy.demo.log_reader import LogReader
from deploy.demo.milestones import Milestones
from deploy.demo.plan import DEVICES, FAULT_AT, Target
from deploy.demo.spark_job import SparkJob
from gateway.ops.status import Status
from gateway.process.child import Child
from spark.errors import MissingJdk, SparkError
from store.base.errors import StoreError

READY_S = 120.0  # for the gateway to be ready
FLEETS_READY_S = 120.0
DRAIN_S = 60.0  # for everything in flight to be answered
HEARD_S = 30.0  # for the last findings to be heard
FAULT_DUE = 2 * DEVICES * FAULT_AT  # messages of a fleet among which there is a faulty one, at least
LOGGED_S, READ_S, COUNTED_S = 15.0, 30.0, 180.0  # without progress of log, readers and Spark
WATCH_S = 1.0
MILESTONES_S = 0.25  # between looks for what has not been reached yet
LINE_S = 5.0  # between the lines where there is no terminal


class ShowFailed(Exception):
    """Raised when the show cannot run: a port is taken, or a process has ended early."""


class Options(NamedTuple):
    """The options of the command line. Without `seconds` it runs until it is stopped."""

    root: Path
    target: Target
    fleets: tuple[str, ...]
    seconds: float | None = None
    rate: float = 1.0
    spark: bool = True


class Show:
    """One run."""

    def __init__(self, options: Options, console: Console, stopped: asyncio.Event) -> None:
        self._options = options
        self._console = console
        self._stopped = stopped  # set by the operator
        self._run = secrets.token_hex(4)
        self._logs = options.root / "logs"
        self._resumed = (options.root / "gateway").exists()
        self._gateway: Child | None = None
        self._spark: SparkJob | None = None
        self._heard: FindingsHeard | None = None
        self._dashboard: Dashboard | None = None
        self._fleets: dict[str, FleetChild] = {}
        self._log: LogReader | None = None
        self._status: Status | None = None
        self._begun = time.monotonic()
        self._milestones = Milestones(time.monotonic)
        self._before: dict[str, tuple[float, int]] = {}

    async def run(self) -> int:
        """Runs the whole show; returns 0 when it balances. Raises `ShowFailed`."""
        if self._resumed and self._options.seconds is not None:
            raise ShowFailed(f"{self._options.root} holds an earlier run; the balance needs an empty directory")
        self._logs.mkdir(parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            await self._watch()
            self._say("stopping the fleets")
            for fleet in self._fleets.values():
                fleet.tell("stop")
            await self._wait(lambda: self._all_are("stopped"), DRAIN_S)
            await self._settle()
            rows, readers, missed = self._rows(), self._read_by_reader(), self._missed_by_reader()
            found: list[str] = []
            findings = ""
            if self._held:
                assert self._log is not None
                found = balance.faults(rows, readers, self._log.seen.repeats, missed)
                found += [f"{name}: {f.report.error}" for name, f in self._fleets.items() if f.report.error]
                findings, more = await asyncio.to_thread(self._tables_balance)
                found += more
            view.summary(self._console, rows, _totals(readers), found, held=self._held, missed=_totals(missed))
            if findings:
                self._console.print(findings, highlight=False, markup=False)
            if line := self._milestones.line():
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        return 1 if found else 0

    @property
    def _held(self) -> bool:
        """Returns whether it must balance: not when it was stopped in the middle, for then nothing is waited for."""
        return self._options.seconds is not None and not self._stopped.is_set()

    # ---- up

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        options = self._options
        self._say(f"starting the gateway; data and logs in {options.root}")
        serve = ("gateway.cli", "serve", "--data-dir", str(options.root / "gateway"))
        offset = ("--port-offset", str(options.target.port_offset))
        self._gateway = launch("gateway", *serve, *offset, logs=self._logs)
        stack.push_async_callback(stop, self._gateway)
        async with httpx.AsyncClient(base_url=options.target.admin, trust_env=False, timeout=2) as admin:
            await self._await_gateway(admin)
        self._dashboard = Dashboard.start(options.target, options.root / "spark", self._logs)
        if self._dashboard is not None:
            stack.push_async_callback(self._dashboard.stop)
            self._milestones.expect("dashboard up", lambda shown=self._dashboard: bool(shown.link()))
        if options.spark:
            try:
                self._spark = await SparkJob.start(options.target, options.root / "spark", self._logs)
            except MissingJdk as missing:
                self._say(f"Spark is left out: {missing}")
            else:
                stack.push_async_callback(self._spark.stop)
                self._milestones.expect("first table version committed", self._spark.has_committed)
                self._heard = FindingsHeard(self._run, options.target)
                self._milestones.expect("first finding heard over MQTT", lambda heard=self._heard: bool(heard.found))
                stack.callback(self._heard.close)
                if not await asyncio.to_thread(self._heard.start):
                    raise ShowFailed("the subscriber of findings could not subscribe to analytics/#")
        stack.push_async_callback(_end, asyncio.create_task(self._note_milestones()))
        self._log = LogReader(options.target, self._run)
        stack.callback(self._log.close)
        await asyncio.to_thread(self._log.skip)
        stack.push_async_callback(self._stop_fleets)
        for name in options.fleets:
            fleet = await FleetChild.start(name, self._run, options.target, rate=options.rate, logs=self._logs)
            self._fleets[name] = fleet
        if not await self._wait(lambda: self._all_are("ready"), FLEETS_READY_S):
            raise ShowFailed("not ready: " + "; ".join(self._excuses()))
        for fleet in self._fleets.values():
            fleet.tell("go")
        self._begun = time.monotonic()

    async def _await_gateway(self, admin: httpx.AsyncClient) -> None:
        assert self._gateway is not None
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if not self._gateway.running:
                raise ShowFailed(f"the gateway did not start: {self._gateway.last_words()}")
            with contextlib.suppress(httpx.HTTPError, msgspec.DecodeError):
                status = msgspec.json.decode((await admin.get("/status")).content, type=Status)
                if status.ready and Path(status.data_dir) == self._options.root / "gateway":  # not another one there
                    return
            await asyncio.sleep(0.1)
        raise ShowFailed(f"the gateway is not ready after {READY_S:.0f} s; see {self._gateway.log}")

    # ---- while it runs

    async def _watch(self) -> None:
        """Shows the progress until the time is over or the user stops it. Raises `ShowFailed` when a process ends."""
        options = self._options
        until = None if options.seconds is None else self._begun + options.seconds
        terminal = self._console.is_terminal
        next_line = self._begun + LINE_S
        with contextlib.ExitStack() as stack:
            picture = stack.enter_context(Live(console=self._console, auto_refresh=False)) if terminal else None
            while not self._stopped.is_set() and (until is None or time.monotonic() < until):
                await self._look()
                scene = self._scene()
                if picture is not None:
                    picture.update(view.live(scene), refresh=True)
                elif time.monotonic() >= next_line:
                    next_line += LINE_S
                    self._console.print(view.line(scene), highlight=False, soft_wrap=True)
                self._check_alive()
                left = WATCH_S if until is None else min(WATCH_S, max(0.0, until - time.monotonic()))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._stopped.wait()

    async def _look(self) -> None:
        """Asks everybody; one who does not answer this time is asked again the next."""
        assert self._log is not None
        with contextlib.suppress(StoreError):
            await asyncio.to_thread(self._log.advance)
        async with httpx.AsyncClient(base_url=self._options.target.admin, trust_env=False, timeout=2) as admin:
            with contextlib.suppress(httpx.HTTPError, msgspec.DecodeError):
                self._status = msgspec.json.decode((await admin.get("/status")).content, type=Status)
        if self._spark is not None:
            await asyncio.to_thread(self._spark.look)
        if self._dashboard is not None and (news := self._dashboard.news()):
            self._say(news)

    async def _note_milestones(self) -> None:
        """Looks for what has not been reached, until all is."""
        while not self._milestones.all_reached:
            await asyncio.to_thread(self._milestones.look)
            await asyncio.sleep(MILESTONES_S)

    def _check_alive(self) -> None:
        children = [self._gateway, *(fleet.child for fleet in self._fleets.values())]
        if self._spark is not None:
            children.append(self._spark.child)
        for child in children:
            if child is not None and not child.running:
                raise ShowFailed(f"{child.describe_end()}; see {child.log}")

    def _scene(self) -> view.Scene:
        now = time.monotonic()
        rates = {}
        for name, fleet in self._fleets.items():
            acked = fleet.report.acked
            at, before = self._before.get(name, (self._begun, 0))
            rates[name] = (acked - before) / max(now - at, 1e-3)
            self._before[name] = (now, acked)
        return view.Scene(
            elapsed_s=now - self._begun,
            rows=self._rows(),
            rates=rates,
            readers=_totals(self._read_by_reader()),
            status=self._status,
            spark=self._spark.words if self._spark is not None else "left out",
            heard=(len(self._heard.found), self._heard.newest) if self._heard is not None else (0, ""),
            aggregates=self._spark.aggregates if self._spark is not None else (),
        )

    # ---- down

    async def _settle(self) -> None:
        """Waits until log, readers and Spark have everything that was published, each for a bounded time."""
        assert self._log is not None
        log = self._log
        if not self._held:
            await self._look()
            return
        acked = {name: fleet.report.acked for name, fleet in self._fleets.items()}
        await self._wait_looking(
            lambda: all(log.seen.by_fleet[name] >= n for name, n in acked.items()),
            LOGGED_S,
            progress=lambda: log.seen.total,
        )
        self._say(f"{log.seen.total:,} messages are in the log; waiting for the readers")
        await self._wait_looking(self._all_is_read, READ_S, progress=self._read_by_reader)
        if self._spark is not None:
            self._say("waiting for Spark to have counted them")
            spark = self._spark
            await self._wait_looking(
                lambda: spark.counts == self._logged() or not spark.child.running,
                COUNTED_S,
                progress=lambda: spark.counts,
            )
            await spark.stop()  # so that the tables stay as they are, and nobody is found to be silent meanwhile
            await self._wait_looking(self._all_is_heard, HEARD_S)

    def _all_is_heard(self) -> bool:
        """Returns whether every finding in the table was heard."""
        assert self._spark is not None
        assert self._heard is not None
        try:
            return self._spark.findings().keys() <= self._heard.found.keys()
        except SparkError:
            return False

    def _tables_balance(self) -> tuple[str, list[str]]:
        """Returns what was found, in a sentence, and what of the tables does not balance. Blocking."""
        if self._spark is None or self._heard is None or self._resumed:
            return "", []
        heard, logged = self._heard.found, sum(self._logged().values())
        try:
            in_table, faults = self._spark.findings(), self._spark.recount(logged)
        except SparkError as error:
            return "", [f"tables: {error}"]
        due = any(fleet.report.acked > FAULT_DUE for fleet in self._fleets.values())
        faults += balance.findings_faults(in_table, heard, due=due)
        words = f"findings: {len(in_table):,} in the table, {len(heard):,} heard over MQTT"
        if not faults:
            words = f"tables hold {logged:,} messages; {words}"
        return words + (f"; the last one: {self._heard.newest}" if heard else ""), faults

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits for something that a process which has ended cannot bring about any more."""
        await wait_until(lambda: condition() or self._broken(), seconds)
        return condition()

    async def _wait_looking(
        self, condition: Callable[[], bool], seconds: float, *, progress: Callable[[], object] = lambda: None
    ) -> None:
        """Waits for a condition, looking again and again, until nothing has changed of the progress for so long."""
        until = time.monotonic() + seconds
        before: object = None
        await self._look()
        while not condition() and time.monotonic() < until and not self._broken():
            await asyncio.sleep(0.5)
            await self._look()
            if (now := progress()) != before:
                until, before = time.monotonic() + seconds, now

    def _broken(self) -> bool:
        children = [self._gateway, *(fleet.child for fleet in self._fleets.values())]
        return any(child is not None and not child.running for child in children)

    def _excuses(self) -> list[str]:
        """Returns why fleets are not ready: those that failed, or else those that are late."""
        failed = {name: fleet.report.error for name, fleet in self._fleets.items() if fleet.report.error}
        late = {name: f"still {fleet.report.phase}" for name, fleet in self._fleets.items()}
        return [f"{name}: {why}" for name, why in (failed or late).items() if why != "still ready"]

    async def _stop_fleets(self) -> None:
        await asyncio.gather(*(fleet.stop() for fleet in self._fleets.values()))

    def _all_are(self, phase: str) -> bool:
        return all(fleet.report.phase == phase for fleet in self._fleets.values())

    def _logged(self) -> dict[str, int]:
        assert self._log is not None
        return {name: self._log.seen.by_fleet[name] for name in self._fleets}

    def _rows(self) -> list[Row]:
        reports = {name: msgspec.to_builtins(fleet.report) for name, fleet in self._fleets.items()}
        # Of what was there before this run Spark knows only the protocol, so then it cannot be told by fleet.
        counted = None if self._spark is None or self._resumed else self._spark.counts
        return balance.rows(reports, self._logged(), counted)

    def _read_by_reader(self) -> dict[str, Mapping[str, int]]:
        """Returns reader -> fleet -> messages."""
        return {
            name: {fleet: read.get(fleet, 0) for fleet in self._fleets}
            for child in self._fleets.values()
            for name, read in child.report.read.items()
        }

    def _missed_by_reader(self) -> dict[str, Mapping[str, int]]:
        """Returns reader -> fleet -> messages of QoS 0 that its absences cost it."""
        return {name: missed for child in self._fleets.values() for name, missed in child.report.missed.items()}

    def _all_is_read(self) -> bool:
        """Returns whether every reader has all messages for it."""
        logged, missed = self._logged(), self._missed_by_reader()
        return all(
            read[fleet] + missed.get(name, {}).get(fleet, 0) == logged[fleet]
            for name, read in self._read_by_reader().items()
            for fleet in logged
        )

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False, soft_wrap=True)


async def _end(task: asyncio.Task[None]) -> None:
    """Ends a task, unless it has ended; raises the error that it has ended with."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _totals(readers: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(read.values()) for name, read in readers.items()}
