"""Measures one figure: all servers up, then round by round every server once, so that noise hits all alike."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.bench import machine
from tests.bench.figures import Figure
from tests.bench.load.base import Load, Measured
from tests.bench.result import Result, ServerResult, against, summarise
from tests.bench.servers import HOST, Running, ServerSpec, StartFailed, running

RUN_S = 600.0  # a run that takes longer has failed
FIRST_COUNT = 5_000  # of the first warm-up
LONG_ENOUGH = 0.25  # part of the wanted seconds after which a warm-up says enough
WARM_UPS = 5
GROWTH_MAX = 16  # from one warm-up to the next
COUNT_MAX = 5_000_000
UNTOLD = {"host", "port", "pid", "count"}  # of a load: another for each server, or each time

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan of measurements. Without `count` warm-up runs find what takes a server about `seconds`."""

    rounds: int
    seconds: float
    count: int | None
    directory: Path | None  # the disk to use; None: where temporary files go


class RunFailed(Exception):
    """A load program ended without a figure."""


@dataclass(slots=True)
class _Candidate:
    """A server and what came of it."""

    spec: ServerSpec
    load: Load
    server: Running | None = None
    runs: list[Measured] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def measure(figure: Figure, specs: Sequence[ServerSpec], plan: Plan, say: Say) -> Result:
    """Runs all rounds. A failure is in the result with its reason, and does not stop the others."""
    skipped = {spec.name: why for spec in specs if (why := spec.missing())}
    candidates = [_Candidate(spec, figure.load) for spec in specs if spec.name not in skipped]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=plan.directory, ignore_cleanup_errors=True) as home:
        described = machine.describe(Path(home))
        with ExitStack() as started:
            _Measuring(figure, candidates, plan, Path(home), say, started).run()
    servers = {one.spec.name: _summary(one, figure) for one in candidates}
    options = msgspec.to_builtins(figure.load)
    return Result(
        figure=figure.name,
        title=figure.title,
        unit=figure.unit,
        better=figure.better,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load={key: value for key, value in options.items() if key not in UNTOLD},
        machine=described,
        servers=servers,
        headgate_times=against(servers, figure.better),
        skipped=skipped,
    )


@dataclass(frozen=True, slots=True)
class _Measuring:
    """One figure being measured."""

    figure: Figure
    candidates: Sequence[_Candidate]
    plan: Plan
    home: Path
    say: Say
    started: ExitStack

    def run(self) -> None:
        """Runs everything. With `fresh` there is no warm-up, for that would be the run."""
        if not self.figure.fresh:
            for one in self.candidates:
                if one.spec.launch is None:
                    continue
                self.say(f"{one.spec.name}: starting")
                with _noting(one):
                    one.server = self.started.enter_context(running(one.spec, self.home / one.spec.name))
            for one in self.candidates:
                if one.server is not None:
                    self.say(f"{one.spec.name}: warming up")
                    with _noting(one):
                        self._calibrate(one)
        rounds = min(self.plan.rounds, self.figure.rounds_max)
        for number in range(1, rounds + 1):
            for one in self.candidates:
                if not one.errors:  # a contender that has failed once is not asked again
                    self.say(f"round {number} of {rounds}: {one.spec.name}")
                    with _noting(one):
                        one.runs.append(self._fresh_run(one, number) if self.figure.fresh else self._run(one))

    def _calibrate(self, one: _Candidate) -> None:
        """Gives the load a count that keeps this server busy for the wanted time."""
        if not hasattr(one.load, "count"):
            return
        fixed = self.plan.count or self.figure.count
        wanted = count = fixed or FIRST_COUNT
        for _ in range(WARM_UPS):
            one.load = msgspec.structs.replace(one.load, count=count)
            seen = self._run(one)
            if fixed is not None:
                return
            wanted = max(1, min(round(count * self.plan.seconds / seen.elapsed_s), COUNT_MAX))
            if seen.elapsed_s >= self.plan.seconds * LONG_ENOUGH:
                break
            count = min(wanted, count * GROWTH_MAX)
        one.load = msgspec.structs.replace(one.load, count=wanted)

    def _fresh_run(self, one: _Candidate, number: int) -> Measured:
        with running(one.spec, self.home / f"{number}" / one.spec.name) as one.server:
            return self._run(one)

    def _run(self, one: _Candidate) -> Measured:
        """Runs the load once in another process, and waits until the server is at rest again."""
        server, load = one.server, one.load
        if server is not None:
            if not server.alive:
                raise RunFailed("the server has ended")
            port = server.ports[self.figure.protocol]
            load = msgspec.structs.replace(load, host=HOST, port=port, pid=server.pid)
        command = (sys.executable, "-m", "tests.bench.load", msgspec.json.encode(load).decode())
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"not done in {RUN_S:.0f} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RunFailed(lines[-1] if lines else f"exit status {done.returncode}")
        if server is not None:
            server.settle()
        return msgspec.json.decode(done.stdout, type=Measured)


@contextlib.contextmanager
def _noting(one: _Candidate) -> Iterator[None]:
    """Notes an expected failure inside in the result."""
    try:
        yield
    except (StartFailed, RunFailed, OSError) as error:
        one.errors.append(str(error))


def _summary(one: _Candidate, figure: Figure) -> ServerResult:
    keeps = one.spec.keeps[figure.protocol]
    return summarise(version=one.spec.version(), keeps=keeps, runs=one.runs, errors=one.errors)
