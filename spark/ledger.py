"""The writing side of the telemetry job's output: one commit a micro-batch, all of it or nothing.

`commit` writes what a batch settled, then the new state, then the manifest, each on disk before the next begins; only
the manifest makes them count (layout and reading: `spark.tables`). A crash anywhere leaves the last batch whole, and
the repeated batch writes the same names again. A batch that is already committed is passed over. So with Spark's
checkpoint, which repeats a batch until it is known to be done, every record counts exactly once.

Output and checkpoint carry the same job id: writing one job's batches into another's output is refused at the door.
"""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.errors import OutputBusy, OutputMismatch
from spark.tables import MANIFEST, MERGED, Manifest, Progress, WindowsFile, state_dir, windows_files
from spark.windows import LATEST, PARTIALS, WINDOWS, absorb, latest_of, presented, settled_before

__all__ = ["COMPACT_FILES", "STATES_KEPT", "Ledger"]

STATES_KEPT = 4  # states that stay readable: a reader may take this many batches
COMPACT_FILES = 64  # consecutive small files of one day that are merged into one
COMPACT_ROWS = 1_000_000  # a file with more rows is left as it is
_JOB_FILE = "headgate-job"
_LOCK_FILE = ".lock"


class Ledger:
    """An output directory, open for writing by one job."""

    def __init__(self, output: Path, manifest: Manifest, lock: int) -> None:
        self.output = output
        self._lock = lock  # the descriptor that holds it; the system lets go of it when the process dies
        self.manifest = manifest
        self._open = PARTIALS.empty_table()  # the open windows as of the manifest's batch
        self._latest = LATEST.empty_table()
        if manifest.progress.batch >= 0:
            state = state_dir(output, manifest.progress.batch)
            self._open = pq.read_table(state / "open.parquet", schema=PARTIALS)
            self._latest = pq.read_table(state / "latest.parquet", schema=LATEST)
        for merged in (output / "windows").glob(f"date=*/*{MERGED}"):  # of an earlier process, perhaps interrupted
            _finish_merging(merged)

    @classmethod
    def open(cls, output: Path, checkpoint: Path) -> "Ledger":
        """The ledger of an output directory that belongs to this checkpoint, both made when neither is there.

        Raises `OutputMismatch` when they do not belong together, `OutputBusy` when another process has it open.
        """
        output.mkdir(parents=True, exist_ok=True)
        checkpoint.mkdir(parents=True, exist_ok=True)
        lock = os.open(output / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(output, _joined(output, checkpoint), lock)
        except BlockingIOError as error:
            os.close(lock)
            raise OutputBusy(f"another job is writing to {output}") from error
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Lets others open it."""
        os.close(self._lock)

    @property
    def batch(self) -> int:
        """The last batch committed; -1: none."""
        return self.manifest.progress.batch

    def check(self, batch: int) -> bool:
        """Returns whether this batch is to be done; False when it was. Raises `OutputMismatch` when one is missing."""
        if batch > self.batch + 1:
            raise OutputMismatch(
                f"batch {batch} follows {self.batch} in {self.output}: batches between them are missing"
            )
        return batch > self.batch

    def commit(
        self,
        batch: int,
        windows: pa.Table,
        newest: pa.Table,
        counts: Mapping[str, Mapping[str, int]],
        progress: Progress,
    ) -> None:
        """Adds a batch: what it counted in windows, what may be a latest value (both `PARTIALS`), and its records.

        `progress` says where the watermark now is, and what the batch itself was; totals are added up here. In this
        order: settled windows, state, manifest.
        """
        assert batch == self.batch + 1
        merged = absorb(self._open, windows) if windows.num_rows else self._open
        settled, still_open = settled_before(merged, progress.watermark_ms)
        latest = latest_of(self._latest, newest) if newest.num_rows else self._latest
        self._write_settled(batch, presented(settled))
        self._write_state(batch, still_open, latest)
        before = self.manifest
        manifest = Manifest(
            job=before.job,
            counts=_added(before.counts, counts),
            progress=msgspec.structs.replace(
                progress,
                batch=batch,
                records=before.progress.records + progress.batch_records,
                offsets=before.progress.offsets | progress.offsets,
                stored_at_ms=max(before.progress.stored_at_ms, progress.stored_at_ms),
                committed_at_ms=time.time_ns() // 1_000_000,
            ),
        )
        _write(self.output / MANIFEST, msgspec.json.encode(manifest))
        self.manifest, self._open, self._latest = manifest, still_open, latest
        self._publish(batch)
        self._tidy(batch)

    def _write_settled(self, batch: int, settled: pa.Table) -> None:
        """Writes the windows that a batch settled, a file for each day."""
        if not settled.num_rows:
            return
        days = pc.strftime(settled["start"], "%Y-%m-%d")
        for day in pc.unique(days).to_pylist():
            directory = self.output / "windows" / f"date={day}"
            directory.mkdir(parents=True, exist_ok=True)
            _write_table(directory / f"batch-{batch:010d}.parquet", settled.filter(pc.equal(days, day)))

    def _write_state(self, batch: int, still_open: pa.Table, latest: pa.Table) -> None:
        directory = state_dir(self.output, batch)
        directory.mkdir(parents=True, exist_ok=True)
        _write_table(directory / "open.parquet", still_open)
        _write_table(directory / "latest.parquet", latest)
        _sync(directory.parent)

    def _publish(self, batch: int) -> None:
        """Shows the state under names that stay, for readers that know no manifest."""
        for name in ("open.parquet", "latest.parquet"):
            _link(state_dir(self.output, batch) / name, self.output / name)

    def _tidy(self, batch: int) -> None:
        """Removes superseded states; merges small files of settled windows."""
        for state in sorted((self.output / "state").iterdir()):
            if state.name.isdecimal() and int(state.name) <= batch - STATES_KEPT:
                shutil.rmtree(state)
        directory = self.output / "windows"
        if directory.is_dir():
            for day in sorted(directory.glob("date=*"))[-2:]:
                for merged in day.glob(f"*{MERGED}"):
                    _finish_merging(merged)
                files = windows_files(day, up_to=batch)
                if len(files) >= COMPACT_FILES:
                    for small, run in groupby(files, lambda file: pq.read_metadata(file.path).num_rows < COMPACT_ROWS):
                        if small and len(parts := list(run)) >= COMPACT_FILES:
                            _compact(day, parts)


def _joined(output: Path, checkpoint: Path) -> Manifest:
    """The output's manifest, which must be of the checkpoint's job; both begun when neither is there."""
    job_file = checkpoint / _JOB_FILE
    job = job_file.read_text(encoding="ascii").strip() if job_file.exists() else None
    manifest = Manifest.load(output)
    if job is None and manifest is None:
        job = uuid.uuid4().hex
        _write(job_file, job.encode())
    if manifest is None:
        if any((checkpoint / "commits").glob("[0-9]*")):
            raise OutputMismatch(f"{checkpoint} has committed batches, but {output} holds none of them")
        manifest = Manifest(job=job or "")
        _write(output / MANIFEST, msgspec.json.encode(manifest))
    if job != manifest.job:
        raise OutputMismatch(f"{output} was written with another checkpoint than {checkpoint}")
    return manifest


def _compact(day: Path, files: list[WindowsFile]) -> None:
    """Makes one file of several consecutive ones."""
    tables = [pq.read_table(file.path, schema=WINDOWS, partitioning=None) for file in files]
    merged = pa.concat_tables(tables).sort_by([(name, "ascending") for name in ("start", "device", "metric")])
    path = day / f"_batch-{files[0].first:010d}-{files[-1].last:010d}{MERGED}"
    _write_table(path, merged)
    _replace_parts(path)


def _replace_parts(merged: Path) -> None:
    """Shows a merged file in place of its parts: to plain readers, which pass over its first name, no row twice.

    `windows_files` prefers the merged file to its parts under either name. It keeps both until the next batch, so that
    whoever lists the directory meets one of them at least.
    """
    day, (first, last) = merged.parent, (int(text) for text in merged.stem.split("-")[1:])
    visible = day / f"{merged.stem[1:]}.parquet"
    for part in day.glob("batch-*.parquet"):
        batches = [int(text) for text in part.stem.split("-")[1:]]
        if part != visible and first <= batches[0] and batches[-1] <= last:
            part.unlink()
    _link(merged, visible)
    _sync(day)


def _finish_merging(merged: Path) -> None:
    """Finishes an earlier batch's merge: the file gets its last name or, where it had that already, has it alone."""
    named = (merged.parent / f"{merged.stem[1:]}.parquet").exists()
    _replace_parts(merged)
    if named:
        merged.unlink()


def _link(path: Path, link: Path) -> None:
    """Gives a file a second name, by one rename if there is one of that name already."""
    partial = link.with_name(f".{link.name}")
    partial.unlink(missing_ok=True)
    try:
        os.link(path, partial)
    except OSError:  # a file system without links
        shutil.copyfile(path, partial)
    partial.replace(link)
    partial.unlink(missing_ok=True)  # replacing a name by another of the same file does nothing


def _added(totals: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    found = {protocol: dict(by) for protocol, by in totals.items()}
    for protocol, by in more.items():
        mine = found.setdefault(protocol, {})
        for quality, count in by.items():
            mine[quality] = mine.get(quality, 0) + count
    return found


def _write_table(path: Path, table: pa.Table) -> None:
    """A Parquet file that is whole whenever it is there."""
    partial = path.with_name(f".{path.name}")
    pq.write_table(table, partial, compression="zstd")
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _write(path: Path, data: bytes) -> None:
    """Replaces a file by one rename, durably."""
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(data)
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
