"""One bridge over AMQP at work: it reads and forwards while this process owns its name."""

import random
from collections.abc import Callable
from functools import partial

from gateway.bridges.amqp.forwarding import Forwarding
from gateway.bridges.amqp.reading import BridgeReading
from gateway.bridges.shared.figures import Figures
from gateway.bridges.shared.reconnecting import reconnecting
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.storing import BridgeStore, Store
from gateway.delivery.fanout import Fanout
from gateway.ownership.owners import Owned
from gateway.port.bridge import BrokerCodec, Scheme
from gateway.port.marks import Fence
from store.api.client import StoreClient
from store.base import logs
from store.base.streams import until_one_ends

log = logs.get(__name__)


class AmqpBridge:
    """One upstream, run by this process as long as `run` runs. Each direction has a connection of its own.

    An upstream that is short of memory stops reading from connections that publish: acknowledgements on such a
    connection would wait, too.
    """

    def __init__(
        self,
        name: str,
        config: BridgeConfig,
        scheme: Scheme,
        codec: BrokerCodec,
        *,
        fanout: Fanout,
        logs_of: StoreClient,
        store: Store,
        crowded: Callable[[], bool],
        message_bytes_max: int,
        now_ms: Callable[[], int],
        chance: random.Random,
    ) -> None:
        self.name = name
        self.figures = figures = Figures()
        self._config = config
        self._chance = chance
        self._store = BridgeStore(name, figures, store, crowded=crowded, chance=chance, hold=lambda: None)
        self._reading = BridgeReading(
            name,
            config,
            scheme,
            codec=codec,
            figures=figures,
            store=self._store,
            message_bytes_max=message_bytes_max,
            now_ms=now_ms,
            ready=self._is_ready,
        )
        self._new_forwarding: Callable[[], Forwarding] = partial(
            Forwarding,
            name,
            config,
            scheme,
            codec=codec,
            figures=figures,
            fanout=fanout,
            store=logs_of,
            now_ms=now_ms,
            uniform=chance.uniform,
            ready=self._is_ready,
            failed=self._failed,
        )
        self._forwarding: Forwarding | None = None

    @property
    def fence(self) -> Fence | None:
        """Returns the fence of the owner for which it runs."""
        return self._store.fence

    async def run(self, fence: Fence | None, owned: Owned) -> None:
        """Reads and forwards until cancelled. Raises `OwnershipLost` when there is a later owner."""
        self._store.fence = fence
        self._forwarding = self._new_forwarding() if self._config.forward else None
        figures = self.figures
        figures.here = True
        parts = []
        if self._config.consume:
            parts.append(
                reconnecting(
                    self.name, self._config, self._connection, failed=self._failed, uniform=self._chance.uniform
                )
            )
        if self._forwarding is not None:
            parts.append(self._forwarding.run(owned))
        try:
            await until_one_ends(*parts)
        finally:
            figures.here = figures.connected = False
            figures.unacknowledged = figures.unconfirmed = 0
            figures.behind_bytes = None

    async def _connection(self) -> None:
        try:
            await self._reading.connection()
        finally:
            self.figures.connected = False

    def _is_ready(self) -> None:
        """Notes that a direction is connected; the bridge is when all are."""
        reading = self._reading.connected or not self._config.consume
        forwarding = self._forwarding is None or self._forwarding.connected
        if reading and forwarding:
            figures = self.figures
            figures.connected, figures.error = True, ""
            figures.connects += 1
            log.info("bridge: connected", bridge=self.name, url=self._config.url)

    def _failed(self, error: str) -> None:
        self.figures.connected = False
        self.figures.error = error
