"""The frame around every page: links, time range, refresh, and the switch between light and dark."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from spark.dashboard.queries.time_ranges import DEFAULT_RANGE, RANGES

PAGES = {
    "/": "Overview",
    "/fleet": "Fleet",
    "/anomalies": "Anomalies",
    "/topics": "Topics",
    "/quality": "Data quality",
    "/explorer": "Explorer",
}
REFRESH = {"0": "No refresh", "5": "Every 5 s", "30": "Every 30 s"}  # seconds


def frame() -> Any:
    """Returns the layout of the application; pages are put into `page`."""
    links = dmc.Group(
        [
            dcc.Link(words, href=path, className="page-link", id={"type": "link", "path": path})
            for path, words in PAGES.items()
        ],
        gap=4,
        className="page-links",
    )
    controls = dmc.Group(
        [
            dmc.Select(
                id="range",
                data=[{"value": name, "label": one.words} for name, one in RANGES.items()],
                value=DEFAULT_RANGE,
                allowDeselect=False,
                w=118,
                size="xs",
                **{"aria-label": "Time range"},
            ),
            dmc.Select(
                id="refresh",
                data=[{"value": value, "label": words} for value, words in REFRESH.items()],
                value="5",
                allowDeselect=False,
                w=112,
                size="xs",
                persistence=True,
                **{"aria-label": "Refresh"},
            ),
            dmc.ColorSchemeToggle(
                lightIcon=html.Span("☀", className="scheme-icon"),
                darkIcon=html.Span("☾", className="scheme-icon"),
                id="scheme",
                variant="default",
                size="md",
                **{"aria-label": "Light or dark"},
            ),
        ],
        gap="xs",
    )
    head = html.Header(
        [html.Div([dcc.Link("Headgate", href="/", className="brand"), links], className="head-left"), controls],
        className="head",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Interval(id="tick", interval=5_000),
            dcc.Store(id="shown"),  # the parts of the address that the page was made of
            head,
            html.Main(id="page", className="page"),
        ],
        defaultColorScheme="auto",
    )
