"""Translates the configuration into the options that a store is opened with, and names the remedy where it is not."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.config.config import StoreConfig
from store.base.errors import NotRebuildable
from store.log.retention import RetentionLimits
from store.timers.timers import DAY_MS, TimerLimits


def store_options(said: StoreConfig) -> dict[str, Any]:
    """Returns options of `LocalStore.open`: all but which group's it is, and in which role."""
    return {
        "segment_size_bytes": said.segment_size_bytes,
        "pending_bytes_max": said.pending_bytes_max,
        "flush_interval_ms": said.flush_interval_ms,
        "disk_reserve_bytes": said.disk_reserve_bytes,
        "retention": RetentionLimits(said.retention_ms, said.retention_bytes),
        "retention_interval_s": said.retention_interval_s,
        "scrub_bytes_per_s": said.scrub_bytes_per_s,
        "timer_limits": TimerLimits(
            timers=said.timers_max, size_bytes=said.timers_bytes_max, horizon_ms=said.timer_horizon_days * DAY_MS
        ),
    }


@contextlib.contextmanager
def naming_remedy(data_dir: Path) -> Iterator[None]:
    """Says of views that cannot be made anew what to do, where no other replica has a copy. Raises `NotRebuildable`."""
    try:
        yield
    except NotRebuildable as error:
        raise NotRebuildable(
            f"{error}; put a copy of {data_dir} in its place, or, where there is none, accept the loss with headgate "
            f"store rebuild-views --force {data_dir}"
        ) from error
