"""The last use of queues that expire: queues that are not consumed, declared or read by basic.get for a time.

Of several proxies each writes down when it has used a queue, some times in the time that the queue has to live.
"""

from collections.abc import Callable

from gateway.domain.keys import kv_key
from gateway.ownership.owners import Owners
from gateway.queues.consumers.consumer_counts import ConsumerCounts
from gateway.queues.model.queue import Queue
from store.api.client import StoreClient

USES = "amqp/uses"
PARTS_COUNT = 8  # of the time that a queue has to live: after each of them a use is written down
STEP_MS_MIN = 1_000


class QueueUses:
    """The times at which this process has used its queues last; in memory, so that its start is a use of all.

    They are of a clock that is never set (`steady_ms`). Processes tell each other by that of their machines, `now_ms`;
    each counts a use elsewhere from when it finds it, so that their clocks need not agree.
    """

    def __init__(
        self,
        store: StoreClient,
        owners: Owners,
        counts: ConsumerCounts,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._owners = owners
        self._counts = counts
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._used_ms: dict[int, int] = {}  # by queue number
        self._found: dict[int, tuple[bytes, int]] = {}  # by queue number: the use written down last, and when it came
        self._written_ms: dict[int, int] = {}  # by queue number: the last use here that was written down

    def used(self, number: int) -> None:
        """Notes that a queue has been used."""
        self._used_ms[number] = self._steady_ms()

    def forget(self, number: int) -> None:
        """Forgets a queue that is gone."""
        self._used_ms.pop(number, None)
        self._found.pop(number, None)
        self._written_ms.pop(number, None)

    def due_ms(self, number: int, expires_ms: int) -> int:
        """Returns when to look at a queue again, by the clock of messages."""
        if not self._owners.alone:
            return self._now_ms() + _step_ms(expires_ms)
        steady_ms = self._steady_ms()
        return self._now_ms() + max(self._used_ms.get(number, steady_ms) + expires_ms - steady_ms, 1)

    async def expired(self, queue: Queue, expires_ms: int) -> bool:
        """Returns whether a queue was not used for `expires_ms`, here or elsewhere. Raises `StoreError`."""
        number, now_ms = queue.number, self._steady_ms()
        if queue.pump.consumers:
            self._used_ms[number] = now_ms
        used_ms = self._used_ms.setdefault(number, now_ms)
        if not self._owners.alone:
            used_ms = max(used_ms, await self._elsewhere(queue, used_ms, expires_ms))
            expires_ms += 2 * _step_ms(expires_ms)  # a use elsewhere that is not written down yet
        return max(used_ms, self._used_ms.get(number, 0)) + expires_ms <= now_ms

    async def _elsewhere(self, queue: Queue, used_ms: int, expires_ms: int) -> int:
        """Returns when other proxies have used a queue; writes down when this one has."""
        number, step_ms = queue.number, _step_ms(expires_ms)
        key = kv_key(USES, f"{queue.definition.name}/{number}")
        entry, now_ms = await self._store.keys.get(key), self._steady_ms()
        value, found_ms = self._found.get(number, (b"", 0))
        if entry is not None and entry.value != value:
            value, found_ms = entry.value, now_ms
        written_ms = self._written_ms.get(number)
        if written_ms is None or used_ms > written_ms + step_ms // 2:
            value = b"%d" % (self._now_ms() - (now_ms - used_ms))
            await self._store.keys.put(key, value, ttl_ms=2 * expires_ms + 10 * step_ms)
            written_ms = used_ms
        if number in self._used_ms:  # else the queue is gone since
            self._found[number] = value, found_ms
            self._written_ms[number] = written_ms
        if await self._counts.elsewhere(queue.definition.name):
            return self._steady_ms()
        return found_ms


def _step_ms(expires_ms: int) -> int:
    return max(expires_ms // PARTS_COUNT, STEP_MS_MIN)
