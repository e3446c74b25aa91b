"""The job's settings that its commits need, and those with which a half committed pass is finished."""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from spark.errors import OutputMismatch

_DAY_MS: Final = 86_400_000
_OPTIONS: Final = {  # settings that the rows of a pass depend on -> the job's option, and its unit
    "watermark_ms": ("--watermark", 1_000),
    "late_ms": ("--late", 1_000),
    "session_ms": ("--session-gap", 1_000),
    "devices_max": ("--devices-max", 1),
    "series_max": ("series_max", 1),
    "metrics_max": ("metrics_max", 1),
    "forget_ms": ("--forget", _DAY_MS),
}


class CommitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The job's settings that its commits need."""

    watermark_ms: int
    late_ms: int
    buckets: int
    session_ms: int = 1_800_000
    devices_max: int = 1_000_000  # in all buckets
    series_max: int = 5_000_000
    metrics_max: int = 1_000  # of one device
    forget_ms: int = 30 * 86_400_000
    samples: bool = False  # kept, each as a row
    rules: str = ""  # of devices and bodies, as the data source gets them
    findings: bool = False  # published after each pass (`spark.findings`)
    history_h: int = 6  # how long replaced files stay readable: time travel, and readers that lag

    @property
    def of_rows(self) -> dict[str, int | str]:
        """Returns the settings that the rows of a pass depend on, as the manifest keeps them."""
        rules = hashlib.sha256(self.rules.encode()).hexdigest()
        return {name: getattr(self, name) for name in _OPTIONS} | {"samples": int(self.samples), "rules": rules}

    def differ_from(self, begun_with: Mapping[str, int | str]) -> bool:
        """Returns whether a pass that was begun with those would have other rows, as far as both name a setting."""
        return any(begun_with.get(name, value) != value for name, value in self.of_rows.items())


def half_committed(url: str, begun_with: Mapping[str, int | str], settings: CommitSettings) -> OutputMismatch:
    """Returns the error of a pass that was begun with other settings: the tables that it has left would not agree."""
    now, words = settings.of_rows, []
    for name, (option, unit) in _OPTIONS.items():
        if begun_with.get(name, now[name]) != now[name]:
            words.append(f"{option} {int(begun_with.get(name, 0)) / unit:.15g}")
    if begun_with.get("samples", now["samples"]) != now["samples"]:
        words.append("--samples" if begun_with.get("samples") else "no --samples")
    if begun_with.get("rules", now["rules"]) != now["rules"]:
        words.append("other rules (--config)")
    return OutputMismatch(
        f"a batch of {url} is half committed, and was begun with {', '.join(words)}: start the job so, until it has "
        "finished the batch, and then as now"
    )
