"""`$SYS/broker/...`: a gateway's own values for MQTT clients (docs/mqtt.md has the list).

Nothing of it is in the log. It is answered as retained messages are, always at QoS 0, and describes the process that
the client is connected to; it counts MQTT's own clients and messages. No client can publish there.
"""

import math
import socket
from collections.abc import Callable
from importlib.metadata import version

from gateway.domain.filters import FilterTrie
from gateway.ops.metrics import Traffic
from gateway.port.reads import Retained, RetainedPage
from gateway.runtime.endpoint import Hub
from store.api.message import Message
from store.base import logs
from store.base.errors import StoreError

SAMPLE_INTERVAL_MS = 10_000
COUNT_INTERVAL_MS = 60_000  # between two counts that look at each session
PROTOCOL = "mqtt"
ROOT = "$SYS/broker"
LOADS = {"1min": 60.0, "5min": 300.0, "15min": 900.0}  # seconds

log = logs.get(__name__)


class Load:
    """The rate of something per minute, averaged over several windows in which older samples weigh less."""

    __slots__ = ("_averages", "_before")

    def __init__(self) -> None:
        self._before = 0
        self._averages = dict.fromkeys(LOADS, 0.0)

    def sample(self, total: int, elapsed_s: float) -> None:
        """Adds a sample: `total` has grown since the last one, `elapsed_s` ago."""
        grown, self._before = total - self._before, total
        if elapsed_s <= 0:
            return
        rate = grown * 60.0 / elapsed_s
        for name, window_s in LOADS.items():
            kept = math.exp(-elapsed_s / window_s)
            self._averages[name] = self._averages[name] * kept + rate * (1 - kept)

    def items(self) -> list[tuple[str, str]]:
        """Returns the averages, by name."""
        return [(name, f"{average:.2f}") for name, average in self._averages.items()]


class SysTopics:
    """The values of one process."""

    def __init__(self, hub: Hub, *, node: str, now_ms: Callable[[], int]) -> None:
        self._hub = hub
        self._now_ms = now_ms
        self._node = node or socket.gethostname()
        self._version = f"headgate {version('headgate')}"
        self._started_ms = self._sampled_ms = now_ms()
        self._counted_ms = -COUNT_INTERVAL_MS
        self._sessions: int | None = None  # stored; None: not counted yet
        self._retained: int | None = None
        self._clients_max = 0
        self._loads = {name: Load() for name in (*Traffic._fields, "connections")}

    async def sample(self) -> None:
        """Takes part in the averages. Call it every `SAMPLE_INTERVAL_MS`."""
        now_ms = self._now_ms()
        elapsed_s, self._sampled_ms = (now_ms - self._sampled_ms) / 1_000, now_ms
        traffic = self._hub.metrics.traffic(PROTOCOL)
        for name, total in traffic._asdict().items():
            self._loads[name].sample(total, elapsed_s)
        self._loads["connections"].sample(self._hub.metrics.accepted_count(PROTOCOL), elapsed_s)
        self._connected()

    def page(self, request: Retained, *, readable: Callable[[str], bool] | None = None) -> RetainedPage:
        """See `Retained`. All that matches is one page."""
        now_ms = self._now_ms()
        if now_ms - self._counted_ms >= COUNT_INTERVAL_MS:
            self._counted_ms = now_ms
            self._hub.spawn(self._count())
        trie: FilterTrie[None] = FilterTrie()
        trie.add(request.pattern, None)
        found = [
            Message(f"{ROOT}/{name}", text.encode(), now_ms, PROTOCOL, "", 0, retain=True)
            for name, text in sorted(self.values().items())
        ]
        return RetainedPage(
            messages=[one for one in found if trie.match(one.address) and (readable is None or readable(one.address))],
            after=None,
        )

    def values(self) -> dict[str, str]:
        """Returns all values there are now, by their names below `$SYS/broker`."""
        hub, now_ms = self._hub, self._now_ms()
        traffic, connected = hub.metrics.traffic(PROTOCOL), self._connected()
        values: dict[str, int | str | None] = {
            "version": self._version,
            "node": self._node,
            "uptime": f"{(now_ms - self._started_ms) // 1_000} seconds",
            "clients/connected": connected,
            "clients/maximum": self._clients_max,
            "clients/total": None if self._sessions is None else max(self._sessions, connected),
            "messages/received": traffic.messages_received,
            "messages/sent": traffic.messages_sent,
            "publish/messages/received": traffic.messages_received,
            "publish/messages/sent": traffic.messages_sent,
            "publish/messages/dropped": traffic.messages_dropped,
            "bytes/received": traffic.bytes_received,
            "bytes/sent": traffic.bytes_sent,
            "subscriptions/count": hub.fanout.subscription_count,
            "shared_subscriptions/count": hub.queues.registry.shared_count,
            "retained messages/count": self._retained,
            "store/pending/bytes": hub.store.log.pending_bytes,
        }
        try:
            values["store/log/bytes"] = hub.store.log.confirmed
        except StoreError:
            values["store/log/bytes"] = None  # out of reach
        for name, load in self._loads.items():
            what = name.replace("_", "/")
            values.update((f"load/{what}/{window}", text) for window, text in load.items())
        return {name: str(value) for name, value in values.items() if value is not None}

    def _connected(self) -> int:
        connected = self._hub.metrics.open_count(PROTOCOL)
        self._clients_max = max(self._clients_max, connected)
        return connected

    async def _count(self) -> None:
        """Counts stored messages, for the next question."""
        try:
            self._sessions = await self._hub.store.keys.count(f"sessions/{PROTOCOL}/", f"sessions/{PROTOCOL}0")
            self._retained = await self._hub.store.keys.count("retained/", "retained0")
        except StoreError as error:
            log.debug("sessions and retained messages could not be counted", error=str(error))
