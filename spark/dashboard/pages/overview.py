"""Overview: rates by protocol, lag, devices that are alive, anomalies, and the state of the gateway or cluster."""

from typing import Any

import dash_mantine_components as dmc
from dash import html

from spark.dashboard.clients.admin import GatewayFigures
from spark.dashboard.layout import charts, formatting, parts
from spark.dashboard.layout.links import PageAddress
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import overview
from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import TimeRange, range_named

IDLE_MS = 60_000  # without a commit, that are worth a word


def page(_where: PageAddress, _sources: Sources) -> Any:
    """Returns the page, still empty."""
    return html.Div(id="overview-body")


def body(sources: Sources, range_name: str) -> Any:
    """Returns the figures and charts of now."""
    answer, now_ms, chosen = sources.admin.ask(), sources.now_ms, range_named(range_name)
    return [
        with_tables(sources, lambda reading: _of_tables(reading, chosen, range_name, now_ms)),
        _gateway(answer),
    ]


def by_name(rows: list[dict[str, Any]], width_ms: int, since_ms: int) -> dict[str, tuple[list[int], list[float]]]:
    """Returns rows of `start_ms`, `name` and `records` as series of records a minute, zero where there are none.

    They begin with a zero before the first row, so that a single one is seen, too, unless that is before `since_ms`,
    when the range begins: there may be rows before it.
    """
    if not rows:
        return {}
    first = max(rows[0]["start_ms"] - width_ms, since_ms)
    starts = list(range(first, rows[-1]["start_ms"] + 1, width_ms))
    at = {start: index for index, start in enumerate(starts)}
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        _, values = found.setdefault(row["name"] or "(none)", (starts, [0.0] * len(starts)))
        values[at[row["start_ms"]]] = row["records"] * 60_000 / width_ms
    return found


def _of_tables(reading: Reading, chosen: TimeRange, range_name: str, now_ms: int) -> Any:
    lag, fleet = overview.lag(reading, now_ms), overview.fleet(reading, now_ms)
    strange = overview.anomalies(reading, now_ms)
    of_late = f"in the last {formatting.duration(overview.ALIVE_MS)}"
    rates = by_name(overview.traffic(reading, "protocol", chosen, now_ms), chosen.width_ms, chosen.since_ms(now_ms))
    if rates:
        chart = charts.stacked("rates", rates, unit="records/min", keep=range_name)
    else:
        chart = parts.note(f"No record was stored in the last {chosen.words}.")
    idle = lag.idle_ms is not None and lag.idle_ms > IDLE_MS
    return html.Div(
        [
            parts.figures(
                parts.figure("Records counted", formatting.count(reading.progress.records), "since the job began"),
                parts.figure(
                    "Publish to table",
                    formatting.duration(lag.publish_ms),
                    f"last commit {formatting.ago(reading.progress.committed_at_ms or None, now_ms)}",
                    color="orange" if idle else None,
                ),
                parts.figure(
                    "Devices alive",
                    f"{formatting.count(fleet.alive)} of {formatting.count(fleet.devices)}",
                    f"heard {of_late}; {formatting.count(fleet.series)} series",
                ),
                parts.figure(
                    "Anomalies now",
                    formatting.count(strange.found),
                    f"of {formatting.count(strange.devices)} devices {of_late}",
                    color="orange" if strange.found else None,
                ),
            ),
            parts.section("Records by protocol", chart),
        ]
    )


def _gateway(answer: GatewayFigures) -> Any:
    if answer.error:
        return parts.trouble(
            "The gateway is not reached", f"{answer.error}. Name another with --admin.", color="orange"
        )
    status = answer.status
    ready = status.get("ready", False)
    reasons = [*status.get("reasons", ()), *status.get("warnings", ())]
    state = parts.badge("not ready", "red") if not ready else parts.badge("ready", "green")
    if ready and reasons:
        state = parts.badge("degraded", "orange")
    stored, connections = status.get("stored", {}), status.get("connections", {})
    rows = [
        [
            name,
            formatting.count(connections.get(name, 0)),
            formatting.count(stored.get(name, 0)),
            formatting.number(answer.stored_rates[name]) if name in answer.stored_rates else "-",
        ]
        for name in sorted({*stored, *connections})
    ]
    content: list[Any] = [parts.trouble("", reason, color="orange") for reason in reasons]
    content.append(
        parts.table(
            ["Protocol", "Connections", "Stored", "Messages/s"],
            rows,
            empty="No client has connected yet.",
            numbers=(1, 2, 3),
        )
    )
    if groups := status.get("groups", ()):
        content.append(dmc.Space(h="md"))
        content.append(parts.table(["Store group", "Master", "In sync", "State"], map(_group, groups), empty=""))
    uptime = f"version {status.get('version', '?')}, up {formatting.duration(1000 * status.get('uptime_s', 0))}"
    return parts.section("Gateway", html.Div(uptime, className="dimmed"), *content, right=state)


def _group(one: dict[str, Any]) -> list[Any]:
    troubles = "; ".join(one.get("troubles", ()))
    good = one.get("writable", True) and not troubles
    master = one.get("master")
    return [
        str(one.get("number")),
        "none" if master is None else f"replica {master}, epoch {one.get('master_epoch')}",
        ", ".join(str(replica) for replica in one.get("sync_set", ())),
        parts.badge("writable", "green") if good else parts.badge(troubles or "takes no writes", "red"),
    ]
