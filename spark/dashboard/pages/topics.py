"""Topics: records, rate, queues and retention of each, and the lag of consumer groups, from the gateway.

The rate is that of the last minutes in the telemetry tables; else that between two answers of the gateway.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dash import html

from spark.dashboard.clients.gateway import GROUPS_COUNT_MAX, Credentials, GatewayRefused
from spark.dashboard.layout import formatting, parts
from spark.dashboard.layout.links import PageAddress
from spark.dashboard.pages.sources import Sources
from spark.dashboard.queries import overview
from spark.errors import SparkError

TOPICS_COUNT_MAX = 200


def page(_where: PageAddress, _sources: Sources) -> Any:
    """Returns the page, still empty."""
    return html.Div(id="topics-body")


def body(sources: Sources, who: Credentials | None = None) -> Any:
    """Returns the topics of now, those with the most records first, and the consumer groups, as `who` may see them."""
    answer = sources.admin.ask()
    if answer.error:
        return parts.trouble(
            "The gateway is not reached", f"{answer.error}. Name another with --admin.", color="orange"
        )
    topics = sorted(answer.status.get("topics", ()), key=lambda one: (-one.get("records", 0), one["name"]))
    log = answer.status.get("log", {})
    rates = {**answer.topic_rates, **_counted(sources)}
    rows = [_topic(one, rates.get(one["name"])) for one in topics[:TOPICS_COUNT_MAX]]
    return html.Div(
        [
            parts.figures(
                parts.figure("Topics", formatting.count(len(topics))),
                parts.figure(
                    "Records that can be read", formatting.count(sum(one.get("records", 0) for one in topics))
                ),
                parts.figure("Log", f"{log.get('confirmed', 0) / 2**20:,.1f} MiB", "confirmed, since its beginning"),
                parts.figure("Subscribers", formatting.count(answer.metrics.get("headgate_subscribers", 0))),
            ),
            parts.section(
                "Topics",
                parts.table(
                    ["Topic", "Queues", "Records", "Messages/s", "Kept for", "Settings"],
                    rows,
                    empty="There is no topic.",
                    numbers=(1, 2, 3),
                ),
                parts.note(f"The first {TOPICS_COUNT_MAX} are shown.") if len(topics) > TOPICS_COUNT_MAX else None,
            ),
            _groups(sources, who),
        ]
    )


def _counted(sources: Sources) -> Mapping[str, float]:
    """Returns the rates of the topics that the telemetry job reads, where it is up to date."""
    try:
        with sources.tables.read() as reading:
            return overview.topic_rates(reading, sources.now_ms)
    except SparkError:
        return {}  # other pages say why; the gateway tells rates, too


def _topic(one: Mapping[str, Any], rate: float | None) -> list[Any]:
    settings = dict(word.partition("=")[::2] for word in (one.get("config") or "").split())
    kept = [formatting.duration(int(settings["retention_ms"]))] if settings.get("retention_ms", "").isdecimal() else []
    if settings.get("retention_bytes", "").isdecimal():
        kept.append(f"{int(settings['retention_bytes']) / 2**20:,.0f} MiB")
    numbers = [formatting.count(one.get(name, 0)) for name in ("queues", "records")]
    numbers.append("-" if rate is None else formatting.number(rate))
    return [one["name"], *numbers, ", ".join(kept) or "as the gateway's file says", one.get("config") or "-"]


def _lags(queues: Iterable[Mapping[str, Any]]) -> str:
    """Returns the lag of each queue that has one, in at most 200 characters."""
    return ", ".join(f"{queue['queue']}: {formatting.count(queue['lag'])}" for queue in queues if queue["lag"])[:200]


def _groups(sources: Sources, who: Credentials | None) -> Any:
    """Returns the consumer groups, with the number of messages that they have not read yet."""
    if sources.gateway is None:
        return None
    try:
        groups = sources.gateway.groups(who)
    except GatewayRefused as refused:
        return parts.section("Consumer groups", parts.trouble("They are not shown", f"{refused}", color="orange"))
    rows = [
        [
            one.name,
            one.topic,
            formatting.count(one.members) if one.members else parts.badge("no members", "orange"),
            formatting.count(one.lag),
            _lags(one.queues) or "-",
        ]
        for one in groups
    ]
    head = ["Group", "Topic", "Members", "Lag", "Lag by queue"]
    table = parts.table(head, rows, empty="There is no consumer group.", numbers=(2, 3))
    more = parts.note(f"The first {GROUPS_COUNT_MAX} are shown.") if len(rows) == GROUPS_COUNT_MAX else None
    return parts.section("Consumer groups", table, more)
