"""Explorer: SQL over the tables, which only reads and is bounded."""

from typing import Any

import dash_mantine_components as dmc
from dash import html

from spark.dashboard.layout import parts
from spark.dashboard.layout.links import PageAddress, href
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import explorer
from spark.dashboard.queries.reading import QUERY_S_MAX, Reading
from spark.errors import SparkError


def page(where: PageAddress, sources: Sources) -> Any:
    """Returns the text of the query, its examples, and a place for its rows."""
    first = next(iter(explorer.EXAMPLES.values()))
    return html.Div(
        [
            parts.section(
                "SQL over the tables",
                dmc.Textarea(
                    id="explorer-sql",
                    value=where.query.get("sql", first),
                    autosize=True,
                    minRows=4,
                    maxRows=16,
                    className="mono",
                    **{"aria-label": "SQL"},
                ),
                dmc.Group(
                    [
                        dmc.Button("Run", id="explorer-run", size="xs"),
                        dmc.Select(
                            id="explorer-example",
                            data=list(explorer.EXAMPLES),
                            placeholder="Examples",
                            size="xs",
                            w=230,
                            **{"aria-label": "Examples"},
                        ),
                        dmc.Text(
                            f"DuckDB, read-only: {explorer.ROWS_SHOWN_MAX:,} rows, {QUERY_S_MAX:g} s.",
                            size="xs",
                            c="dimmed",
                        ),
                    ],
                    mt="xs",
                ),
            ),
            html.Div(id="explorer-body"),
            with_tables(sources, _columns),
        ]
    )


def body(sources: Sources, sql: str) -> Any:
    """Returns the rows of a query, or why there are none."""
    return with_tables(sources, lambda reading: _rows(reading, sql))


def _rows(reading: Reading, sql: str) -> Any:
    try:
        found = explorer.explore(reading, sql)
    except SparkError as error:
        return parts.trouble("The query was not run", str(error), color="red")
    count = f"{found.rows.num_rows:,} rows" + (", and there are more" if found.more else "")
    export = html.A("CSV", href=href("/export/explorer.csv", sql=sql), download="query.csv")
    table = parts.table(found.rows.column_names, explorer.cells(found.rows), empty="The query has no rows.")
    return parts.section(count, html.Div(table, className="mono"), right=export)


def _columns(reading: Reading) -> Any:
    rows = [
        [html.Strong(name), html.Span(", ".join(columns), className="mono wide")]
        for name, columns in explorer.columns_of(reading).items()
    ]
    return parts.section("Tables", parts.table(["Table", "Columns"], rows, empty=""))
