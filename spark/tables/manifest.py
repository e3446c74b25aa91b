"""The manifest: which pass counts, where its state lies, and the counters that are no table's.

`manifest.json` is replaced in one step after everything it names is written, and after every table is committed. A
pass is one micro-batch, or one tick between two (`sequence`); the tables carry the pass they were last committed with
as the version of their application transaction, so a repeated pass skips those that have it already.
"""

from typing import Final

import msgspec

from spark.errors import OutputMismatch, SparkError
from spark.tables.files import Location, reason

MANIFEST: Final = "manifest.json"
TICKS_MAX: Final = 1_000_000  # passes between two micro-batches


def sequence(batch: int, tick: int = 0) -> int:
    """Returns the number of a pass: rising with the batch, then with the ticks after it."""
    assert 0 <= tick < TICKS_MAX
    return batch * TICKS_MAX + tick


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the job. Times are ms since 1970, by the clock of the process that stored or committed."""

    batch: int = -1  # the last one committed; -1: none yet
    records: int = 0  # counted in all
    offsets: dict[int, int] = msgspec.field(default_factory=dict)  # queue -> the next offset to count
    position: dict[int, int] | None = None  # queue -> where the last batch ends, by the checkpoint; None: not noted
    read_to_ms: int = 0  # every queue has been read up to this time of storage; watermark_ms <= read_to_ms
    watermark_ms: int = 0  # windows that end at or before it are settled
    stored_at_ms: int = 0  # when the newest record counted was stored
    committed_at_ms: int = 0
    batch_records: int = 0  # in the last batch
    batch_ms: int = 0  # from the beginning of the last batch to its commit
    corrected: int = 0  # settled windows that late records opened again, in all
    forgotten_devices: int = 0  # that nothing came from for long, or that gave way to others, in all
    forgotten_series: int = 0
    lag_ms: int | None = None  # of the newest record counted: from its storage to its commit; None: an older manifest

    @property
    def publish_ms(self) -> int | None:
        """Returns how long the newest record took from the log to the tables; None before the first one."""
        if not self.stored_at_ms:
            return None
        return max(0, self.committed_at_ms - self.stored_at_ms) if self.lag_ms is None else self.lag_ms


class TrafficRow(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Records of one minute, by the store's clock."""

    start_ms: int
    protocol: str
    topic: str
    quality: str
    records: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a pass."""

    job: str  # the same as in the checkpoint
    buckets: int  # parts of the state, by the device's hash: fixed for good
    pass_: int = msgspec.field(default=-1, name="pass")  # the last one that is whole (`sequence`)
    late_ms: int | None = None  # how much later the job corrects a settled window; None: an older manifest
    # Settings of the job that begins the passes, by which a half committed one is finished; None: an older manifest.
    begun_with: dict[str, int | str] | None = None
    expired_ms: int = 0  # windows that end at or before it have expired, as far as they were settled
    pending_tick: int | None = None  # a tick that began with this manifest's watermark, and is to be finished first
    progress: JobProgress = JobProgress()
    counts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)  # protocol -> quality -> records
    states: dict[int, str] = msgspec.field(default_factory=dict)  # bucket -> its state's file; none: nothing yet
    versions: dict[str, int] = msgspec.field(default_factory=dict)  # table -> its version that belongs to this
    # Files of `anomalies` whose rows are still to be published.
    unpublished: list[str] = msgspec.field(name="owed", default_factory=list)
    traffic: list[TrafficRow] = msgspec.field(default_factory=list)  # of minutes that are not settled

    @classmethod
    def load(cls, place: Location) -> "Manifest | None":
        """Returns the manifest there; None when nothing was committed. Raises `SparkError` for one it cannot read."""
        try:
            data = place.read(MANIFEST)
        except OSError as error:
            raise SparkError(f"{place.child(MANIFEST)} cannot be read: {reason(error)}") from error
        if data is None:
            return None
        try:
            return _with_read_to(_decode(data))
        except msgspec.ValidationError as error:
            if b'"buckets"' not in data:
                raise of_older_version(place) from error
            raise SparkError(f"{place.child(MANIFEST)} is no manifest: {error}") from error
        except msgspec.MsgspecError as error:
            raise SparkError(f"{place.child(MANIFEST)} is no manifest: {error}") from error

    def save(self, place: Location) -> None:
        """Replaces the manifest by this one."""
        place.write(MANIFEST, msgspec.json.encode(self))


def no_tables(place: Location) -> OutputMismatch:
    """Returns the error of a place where no job has written."""
    return OutputMismatch(f"{place.url} holds no tables of a telemetry job: name the --output of one")


def of_older_version(place: Location) -> OutputMismatch:
    """Returns the error of an output that was written before the tables were those of Delta Lake."""
    return OutputMismatch(
        f"{place.url} holds Parquet files of an older version, which are no Delta tables: name another "
        "output and checkpoint, and the tables are computed from the log again"
    )


_decode = msgspec.json.Decoder(Manifest).decode


def _with_read_to(manifest: Manifest) -> Manifest:
    """Returns the manifest; one of an older version, which does not say it, counts as read to its watermark."""
    progress = manifest.progress
    if progress.read_to_ms >= progress.watermark_ms:
        return manifest
    progress = msgspec.structs.replace(progress, read_to_ms=progress.watermark_ms)
    return msgspec.structs.replace(manifest, progress=progress)
