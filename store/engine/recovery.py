"""Recovery: the views follow the log from where they are to its end.

They commit as they go, so a recovery that is interrupted goes on where it was, and it reads only frames that the views
have not applied. Those of a replica stay where they are: only its master knows how much of the rest is confirmed.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TypeAlias

from store.base.errors import CorruptFrame, NotRebuildable, TruncationRefused
from store.format.frame import FIRST_QUEUE, Frame, LogOffset
from store.format.placed import Placed
from store.format.records import PARTS_QUEUE
from store.integrity.seals import SealFile
from store.log.log import END, CommitLog
from store.log.run import FrameRun, RunBuilder
from store.log.segment import BadRange, split_at
from store.views import Views
from store.views.old import OldViews

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
    force: bool = False,
    floor: LogOffset | None = None,
    may_pass_over: Callable[[LogOffset], bool] = lambda _at: True,
) -> list[FrameRun]:
    """Brings the views up, and cuts a torn tail off the log; returns the runs behind `confirmed` (None: none).

    `floor` is how far the log is known to have been on disk, where the log does not know that itself.

    Where views are made anew the old ones pass on their data; with `force` unknown parts are left out. The views skip
    damage where `may_pass_over` says so. Raises `NotRebuildable`, `CorruptFrame`: they may not, `StoreFull`, OSError.
    """
    if views.dispatched > log.end:
        _begin_again(log, views)
    old = views.old()
    if views.dispatched < log.first:
        logger.error(
            "keys, group offsets and settlements of deleted segments are lost: the views that held them are gone",
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

    def applied() -> Iterator[Frame | BadRange]:
        damaged: list[BadRange] = []

        def on_damage(bad: BadRange) -> None:
            if not may_pass_over(bad.start):
                raise CorruptFrame(bad.start, bad.why, end=bad.end)
            damaged.append(bad)

        durable = LogOffset(max(_durable(log, old), floor or 0))
        for frame in log.recover(start, confirmed=until, durable=durable, on_damage=on_damage):
            yield from damaged
            damaged.clear()
            if until is not None and frame.end > until:
                unconfirmed.append(Placed.of(frame))
            else:
                yield frame
        yield from damaged

    def pass_over(bad: BadRange) -> None:
        if old is not None:
            keep_offsets(bad, old, views, builder, force=force)

    replay(applied(), views, builder, on_run, pass_over)
    if old is not None:
        old.discard()
    if views.first > log.first:  # a crash has left files that were trimmed off
        log.trim(views.first)
    if log.end > start:
        logger.info("recovered", extra={"from": start, "to": log.end, "damaged": len(log.corruptions)})
    return [builder.build(some) for some in _pieces(unconfirmed)]


def _durable(log: CommitLog, old: OldViews | None) -> LogOffset:
    """Returns how far the log is known to have been on disk; 0 where that is unknown or it has lost its end."""
    return old.dispatched if old is not None and old.dispatched <= log.end else LogOffset(0)


def _pieces(placed: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Yields frames, as many together as make a run; none has a gap."""
    gathered: list[Placed] = []
    size = 0
    for one in placed:
        if gathered and gathered[-1].end < one.start:
            yield gathered
            gathered, size = [], 0
        gathered.append(one)
        size += one.frame.size_bytes
        if size >= RUN_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def settle(log: CommitLog, views: Views, whole_at: LogOffset) -> None:
    """Cuts a torn tail off the log of a replica, and lets readers see the part that its views hold.

    The views may be ahead of it: its master sends that. A log on its way to `whole_at`, where a snapshot of the views
    was taken, is filling up; any other one has lost its end, also where a power failure has taken the floor. Raises
    OSError.
    """
    start = log.sealed if views.dispatched > log.end else max(views.dispatched, log.sealed)
    old = views.old()
    followed = views.dispatched if views.dispatched > whole_at else LogOffset(0)  # the log was on disk so far
    durable = LogOffset(max(_durable(log, old), followed))
    for _ in log.recover(start, replica=True, confirmed=views.dispatched, durable=durable):
        pass
    if old is not None and not old.dispatched:  # it knows nothing, and a replica stops at damage anyway
        old.discard()
    if views.first > log.first:
        log.trim(views.first)


def cut_off(log: CommitLog, views: Views, seals: SealFile, at: LogOffset) -> None:
    """Cuts the frames that a replica's log has, or has lost, at and behind a log offset, before it is settled.

    Raises `TruncationRefused`, also where views hold some of it: then they have followed frames that were never
    confirmed.
    """
    if at < min(views.dispatched, log.end):
        raise TruncationRefused(f"the views have followed the log to {views.dispatched}, beyond {at}")
    end = log.end
    if at < end:
        seals.drop_from(at)
        log.truncate(at, views.dispatched)
        logger.warning("the log was cut where it differs from the master's", extra={"at": at, "bytes": end - at})
    elif at < log.floor:
        logger.warning("frames that the log has lost behind its master's end need not come again", extra={"at": at})
        log.lower_floor(at)
    log.damages.forget(at, END)


def give_up(log: CommitLog, views: Views, seals: SealFile, at: LogOffset, cut_to: LogOffset | None) -> None:
    """Gives up, for good, the lost end of a replica's log from a log offset on: an operator accepts the loss.

    `cut_to`: the frames from there on are not the group's. The views are made anew where they hold more than is
    left. Each step can be done again after a crash; until the last one the log has lost its end. Raises
    `NotRebuildable`: the views cannot be made anew, and nothing was changed; `TruncationRefused`, OSError.
    """
    end = log.end if cut_to is None else min(cut_to, log.end)
    lost = max(log.floor, views.dispatched)
    if views.dispatched > end:
        if not views.rebuildable:
            raise NotRebuildable(
                f"the views hold records that the log has lost from {end} to {views.dispatched}, and it lacks others "
                "that they are made from: stop the node, accept the loss with headgate store rebuild-views --force, "
                "start it and elect again; or elect another replica"
            )
        views.reset()
    if at < lost:
        logger.critical(
            "the log is given up from %d to %d, as an unclean election was accepted: its records are LOST", at, lost
        )
    if cut_to is not None:
        cut_off(log, views, seals, cut_to)
    log.lower_floor(at)
    log.damages.forget(at, END)


def _begin_again(log: CommitLog, views: Views) -> None:
    logger.error(
        "the log has lost its end: it ends before the views do, which are rebuilt from it",
        extra={"dispatched": views.dispatched, "log_end": log.end, "log_first": log.first},
    )
    log.look_for_missing(log.first, views.dispatched, "recovery")
    views.reset()


def replay(
    items: Iterable[Frame | BadRange],
    views: Views,
    builder: RunBuilder,
    on_run: Callable[[], None],
    pass_over: Callable[[BadRange], None] = lambda _bad: None,
) -> None:
    """Applies frames to views, a run at a time; `on_run` is called after each, `pass_over` where they are damaged."""
    for bad, frames in groupby(items, lambda item: isinstance(item, BadRange)):
        if bad:
            for item in frames:
                assert isinstance(item, BadRange)
                pass_over(item)
            continue
        for some in _pieces(Placed.of(frame) for frame in frames if isinstance(frame, Frame)):
            views.apply([builder.build(some)])
            on_run()


def keep_offsets(bad: BadRange, old: OldViews, views: Views, builder: RunBuilder, *, force: bool) -> None:
    """Copies the old views' counts of a damaged stretch, records by queue, into views made anew.

    So the records behind it keep their offsets, which consumers and settlements name. The new views pass over what the
    old ones have passed over, too. Raises `NotRebuildable` where the old ones do not know, or know of changes of the
    store's own that are lost, unless that is to be accepted.
    """
    if old.dispatched:  # frames behind it have no offsets in queues yet
        known, _ = split_at(bad, old.dispatched)
        if known is None:
            return
        bad = known
    chunks = old.chunks(bad.start, bad.end)
    if chunks is None:
        lost = "the records behind it get other offsets in their queues than consumers and settlements name"
    elif own := sum(chunk.row_count for queue, chunk in chunks if queue < FIRST_QUEUE and queue != PARTS_QUEUE):
        lost = f"with it {own} changes of keys, group offsets, settlements, timers or queues are lost to new views"
    else:
        lost = ""
    if lost:
        why = f"the log is damaged from {bad.start} to {bad.end}: {lost}"
        if not force:
            raise NotRebuildable(why)
        logger.error(why)
    if chunks is not None:
        kept = [(queue, chunk) for queue, chunk in chunks if chunk.first >= builder.end(queue).next]
        builder.pass_over(kept)
        gaps = [(views.dispatched, bad.start)] if views.dispatched < bad.start else []  # of which nothing was known
        views.pass_over(kept, gaps + old.passed(bad.start, bad.end), bad.end)
