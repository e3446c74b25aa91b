"""Connections one after the other, and what each costs the server while it is idle."""

import os
import time
from typing import Annotated

from msgspec import Meta

from tests.bench.load.base import Count, Load, Measured
from tests.bench.load.mqtt.mqtt_wire import connect
from tests.bench.procfs import rss_kib


class MqttConnect(Load, frozen=True, kw_only=True, tag="mqtt-connect"):
    """Connections a second, from the first CONNECT to the last CONNACK; also the resident memory of each, in KiB."""

    conns: Count = 5_000
    idle_s: Annotated[float, Meta(ge=0, description="before the memory is read")] = 2.0

    def run(self) -> Measured:
        """See `Load.run`."""
        before = rss_kib(self.pid) if self.pid else 0
        started = time.perf_counter()
        connections = [connect(self.host, self.port, f"idle-{os.getpid()}-{n}") for n in range(self.conns)]
        elapsed_s = time.perf_counter() - started
        time.sleep(self.idle_s)
        also = {"rss_kib_per_conn": (rss_kib(self.pid) - before) / self.conns} if self.pid else {}
        for one in connections:
            one.close()
        return Measured(value=self.conns / elapsed_s, elapsed_s=elapsed_s, done=self.conns, also=also)
