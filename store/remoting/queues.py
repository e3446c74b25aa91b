"""The queues of a store group over the network."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from store.api.queues import Fetched, QueueCalls, QueuesListener
from store.base.errors import StoreError
from store.format.frame import QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.remoting.caller import nothing
from store.remoting.core import Remote, decoder
from store.remoting.stubs import stubs
from store.rpc import arguments
from store.rpc.frames import FetchedAnswer, fetched_of
from store.rpc.table import CALLS

CONFIGS_IN_CALL = 10_000

_a_fetched: Callable[[Any], FetchedAnswer] = decoder(FetchedAnswer)
_configs_of: Callable[[Any], list[QueueConfig | None]] = decoder(list[QueueConfig | None])


@stubs
class RemoteQueues(QueueCalls):
    """`QueueCalls` of one group over the network."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._configs: dict[QueueNumber, QueueConfig] = {}  # as far as they are known here
        self._unknown_configs: dict[QueueNumber, None] = {}  # to be asked for

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `QueueCalls.fetch`. The answer of one call is limited to some MiB."""
        asked = arguments.Fetch(queue, offset, max_bytes, max_rows, max_wait_ms)
        return await self._remote.call("fetch", asked, self._fetched)

    def _fetched(self, body: Any) -> Fetched:
        return fetched_of(_a_fetched(body), self._remote.connection.frames)

    async def configure(self, configs: Sequence[QueueConfig]) -> None:
        """See `QueueCalls.configure`. Entries that the store knows already are not stored again."""
        for start in range(0, len(configs), CONFIGS_IN_CALL):
            some = tuple(configs[start : start + CONFIGS_IN_CALL])
            await self._remote.call("configure_queues", arguments.ConfigureQueues(some), nothing)
            self._configs.update({QueueNumber(config.queue): config for config in some})

    def config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `QueueCalls.config`: the one set or asked for here. An unknown one is asked for now."""
        found = self._configs.get(queue)
        if found is None and queue not in self._unknown_configs and self._remote.connection.up.is_set():
            if not self._unknown_configs:
                self._remote.loop.call_soon(self._ask_configs)
            self._unknown_configs[queue] = None
        return found

    def _ask_configs(self) -> None:
        queues, self._unknown_configs = list(self._unknown_configs), {}
        for start in range(0, len(queues), CONFIGS_IN_CALL):
            some = tuple(queues[start : start + CONFIGS_IN_CALL])

            def learned(
                answer: "asyncio.Future[Sequence[QueueConfig | None]]", some: Iterable[QueueNumber] = some
            ) -> None:
                if answer.cancelled() or answer.exception() is not None:
                    return
                for queue, config in zip(some, answer.result(), strict=False):
                    if config is not None:
                        self._configs.setdefault(queue, config)

            try:
                asked = self._remote.connection.caller.begin(
                    "queue_configs", arguments.QueueConfigs(some), _configs_of, CALLS["queue_configs"].mode
                )
            except StoreError:
                return
            asked.future.add_done_callback(learned)

    async def delete(self, queue: QueueNumber) -> None:
        """See `QueueCalls.delete`."""
        await self._remote.call("delete_queue", arguments.OfQueue(queue), nothing)
        self._remote.connection.forget(queue)
        self._configs.pop(queue, None)

    @property
    def configured_count(self) -> int:
        """Returns how many queues there are whose configurations are known here."""
        return len(self._configs)

    def forget_gone(self, is_gone: Callable[[QueueNumber], bool]) -> None:
        """Forgets the configurations of deleted queues."""
        self._configs = {queue: config for queue, config in self._configs.items() if not is_gone(queue)}

    def watch(self, listener: QueuesListener) -> Callable[[], None]:
        """See `QueueCalls.watch`. Told of leases lost with a connection too and, after it, of all queues."""
        return self._remote.connection.watch_queues(listener)
