"""The status of the store in a process: words for people, positions, damage, and whether it is to be opened again."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.api.client import Topic
from gateway.ops.metrics import Metrics
from gateway.ops.status import DamageStatus, LogStatus, ScrubStatus, ViewDamageStatus
from store.api.lost_status import LostList
from store.base.errors import ViewsDamaged
from store.engine.lost_words import LostWords
from store.format.frame import origin_of
from store.local.local import LocalStore

RENEWED_BYTES_MAX = 16 << 30  # of a log: making views from it takes about 3 s for each GB


class StoreFigures:
    """The status of a store in this process; `topics` gives the names of its queues."""

    ended: asyncio.Future[Any] | None = None

    def __init__(self, store: LocalStore, topics: Callable[[], Sequence[Topic]]) -> None:
        self.store = store
        self._lost = LostWords(store, lambda: topic_names(topics()))

    def troubles(self) -> Sequence[str]:
        """See `Backend`."""
        if self.store.error is not None:
            return [f"the store has failed: {self.store.error}"]
        if self.store.full is None:
            return []
        return [f"the disk is full: nothing is written until it has room (store.disk_reserve_bytes): {self.store.full}"]

    def warnings(self) -> Sequence[str]:
        """See `Backend`."""
        damages, views = self.store.damages, self.store.view_damages
        size = sum(one.end - one.start for one in damages)
        said = []
        if damages:
            said.append(f"the log is damaged: {size} bytes in {len(damages)} ranges are lost; {self._lost.words()}")
        if views:
            said.append(f"{len(views)} places of views are damaged, and not served: the first is in {views[0].view!r}")
        return said

    @property
    def metadata_failed(self) -> bool:
        """Returns whether the log of the metadata has failed; there is none here."""
        return False

    @property
    def alive(self) -> bool:
        """See `Backend`."""
        return self.store.error is None and not self.metadata_failed

    @property
    def makes_views_anew(self) -> bool:
        """See `Backend`. Where serving on is possible, a log that takes minutes to read is left to an operator."""
        store = self.store
        if not store.view_damages or self.metadata_failed:
            return False
        # Views that the log could not make whole would keep the store from opening.
        whole = store.views_rebuildable and store.replication.first == origin_of(store.group)
        if not whole or store.damages or store.verifying or store.full is not None or store.low:
            return False
        if store.error is not None:
            return isinstance(store.error, ViewsDamaged)
        return store.replication.end - store.replication.first <= RENEWED_BYTES_MAX

    @property
    def low_disk(self) -> bool:
        """See `Backend`."""
        return self.store.low

    def log(self) -> LogStatus:
        """See `Backend`."""
        store = self.store
        return LogStatus(
            end=store.replication.end, confirmed=store.log.confirmed, pending_bytes=store.log.pending_bytes
        )

    def damages(self) -> Sequence[DamageStatus]:
        """See `Backend`."""
        return [DamageStatus(**damage._asdict()) for damage in self.store.damages]

    async def lost(self) -> LostList:
        """See `Backend`."""
        return await self._lost.all()

    def damaged_views(self) -> Sequence[ViewDamageStatus]:
        """See `Backend`."""
        return [ViewDamageStatus(**damage._asdict()) for damage in self.store.view_damages]

    def scrub(self) -> ScrubStatus:
        """See `Backend`."""
        return ScrubStatus(**self.store.scrubbed._asdict())

    def begin_timers(self) -> None:
        """See `Backend`."""
        self.store.begin_timers()

    def watch(self, metrics: Metrics) -> None:
        """See `Backend`."""
        store = self.store
        metrics.watch_log(
            end=lambda: store.replication.end,
            confirmed=lambda: store.log.confirmed,
            pending=lambda: store.log.pending_bytes,
        )
        metrics.watch_views(damages=lambda: len(store.view_damages))
        metrics.watch_damage(
            damages=lambda: len(store.damages),
            scrubbed=lambda: store.scrubbed.at,
        )
        metrics.watch_repairs(repaired=lambda: store.damages_repaired, lost=lambda: store.messages_lost)


def topic_names(topics: Sequence[Topic]) -> Mapping[int, str]:
    """Returns the names of topics by queue."""
    return {queue: topic.name for topic in topics for queue in topic.queues}
