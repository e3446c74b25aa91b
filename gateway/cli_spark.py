"""`headgate spark telemetry`: the commands that need Spark, which is loaded only when they run."""

import typer

__all__ = ["app"]

app = typer.Typer(help="Read the log with Spark.", no_args_is_help=True)


@app.callback()
def spark() -> None:
    """Read the log with Spark."""
