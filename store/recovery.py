"""Recovery: the views follow the log from where they are to its end.

They commit as they go, so a recovery that is interrupted goes on where it was, and it reads no more than what the views
have not applied. Those of a slave stay where they are: only its master knows how much of the rest is confirmed.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from store.errors import TruncationRefused
from store.format import Frame, LogOffset
from store.log import CommitLog, Placed
from store.run import Run, RunBuilder
from store.views import Views

__all__ = ["OnProgress", "cut_off", "recover", "replay", "settle"]

logger = logging.getLogger(__name__)

RUN_BYTES = 8 << 20  # read before the views are brought up
PROGRESS_BYTES = 256 << 20  # between two reports in the log

OnProgress: TypeAlias = Callable[[LogOffset, LogOffset], None]  # where the views are, where the log ends


def recover(
    log: CommitLog,
    views: Views,
    builder: RunBuilder,
    *,
    confirmed: LogOffset | None = None,
    on_progress: OnProgress = lambda _at, _end: None,
) -> list[Run]:
    """Bring the views up, and cut a torn tail off the log; the runs of what is behind `confirmed` (None: nothing is).

    Raises `NotRebuildable`, OSError.
    """
    if views.dispatched > log.end:
        _begin_again(log, views)
    if views.dispatched < log.first:
        logger.error(
            "the views have lost what the log does not hold any more: keys, group offsets and settlements of that time",
            extra={"dispatched": views.dispatched, "log_first": log.first},
        )
    start = reported = max(views.dispatched, log.first)

    def on_run() -> None:
        nonlocal reported
        on_progress(views.dispatched, log.end)
        if views.dispatched - reported >= PROGRESS_BYTES:
            reported = views.dispatched
            share = (reported - start) / max(log.end - start, 1)
            logger.info(
                "recovering", extra={"from": start, "at": reported, "to": log.end, "percent": round(100 * share, 1)}
            )

    until = None if confirmed is None else max(confirmed, views.dispatched)
    unconfirmed: list[Placed] = []

    def applied() -> Iterator[Frame]:
        for frame in log.recover(start, confirmed=until):
            if until is not None and frame.end > until:
                unconfirmed.append(Placed.of(frame))
            else:
                yield frame

    replay(applied(), views, builder, on_run)
    if views.first > log.first:  # a crash has left files of what was trimmed off
        log.trim(views.first)
    if log.end > start:
        logger.info("recovered", extra={"from": start, "to": log.end, "damaged": len(log.corruptions)})
    return [builder.build(some) for some in _pieces(unconfirmed)]


def _pieces(placed: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Frames, as many together as make a run."""
    gathered: list[Placed] = []
    size = 0
    for one in placed:
        gathered.append(one)
        size += one.frame.size_bytes
        if size >= RUN_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def settle(log: CommitLog, views: Views, *, filling: bool) -> None:
    """Cut a torn tail off the log of a slave, and let readers see what its views hold of it.

    While it is `filling` up, the views are ahead of it. Raises `NotRebuildable`, OSError.
    """
    if views.dispatched > log.end and not filling:
        _begin_again(log, views)
    start = log.sealed if views.dispatched > log.end else max(views.dispatched, log.sealed)
    for _ in log.recover(start, replica=True, confirmed=views.dispatched):
        pass
    if views.first > log.first:
        log.trim(views.first)


def cut_off(log: CommitLog, views: Views, at: LogOffset) -> None:
    """Cut what a slave's log has at and behind a log offset, before it is settled.

    Raises `TruncationRefused`, also where views hold some of it: then they have followed what was never confirmed.
    """
    if at < min(views.dispatched, log.end):
        raise TruncationRefused(f"the views have followed the log to {views.dispatched}, beyond {at}")
    end = log.end
    if at < end:
        log.truncate(at, views.dispatched)
        logger.warning("the log was cut where the master's goes another way", extra={"at": at, "bytes": end - at})


def _begin_again(log: CommitLog, views: Views) -> None:
    logger.error(
        "the views are ahead of the log, which has lost its end; they are rebuilt from what it has",
        extra={"dispatched": views.dispatched, "log_end": log.end, "log_first": log.first},
    )
    views.reset()


def replay(frames: Iterable[Frame], views: Views, builder: RunBuilder, on_run: Callable[[], None]) -> None:
    """Apply frames to views, a run at a time; `on_run` is called after each."""
    for some in _pieces(map(Placed.of, frames)):
        views.apply([builder.build(some)])
        on_run()
