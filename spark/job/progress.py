"""Lines about a running job: batches, rates, lag, late records, and why it waits. Time is an argument."""

from datetime import UTC, datetime

from spark.job.idle import Unread
from spark.tables.manifest import Manifest
from spark.telemetry.lateness import LATE, TOO_OLD

_MINUTE_S, _HOUR_S = 120.0, 7_200.0  # from which on a time is written in minutes, and in hours


class ProgressLines:
    """Makes a line every so often while there is something to tell; it gives one reason for waiting once."""

    def __init__(self, every_s: float, now_s: float, manifest: Manifest) -> None:
        self._every_s, self._said_s = every_s, now_s
        self._records, self._pass = manifest.progress.records, manifest.pass_
        self._why = ""

    def due(self, now_s: float) -> bool:
        """Returns whether it is time for another look."""
        return now_s - self._said_s >= self._every_s

    def look(self, now_s: float, manifest: Manifest, unread: Unread, stage: str) -> str | None:
        """Returns the line for now; None where nothing has changed.

        `stage` tells of a batch that has been in progress for long, and is empty otherwise.
        """
        progress, took_s = manifest.progress, max(now_s - self._said_s, 1e-3)
        came = progress.records - self._records
        self._said_s = now_s
        if came:
            self._records, self._pass, self._why = progress.records, manifest.pass_, ""
            return progress_line(manifest, unread, came / took_s)
        if manifest.pass_ != self._pass:
            self._pass = manifest.pass_
            if unread.records != 0:
                return progress_line(manifest, unread, 0.0)
        why = unread.why or stage
        if not why and unread.records == 0:
            why = "every queue is read to its end; windows and silence go on by the store's clock"
        if not why or why == self._why:
            return None
        self._why = why
        return f"waiting: {why}"


def progress_line(manifest: Manifest, unread: Unread, rate: float) -> str:
    """Returns one line of figures, as of the last commit."""
    progress = manifest.progress
    late = sum(by.get(quality, 0) for by in manifest.counts.values() for quality in (LATE, TOO_OLD))
    parts = [
        f"batch {progress.batch}: {progress.records:,} records",
        f"{rate:,.0f}/s",
        *([f"lag {duration(progress.publish_ms / 1_000)}"] if progress.publish_ms is not None else []),
        *([f"{unread.records:,} unread"] if unread.records is not None else []),
        f"{late:,} late",
        *([f"windows settled until {instant(progress.watermark_ms)}"] if progress.watermark_ms > 0 else []),
    ]
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Returns a length of time in a few characters."""
    held = max(0.0, seconds)
    if held < _MINUTE_S:
        return f"{held:.1f} s"
    return f"{held / 60:.0f} min" if held < _HOUR_S else f"{held / 3_600:.1f} h"


def instant(ms: int) -> str:
    """Returns a time in ms since 1970 as text."""
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
