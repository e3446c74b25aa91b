"""Commits of the telemetry job: every table once a pass, then the manifest. The driver's side; it sees no row.

`begin` gives the plan of a pass, or nothing when the pass is done. Executors write data files and a new state each
(`spark.job.bucket`). `commit` then, in this order:

1. commits each table with a changed file: the files to add and those that give way, in one Delta transaction that
   carries the job's id and the pass. A table that has the pass already is skipped;
2. replaces the manifest, which names the new states;
3. removes superseded files.

The manifest names the files of new findings too, until they are published (`findings_published`).

A kill anywhere leaves the manifest of the pass before. The repeated pass reads that manifest's states, reads tables as
of the versions before it (`PassPlan.versions`), and so gives the same rows; the tables that are committed keep the
files of the first attempt, the others get those of the second. So every record counts exactly once in every table.
"""

import fcntl
import os
import uuid
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from spark.errors import DiskFull, OutputBusy, OutputMismatch, SparkError
from spark.tables.counters import counts_after, progress_after, traffic_after
from spark.tables.data_files import merge_files
from spark.tables.files import Location, now_ms, reason
from spark.tables.live_files import MERGE_FILES, LiveFiles
from spark.tables.manifest import TICKS_MAX, Manifest, no_tables, of_older_version, sequence
from spark.tables.opening import KNOWN_LONGER_H, evolve, history_of, open_table, retain
from spark.tables.reports import BucketReport, NewFile, PassPlan
from spark.tables.schemas import DAY, FINDINGS, SPECS
from spark.tables.settings import CommitSettings, half_committed
from spark.tables.state import tidy_states
from spark.tables.table_log import COMMITTING, QUIET, added, forget_versions, removed
from spark.telemetry.forgetting import Capacity
from spark.telemetry.sessions import NEVER_MS

JOB_FILE = "headgate-job"
_LOCK_FILE = ".lock"
_OLDER_NAMES = ("windows", "latest.parquet")  # of outputs that were no Delta tables
VACUUM_EVERY_MS = 3_600_000


class Commits:
    """The tables of one output, open for writing by one job."""

    def __init__(self, place: Location, settings: CommitSettings, manifest: Manifest, lock: int | None) -> None:
        self.place, self.manifest, self._settings, self._lock = place, manifest, settings, lock
        self._tables = {name: open_table(place, name, settings.history_h) for name in SPECS}
        self._evolve()
        self._live = {name: LiveFiles.of(table) for name, table in self._tables.items()}
        self.restless = True  # until a pass has found nothing that time alone may change
        self._vacuumed_ms = 0  # by this process

    @classmethod
    def maintaining(cls, place: Location, history_h: int | None = None) -> "Commits":
        """Opens an output for maintenance, with its job's history, or another.

        Raises `OutputBusy` while a job runs, `OutputMismatch` without an output.

        The lock of an object store is in the checkpoint, which this does not know: a job that runs is found by the
        commit that both try, or by its manifest.
        """
        if Manifest.load(place) is None:
            raise no_tables(place)
        try:
            lock = None if place.local is None else _locked(place.local, place.url)
        except OSError as error:
            raise SparkError(f"{place.url} cannot be written: {reason(error)}") from error
        try:
            manifest = Manifest.load(place)
            assert manifest is not None
            settings = CommitSettings(
                watermark_ms=0,
                late_ms=0,
                buckets=manifest.buckets,
                session_ms=NEVER_MS,
                findings=True,  # the job publishes them at its next start, or drops them, as it is set
                history_h=history_of(place) if history_h is None else history_h,
            )
            return cls(place, settings, manifest, lock)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise

    @property
    def whole(self) -> bool:
        """Returns whether no pass is half committed: maintenance of one that is waits until the job has finished it."""
        return self.manifest.pending_tick is None and not self._half_committed

    @property
    def _half_committed(self) -> bool:
        done = (table.transaction_version(self.manifest.job) for table in self._tables.values())
        return any(n is not None and n > self.manifest.pass_ for n in done)

    @classmethod
    def open(cls, place: Location, checkpoint: Path, settings: CommitSettings) -> "Commits":
        """Opens an output that belongs to this checkpoint, both begun when neither is there.

        Raises `OutputMismatch` when they do not belong together, or a pass is half committed that was begun with other
        settings; `OutputBusy` when another process has it open.
        """
        lock = None
        try:
            place.make()
            checkpoint.mkdir(parents=True, exist_ok=True)
            lock = _locked(checkpoint if place.local is None else place.local, place.url)
            manifest = _joined(place, checkpoint, settings)
            tidy_states(place, manifest, alone=place.local is not None and lock is not None)
            commits = cls(place, settings, manifest, lock)
            commits._begin_with(settings)
            commits._retain(settings.history_h)
            return commits
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            if isinstance(error, OSError):
                raise SparkError(
                    f"{place.url} or its checkpoint {checkpoint} cannot be written: {reason(error)}"
                ) from error
            raise

    def close(self) -> None:
        """Lets others open it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, batch: int, tick: int = 0) -> PassPlan | None:
        """Returns the plan of a pass; None: it is done. Raises `OutputMismatch` when an earlier batch is missing."""
        done, wanted = self.manifest.pass_, sequence(batch, tick)
        if batch > self.manifest.progress.batch + 1:
            raise OutputMismatch(
                f"batch {batch} follows {self.manifest.progress.batch} in {self.place.url}: batches between them are "
                "missing, as the checkpoint is of another output: name that output, or another checkpoint"
            )
        if wanted <= done:
            return None
        self._vacuum_if_due()  # before the log of a table may forget what was replaced
        return self._plan(wanted, self._merges(MERGE_FILES))

    def begin_tick(self, clock_ms: int = 0) -> PassPlan | None:
        """Returns the plan of a tick after the last batch: time goes on to `clock_ms` without records.

        It is noted in the manifest first, with its watermark, so that it is finished as it began, whatever happens.
        None before the first batch, while a batch is half committed, and after `TICKS_MAX` ticks without a record.
        """
        manifest, progress = self.manifest, self.manifest.progress
        if progress.batch < 0:
            return None
        number = manifest.pass_ + 1 if manifest.pending_tick is None else manifest.pending_tick
        tick = number - sequence(progress.batch)
        if manifest.pending_tick is None:
            if tick >= TICKS_MAX or not self.whole:
                return None
            self._vacuum_if_due()
            manifest = self.manifest
            to_ms = max(progress.watermark_ms, clock_ms - self._settings.watermark_ms)
            read_to_ms = max(progress.read_to_ms, clock_ms)
            progress = msgspec.structs.replace(progress, read_to_ms=read_to_ms, watermark_ms=to_ms)
            self._save(msgspec.structs.replace(manifest, pending_tick=number, progress=progress))
        return self.begin(progress.batch, tick)

    @property
    def clock_ms(self) -> int:
        """The time, by the store's clock, up to which every queue was read: at the last commit, or the last tick."""
        progress = self.manifest.progress
        return max(progress.stored_at_ms, progress.read_to_ms)

    def findings_published(self) -> None:
        """Notes that the findings of the last pass are published."""
        if self.manifest.unpublished:
            self._save(msgspec.structs.replace(self.manifest, unpublished=[]))

    def commit(
        self,
        plan: PassPlan,
        reports: Iterable[BucketReport],
        *,
        batch: int | None,
        began_ms: int,
        position: dict[int, int] | None = None,
    ) -> None:
        """Commits a pass; `batch` is None for a tick. `position` is the checkpoint's behind the batch."""
        reports = sorted(reports, key=lambda report: report.bucket)
        assert [report.bucket for report in reports] == list(range(self.manifest.buckets))
        before = self.manifest
        watermark_ms = self._settings.watermark_ms
        progress = progress_after(before.progress, reports, batch=batch, began_ms=began_ms, watermark_ms=watermark_ms)
        if batch is not None:
            progress = msgspec.structs.replace(progress, position=position)
        traffic = traffic_after(before.traffic, plan, reports, progress.watermark_ms)
        everything = [*reports, *([traffic[1]] if traffic[1] else [])]
        won = [self._commit_table(table, plan, everything) for table in SPECS]
        manifest = msgspec.structs.replace(
            before,
            pass_=plan.pass_,
            pending_tick=None,
            late_ms=self._settings.late_ms,
            progress=progress,
            counts=counts_after(before.counts, reports),
            states={**before.states, **{r.bucket: r.state for r in reports if r.state is not None}},
            versions={name: table.version() for name, table in self._tables.items()},
            traffic=traffic[0],
            unpublished=[*before.unpublished, *self._live[FINDINGS].of_pass(plan.pass_)]
            if self._settings.findings
            else [],
        )
        self._save(manifest, won=any(won))
        self.restless = any(report.restless for report in reports)
        for bucket, path in before.states.items():
            if manifest.states[bucket] != path:
                self.place.remove(path)
        self._vacuum_if_due()

    def _vacuum_if_due(self) -> None:
        """Vacuums and tidies once an hour; not while a pass is half committed, which reads files that it replaced."""
        if now_ms() - self._vacuumed_ms >= VACUUM_EVERY_MS and self.whole:
            self.vacuum()
            if Manifest.load(self.place) == self.manifest:  # another job's names states that this one does not know
                tidy_states(self.place, self.manifest, alone=False)

    def vacuum(self, *, all_files: bool = False) -> int:
        """Deletes files replaced longer ago than history is kept, and the log of before; returns how many files.

        With `all_files` those too that attempts have left which came to nothing.
        """
        self._vacuumed_ms = now_ms()
        self._retain(None)  # a vacuum's own commits clean the log, unless the table says no
        self._save_versions()  # first: maintenance that was killed has replaced files of the versions named so far
        history_h, deleted = self._settings.history_h, 0
        how = {"dry_run": False, "enforce_retention_duration": False, "post_commithook_properties": QUIET}
        for name, table in self._tables.items():
            try:
                deleted += len(table.vacuum(history_h, full=all_files, **how))
                before_ms = self._vacuumed_ms - history_h * 3_600_000
                forget_versions(self.place, name, self.manifest.versions[name], before_ms)
            except (DeltaError, OSError) as error:
                raise self._failure(name, error) from error
        return deleted

    def merge_all(self) -> None:
        """Merges all small files, however few. It is no pass: rows, states and the time stay as they are."""
        while merges := self._merges(2):
            plan = self._plan(self.manifest.pass_, merges)
            for name in SPECS:
                runs = [(bucket, run) for bucket, of in merges.items() for run in of.get(name, ())]
                merged = [merge_files(plan, name, bucket, run, nth) for nth, (bucket, run) in enumerate(runs)]
                if merged:
                    self._write(name, [file for file, _ in merged], [path for _, of in merged for path in of], [])
            self._save_versions()

    def _plan(self, wanted: int, merges: dict[int, dict[str, list[list[str]]]]) -> PassPlan:
        progress = self.manifest.progress
        return PassPlan(
            place=self.place,
            pass_=wanted,
            attempt=uuid.uuid4().hex[:8],
            samples=self._settings.samples,
            settled_ms=progress.watermark_ms,
            read_to_ms=progress.read_to_ms,
            newest_ms=progress.stored_at_ms,
            watermark_ms=self._settings.watermark_ms,
            late_ms=self._settings.late_ms,
            session_ms=self._settings.session_ms,
            capacity=self._capacity(),
            expired_ms=self.manifest.expired_ms,
            states=self.manifest.states,
            versions={name: self._version_before(name, wanted) for name in SPECS},
            merges=merges,
        )

    def _capacity(self) -> Capacity:
        settings, buckets = self._settings, self.manifest.buckets
        devices, series = -(-settings.devices_max // buckets), -(-settings.series_max // buckets)
        return Capacity(devices, series, settings.metrics_max, settings.forget_ms)

    # ---- tables

    def _begin_with(self, settings: CommitSettings) -> None:
        """Notes the settings of the passes that are begun from now on: each is finished with those."""
        begun_with = self.manifest.begun_with
        if begun_with == settings.of_rows:
            return
        if begun_with is not None and self._half_committed and settings.differ_from(begun_with):
            raise half_committed(self.place.url, begun_with, settings)
        self._save(msgspec.structs.replace(self.manifest, begun_with=settings.of_rows))

    def _evolve(self) -> None:
        """Gives tables of an older version their new columns; not while a pass is half committed, whose versions count.

        Until then files have columns that the table does not name yet.
        """
        if self.whole:
            for name, table in self._tables.items():
                evolve(self.place, name, table)

    def _retain(self, history_h: int | None) -> None:
        if self.whole:
            for name, table in self._tables.items():
                retain(self.place, name, table, history_h)

    def expire(self, before: date) -> int:
        """Takes the rows of days before one out of the tables that have days; returns how many files gave way.

        Findings of those days that are still to be published are not published any more. One that was killed is
        finished by the next.
        """
        folder = f"{DAY.name}={before.isoformat()}"
        gone = {name: self._live[name].before(folder) for name in SPECS}
        midnight_ms = (before - date(1970, 1, 1)) // timedelta(milliseconds=1)
        settled_ms = min(midnight_ms, self.manifest.progress.watermark_ms)
        self._save_versions(  # first: a late record opens windows again that are gone and not told of as expired
            unpublished=[path for path in self.manifest.unpublished if path >= folder],
            expired_ms=max(self.manifest.expired_ms, settled_ms),
        )
        for name, paths in gone.items():
            if paths:
                self._write(name, [], paths, [])
        self._save_versions()
        return sum(len(paths) for paths in gone.values())

    def _save_versions(self, **more: Any) -> None:
        """Names the versions that maintenance has made, if any: nothing is replaced where nothing has changed."""
        versions = {name: table.version() for name, table in self._tables.items()}
        named = msgspec.structs.replace(self.manifest, versions=versions, **more)
        if named != self.manifest:
            self._save(named)

    def _merges(self, least: int) -> dict[int, dict[str, list[list[str]]]]:
        """Returns the small files that each bucket is to merge, from `least` of one day on."""
        found: dict[int, dict[str, list[list[str]]]] = {}
        for name in SPECS:
            if name == FINDINGS and self.manifest.unpublished:
                continue  # their files are still to be read one by one
            for bucket, runs in self._live[name].small(least).items():
                found.setdefault(bucket, {})[name] = runs
        return found

    def _version_before(self, name: str, wanted: int) -> int:
        """Returns the version of a table that a pass continues: the one before it, where it is committed already."""
        table = self._tables[name]
        version: int = table.version()
        return version - 1 if table.transaction_version(self.manifest.job) == wanted else version

    def _commit_table(self, name: str, plan: PassPlan, reports: list[BucketReport]) -> bool:
        """Commits a table, unless it has the pass, or nothing of it has changed; returns whether it did."""
        table = self._tables[name]
        done = table.transaction_version(self.manifest.job)
        if done is not None and done >= plan.pass_:
            return False
        files = [file for report in reports for file in report.files if file.table == name]
        gone = [path for report in reports for path in report.removed.get(name, ())]
        for report in reports:
            if name in report.replaced:
                gone += self._live[name].opened(report.bucket)
        if not files and not gone:
            return False
        self._write(name, files, gone, [Transaction(self.manifest.job, plan.pass_, now_ms())])
        return True

    def _write(self, name: str, files: list[NewFile], gone: list[str], transactions: list[Transaction]) -> None:
        """Commits files to add and files that give way. Raises `OutputBusy` and `SparkError`."""
        table, spec, stamp = self._tables[name], SPECS[name], now_ms()
        actions = [*(added(file, stamp) for file in files), *(removed(path, stamp) for path in gone)]
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
        vacuumed = stamp - self._vacuumed_ms <= KNOWN_LONGER_H * 3_600_000  # so a checkpoint forgets no file before it
        try:
            table.create_write_transaction(
                actions,
                "append",
                spec.schema,
                spec.partition_by,
                commit_properties=properties,
                post_commithook_properties=COMMITTING if vacuumed else QUIET,
            )
        except (DeltaError, OSError) as error:
            raise self._failure(name, error) from error
        table.update_incremental()
        self.place.sync_log(name, table.version())
        self._live[name].change(files, gone)

    def _failure(self, name: str, error: Exception) -> SparkError:
        """Returns the error of a commit of a table that failed."""
        if isinstance(error, CommitFailedError):
            return OutputBusy(f"another job is writing to {self.place.child(name)}: {reason(error)}")
        if "No space left" in str(error):
            return DiskFull(self.place.url)
        return SparkError(f"the table {self.place.child(name)} cannot be committed: {reason(error)}")

    def _save(self, manifest: Manifest, *, won: bool = False) -> None:
        """Replaces the manifest. Raises `OutputBusy` where it is another's than the one that was read or saved last.

        A job that has `won` a commit of the pass does not ask: its manifest counts.
        """
        if not won and self.place.local is None and Manifest.load(self.place) != self.manifest:
            raise OutputBusy(f"another job is writing to {self.place.url}")  # no lock keeps it out (`_locked`)
        manifest.save(self.place)
        self.manifest = manifest


def _locked(directory: Path, url: str) -> int | None:
    """Returns the descriptor that holds a lock: the system lets go of it when the process dies.

    It is in the output, or in the checkpoint of one that is in an object store. A copy of that checkpoint on another
    machine has a lock of its own: such a job is found by its commits.
    """
    lock = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise OutputBusy(f"another job is writing to {url}") from error
    return lock


def _joined(place: Location, checkpoint: Path, settings: CommitSettings) -> Manifest:
    """Returns the output's manifest, which must be of the checkpoint's job; both begun when neither is there."""
    job_file = checkpoint / JOB_FILE
    job = job_file.read_text(encoding="ascii").strip() if job_file.exists() else None
    manifest = Manifest.load(place)
    if manifest is None and any(map(place.exists, _OLDER_NAMES)):
        raise of_older_version(place)
    if job is None and manifest is None:
        job = uuid.uuid4().hex
        Location.of(checkpoint).write(JOB_FILE, job.encode())
    if manifest is None:
        if any((checkpoint / "commits").glob("[0-9]*")):
            raise OutputMismatch(
                f"{checkpoint} has committed batches, but {place.url} holds none of them: name its "
                "output, or another checkpoint"
            )
        begun_with = settings.of_rows
        manifest = Manifest(job=job or "", buckets=settings.buckets, late_ms=settings.late_ms, begun_with=begun_with)
        manifest.save(place)
    if job != manifest.job:
        raise OutputMismatch(
            f"{place.url} was written with another checkpoint than {checkpoint}: name that one, or another output"
        )
    return manifest
