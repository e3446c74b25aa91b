"""Charts as plain dictionaries for Plotly. Their colors are read on white and on black alike."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from dash import dcc, html

COLORS = ("#4c6ef5", "#12b886", "#f59f00", "#e64980", "#7950f2", "#15aabf", "#82c91e", "#fa5252")
_TEXT, _GRID = "#868e96", "rgba(134, 142, 150, 0.25)"
_HEIGHT_PX = 300
_DOT_PX = 6.0
_CONFIG: Any = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
SHOWN = {"height": _HEIGHT_PX}
SPARK_WIDTH, SPARK_HEIGHT = 120, 24


def stacked(id_: str, named: Mapping[str, tuple[Sequence[int], Sequence[float]]], *, unit: str, keep: str) -> Any:
    """Draws areas on top of each other: name -> (ms since 1970, values). The zoom stays while `keep` is the same."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "all",
            "name": name,
            "x": list(x),
            "y": list(y),
            "line": {"width": 1.5, "color": COLORS[at % len(COLORS)]},
            "hovertemplate": f"%{{y:,}} {unit}",
        }
        for at, (name, (x, y)) in enumerate(named.items())
    ]
    return _graph(id_, traces, unit, keep)


Mark = tuple[int, float, str]  # ms since 1970, value, sentence


def band(
    id_: str,
    columns: Mapping[str, Sequence[Any]],
    *,
    unit: str,
    keep: str,
    marks: Sequence[Mark] = (),
    zoom: tuple[int, int] | None = None,
) -> Any:
    """Returns a series: its mean, the band from the least to the greatest value, and the median to the 95th percentile.

    `marks` are anomalies, which stand out; `zoom` is the part that is shown, in ms since 1970.
    """
    x = list(columns["start_ms"])
    plain = {"type": "scatter", "mode": "lines", "x": x, "connectgaps": False}

    def edge(column: str, **more: Any) -> dict[str, Any]:
        return {
            **plain,
            "y": list(columns[column]),
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            **more,
        }

    pieces = []
    for start, end in _runs(columns["mean"]):
        cut = {"x": x[start:end]}
        for low, high, color, title in (
            ("min", "max", "rgba(76, 110, 245, 0.16)", "least to greatest"),
            ("p50", "p95", "rgba(18, 184, 134, 0.30)", "median to 95th percentile"),
        ):
            first = start == 0
            pieces.append({**edge(low), **cut, "y": list(columns[low][start:end]), "legendgroup": title})
            pieces.append(
                {
                    **edge(high, fill="tonexty", fillcolor=color, name=title, showlegend=first, legendgroup=title),
                    **cut,
                    "y": list(columns[high][start:end]),
                }
            )
    alone = [0.0] * len(x)  # a line does not show a value that has none beside it: it is a dot
    for start, end in _runs(columns["mean"]):
        alone[start] = _DOT_PX if end == start + 1 else 0.0
    mean = {
        **plain,
        **({"mode": "lines+markers", "marker": {"size": alone}} if any(alone) else {}),
        "y": list(columns["mean"]),
        "name": "mean",
        "line": {"width": 2, "color": COLORS[0]},
        "customdata": list(zip(columns["min"], columns["p95"], columns["max"], columns["count"], strict=True)),
        "hovertemplate": (
            "mean %{y:.5g}<br>least %{customdata[0]:.5g}, p95 %{customdata[1]:.5g}, greatest %{customdata[2]:.5g}"
            "<br>%{customdata[3]} samples<extra></extra>"
        ),
    }
    found = {
        "type": "scatter",
        "mode": "markers",
        "name": "anomalies",
        "x": [x for x, _, _ in marks],
        "y": [y for _, y, _ in marks],
        "text": [_plain(text) for _, _, text in marks],
        "marker": {"size": 10, "symbol": "diamond", "color": COLORS[7]},
        "hovertemplate": "%{y:.5g}: %{text}<extra></extra>",
    }
    return _graph(id_, [*pieces, mean, *([found] if marks else [])], unit, keep, zoom)


def _plain(text: str) -> str:
    """Returns a device's text as Plotly shows it unchanged: it takes `<a href>` and other tags of a text for markup."""
    return escape(text, quote=False)  # Plotly knows no escaped quotes


def _runs(values: Sequence[Any]) -> list[tuple[int, int]]:
    """Returns ranges of indexes without a gap: an area over a gap would show values that were not reported."""
    found, start = [], 0
    for at, value in enumerate([*values, None]):
        if value is None:
            if at > start:
                found.append((start, at))
            start = at + 1
    return found


def _graph(
    id_: str,
    traces: list[dict[str, Any]],
    unit: str,
    keep: str,
    zoom: tuple[int, int] | None = None,
) -> Any:
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _GRID, "automargin": True}
    layout = {
        "height": _HEIGHT_PX,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": _TEXT, "family": "inherit"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "x unified" if len(traces) > 1 and "stackgroup" in traces[0] else "closest",
        "hoverlabel": {"font": {"color": "#212529"}, "bgcolor": "#f8f9fa"},
        "xaxis": {
            **axis,
            "type": "date",
            "title": {"text": "UTC", "font": {"size": 11}},
            "uirevision": f"{keep} {zoom}",  # another part, or none, takes the place of the reader's own
            **({"range": list(zoom)} if zoom else {}),
        },
        "yaxis": {
            **axis,
            "title": {"text": _plain(unit)},
            "rangemode": "tozero" if "stackgroup" in traces[0] else "normal",
        },
        "uirevision": keep,
    }
    return dcc.Graph(id=id_, figure={"data": traces, "layout": layout}, config=_CONFIG, style=SHOWN)


def empty(id_: str) -> Any:
    """Returns a chart without a figure, which is not shown; one may be given to it later."""
    return dcc.Graph(id=id_, config=_CONFIG, style={**SHOWN, "display": "none"})


def sparkline(values: Sequence[float | None]) -> Any:
    """Returns a small line as a picture; nothing for less than two values."""
    those = [one for one in values if one is not None]
    if len(those) < 2:
        return html.Span("-", className="dimmed")
    least, greatest = min(those), max(those)
    span = (greatest - least) or 1.0
    step = SPARK_WIDTH / (len(those) - 1)
    points = " ".join(
        f"{at * step:.1f},{2 + (SPARK_HEIGHT - 4) * (1 - (one - least) / span):.1f}" for at, one in enumerate(those)
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}">'
        f'<polyline points="{points}" fill="none" stroke="{COLORS[0]}" stroke-width="1.5"/></svg>'
    )
    return html.Img(
        src=f"data:image/svg+xml,{quote(svg)}",
        alt=f"from {least:.4g} to {greatest:.4g}",
        width=SPARK_WIDTH,
        height=SPARK_HEIGHT,
    )
