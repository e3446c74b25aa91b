"""`headgate spark telemetry`: the commands that need Spark, which is loaded only when they run."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.domain.errors import HeadgateError

__all__ = ["SparkFailed", "app"]

RPC_PORT = 8081

app = typer.Typer(help="Read the log with Spark.", no_args_is_help=True)


class SparkFailed(HeadgateError):
    """Spark is not there, or refused."""


@app.callback()
def spark() -> None:
    """Read the log with Spark."""


@app.command()
def telemetry(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the tables are written.")] = Path(
        "headgate-data/telemetry"
    ),
    host: Annotated[str, typer.Option("--host", help="Where the gateway is.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Its gRPC port.", min=1, max=65_535)] = RPC_PORT,
    port_offset: Annotated[int, typer.Option("--port-offset", help="The gateway's own port offset.", min=0)] = 0,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this; may be repeated.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what there is now, then end.")] = False,
    trigger_s: Annotated[float, typer.Option("--trigger", help="Seconds from one batch to the next.", min=0)] = 2.0,
    watermark_s: Annotated[
        float, typer.Option("--watermark", help="Seconds after its end in which a window still takes records.", min=0)
    ] = 120.0,
    cores: Annotated[int, typer.Option("--cores", help="Of this machine.", min=1)] = 2,
) -> None:
    """Turn JSON telemetry into one-minute windows and latest values, as Parquet, until SIGTERM or SIGINT."""
    try:
        from spark import errors, job, job_options  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    try:
        job.run(
            job_options.TelemetryOptions(
                output=output,
                target=f"{host}:{port + port_offset}",
                topics=tuple(topic or ()),
                once=once,
                trigger_s=trigger_s,
                watermark_s=watermark_s,
                cores=cores,
            )
        )
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    except errors.SparkError as error:
        raise SparkFailed(str(error)) from error
