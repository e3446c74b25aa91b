"""The sources of figures, and the sentences for when there are none."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from spark.dashboard.clients.admin import AdminApi
from spark.dashboard.clients.gateway import GatewayApi
from spark.dashboard.layout import parts
from spark.dashboard.queries.reading import Reading, TelemetryTables
from spark.decode.rules import DecodeRules
from spark.errors import SparkError


class Sources(NamedTuple):
    """The tables, the gateway, the clock, and the rules by which messages are read."""

    tables: TelemetryTables
    admin: AdminApi
    clock_s: Callable[[], float] = time.time
    gateway: GatewayApi | None = None
    rules: DecodeRules = DecodeRules()  # those of the job

    @property
    def now_ms(self) -> int:
        """The time, in ms since 1970."""
        return round(self.clock_s() * 1000)


def with_tables(sources: Sources, make: Callable[[Reading], Any]) -> Any:
    """Returns the result of a function of the tables; a sentence when they are empty or cannot be read."""
    try:
        with sources.tables.read() as reading:
            return no_tables(sources) if reading.empty else make(reading)
    except SparkError as error:
        return parts.trouble("The tables cannot be read", f"{error}", color="red")


def no_tables(sources: Sources) -> Any:
    """Returns the sentence for a job that has not committed anything."""
    return parts.trouble(
        "No tables yet",
        f"No telemetry job has written to {sources.tables.place.url}. Start one with: headgate spark telemetry "
        "--output, and name the same directory here with --tables. This page refreshes by itself.",
        color="blue",
    )
