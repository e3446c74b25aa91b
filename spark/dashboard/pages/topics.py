"""Topics: records, queues and retention of each, from the gateway."""

from typing import Any

from dash import html

from spark.dashboard.layout import parts, words
from spark.dashboard.layout.links import Where
from spark.dashboard.pages.sources import Sources

TOPICS_COUNT_MAX = 200


def page(_where: Where, _sources: Sources) -> Any:
    """The page, still empty."""
    return html.Div(id="topics-body")


def body(sources: Sources) -> Any:
    """The topics of now, those with the most records first."""
    answer = sources.admin.ask()
    if answer.error:
        return parts.trouble(
            "The gateway is not reached", f"{answer.error}. Name another with --admin.", color="orange"
        )
    topics = sorted(answer.status.get("topics", ()), key=lambda one: (-one.get("records", 0), one["name"]))
    log = answer.status.get("log", {})
    rows = [
        [one["name"], words.count(one.get("queues", 0)), words.count(one.get("records", 0)), one.get("config") or "-"]
        for one in topics[:TOPICS_COUNT_MAX]
    ]
    return html.Div(
        [
            parts.figures(
                parts.figure("Topics", words.count(len(topics))),
                parts.figure("Records that can be read", words.count(sum(one.get("records", 0) for one in topics))),
                parts.figure("Log", f"{log.get('confirmed', 0) / 2**20:,.1f} MiB", "confirmed, since its beginning"),
                parts.figure("Subscribers", words.count(answer.metrics.get("headgate_subscribers", 0))),
            ),
            parts.section(
                "Topics",
                parts.table(
                    ["Topic", "Queues", "Records", "Settings"], rows, empty="There is no topic.", numbers=(1, 2)
                ),
                parts.note(f"The first {TOPICS_COUNT_MAX} are shown.") if len(topics) > TOPICS_COUNT_MAX else None,
            ),
        ]
    )
