"""`headgate spark generate`, `replay` and `score`: devices with labelled faults, or of a CSV file, and the findings.

They need no JDK, and `generate` and `replay` no table.
"""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
import typer

from gateway.cli.remote.options import HTTP_PORT
from gateway.cli.spark import OUTPUT, SparkFailed, StorageOptions, pair
from gateway.remote.http import Unreachable
from store.api.message import Message

RETRY_S = 30.0
BEHIND_S = 2.0  # from which on it is told
SCHEMES: Final = ("http", "https", "mqtt", "mqtts", "coap")
TargetOption = Annotated[
    str,
    typer.Option("--target", help="http://, https://, mqtt://, mqtts:// or coap://, with user:password@ for the user."),
]
RetryOption = Annotated[
    float, typer.Option("--retry", help="Seconds for which an absent gateway is waited for.", min=0)
]
LabelsOption = Annotated[
    Path, typer.Option("--labels", "-l", help="The file of labels: JSON lines, or CSV where it ends in .csv.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(generate)
    app.command()(replay)
    app.command("score")(show_score)


def generate(
    *,
    labels: LabelsOption = Path("labels.jsonl"),
    target: TargetOption = f"http://127.0.0.1:{HTTP_PORT}",
    devices: Annotated[int, typer.Option("--devices", "-n", help="How many.", min=1)] = 18,
    rate: Annotated[float, typer.Option("--rate", "-r", help="Messages a second of each device.")] = 1.0,
    duration_s: Annotated[
        float, typer.Option("--duration", "-d", help="Seconds; faults are in the second half.")
    ] = 1_500.0,
    kinds: Annotated[
        str | None,
        typer.Option(
            "--faults", help="Kinds, with commas, given to devices in turn; none: no fault.", show_default="all"
        ),
    ] = None,
    faults_each: Annotated[int, typer.Option("--faults-each", help="Of each device that has any.", min=1)] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same values and faults.")] = 1,
    prefix: Annotated[str, typer.Option("--prefix", help="Of the devices' names.")] = "gen",
    address: Annotated[
        str, typer.Option("--address", help="Of the messages; {device} is the device's name.")
    ] = "telemetry/generated/{device}/reading",
    retry_s: RetryOption = RETRY_S,
) -> None:
    """Publish telemetry of devices with faults of known kind and time, and write these as labels."""
    with _loaded() as (fleet, writing):
        given = {} if kinds is None else {"faults": tuple(k for k in kinds.split(",") if k not in ("", "none"))}
        run = fleet.Fleet(
            devices=devices,
            rate=rate,
            duration_s=duration_s,
            faults_each=faults_each,
            seed=seed,
            prefix=prefix,
            start_ms=_now_ms(),
            **given,
        )
        planned = list(run.labels())
        sender = _sender(target, f"generate-{seed}-{run.start_ms}", address, retry_s)
        writing.write_labels(labels, planned)
        faults = sum(one.kind != writing.RUN for one in planned)
        typer.echo(
            f"{devices:,} devices, {devices * rate:,.1f} messages a second, for {duration_s:,.0f} s; "
            f"{faults:,} faults in {labels}; to {_where(target)}"
        )
        sent, ended = _send(run.readings(), sender, paced=True)
        if sent.due_ms < run.end_ms - 1_000 / rate - 1_000:
            writing.write_labels(labels, writing.until(planned, sent.due_ms + 1))
        ended()


def replay(
    file: Annotated[
        Path, typer.Argument(help="CSV with a header: time, device, and metric and value or a column a metric.")
    ],
    *,
    target: TargetOption = f"http://127.0.0.1:{HTTP_PORT}",
    live: Annotated[
        bool, typer.Option("--live", help="In real time: the first time stamp becomes now, the distances stay.")
    ] = False,
    time_column: Annotated[str, typer.Option("--time-column", help="The column of the time.")] = "time",
    device_column: Annotated[str, typer.Option("--device-column", help="The column of the device.")] = "device",
    device: Annotated[str, typer.Option("--device", help="The device, where no column says it.")] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over lines that cannot be read.")] = False,
    address: Annotated[
        str, typer.Option("--address", help="Of the messages; {device} is the device's name.")
    ] = "telemetry/replay/{device}/reading",
    retry_s: RetryOption = RETRY_S,
) -> None:
    """Publish the rows of a CSV file with their own time stamps, as fast as the gateway takes them."""
    with _loaded():
        from spark.generator.replay import Replay, live_from  # noqa: PLC0415 - slow to load

        rows = Replay(path=file, time=time_column, device=device_column, name=device, skip_bad=skip_bad).readings()
        sender = _sender(target, f"replay-{_now_ms()}", address, retry_s)
        _, ended = _send(live_from(rows, _now_ms()) if live else rows, sender, paced=live)
        ended()


def show_score(
    labels: Annotated[Path, typer.Argument(help="The file of labels.")] = Path("labels.jsonl"),
    *,
    tables: Annotated[str, typer.Option("--tables", "-t", help="A directory of telemetry tables, or s3://.")] = OUTPUT,
    storage_option: StorageOptions = None,
    tolerance_s: Annotated[
        float, typer.Option("--tolerance", help="Seconds by which a finding may lie beside its label.", min=0)
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure the findings of the telemetry job by labels: precision and recall, and each wrong and missed one."""
    with _loaded() as (_, writing):
        from spark.generator import scoring  # noqa: PLC0415 - slow to load
        from spark.tables.reader import Tables  # noqa: PLC0415

        known = writing.read_labels(labels)
        place = Tables(tables, dict(pair(text) for text in storage_option or ()))
        if not place.progress().records:
            raise SparkFailed(f"{place.place.url} holds no records: name the job's --output with --tables")
        outcome = scoring.score(known, scoring.findings_of(place, known), tolerance_s)
        for line in (
            [msgspec.json.encode(scoring.as_document(outcome)).decode()] if as_json else scoring.text_of(outcome)
        ):
            typer.echo(line)


class _Sender(Protocol):
    """The way to a gateway."""

    async def send(self, some: Sequence[Any]) -> None:
        """Publishes messages; returns when all are durable."""

    async def close(self) -> None:
        """Disconnects."""


class _Events:
    """Messages as CloudEvents over HTTP."""

    def __init__(self, client: Any, sender: Any) -> None:
        self._client, self._sender = client, sender

    async def send(self, some: Sequence[Any]) -> None:
        """See `_Sender`."""
        import asyncio  # noqa: PLC0415 - only a sender needs it

        await asyncio.to_thread(self._sender.send, some)

    async def close(self) -> None:
        """See `_Sender`."""
        self._client.close()


class _Devices:
    """Messages of devices over MQTT and CoAP."""

    def __init__(self, devices: Any, message: Callable[[Any], Message]) -> None:
        self._devices, self._message = devices, message

    async def send(self, some: Sequence[Any]) -> None:
        """See `_Sender`."""
        await self._devices.publish([self._message(one) for one in some])

    async def close(self) -> None:
        """See `_Sender`."""
        await self._devices.close()


def _sender(target: str, run: str, template: str, retry_s: float) -> _Sender:
    """Returns the way to the gateway at a URL. Raises `BadOption`."""
    from spark.errors import BadOption  # noqa: PLC0415 - an extra, and slow to load
    from spark.generator import events  # noqa: PLC0415

    address = events.address_of(template)
    url = urlsplit(target)
    try:
        usable = url.scheme in SCHEMES and bool(url.hostname) and url.port != 0 and url.path in ("", "/")
    except ValueError:
        usable = False
    if not usable:
        raise BadOption("target", f"cannot be {_where(target)}: it must be as http://127.0.0.1:{HTTP_PORT}")
    if url.scheme in ("http", "https"):
        from spark.publishing.client import GatewayClient  # noqa: PLC0415

        client = GatewayClient(
            f"{url.scheme}://{url.netloc.rpartition('@')[2]}",
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            retry_s=retry_s,
            options="target, retry",
        )
        return _Events(client, events.EventsSender(client, run, address))
    from gateway.config.config import adapter_factories  # noqa: PLC0415
    from gateway.remote.devices import CoapDevices, MqttDevices  # noqa: PLC0415

    def message(one: Any) -> Message:
        return Message(
            address=address(one),
            body=msgspec.json.encode(one.values),
            time_ms=one.time_ms,
            device=one.device,
            id=events.id_of(run, one),
            key=one.device,
            type=events.TYPE,
            content_type="application/json",
        )

    if url.scheme == "coap":
        return _Devices(CoapDevices(target, retry_s=retry_s), message)
    factory: Any = adapter_factories()["mqtt"]
    return _Devices(MqttDevices(target, factory, retry_s=retry_s), message)


def _send(readings: Iterable[Any], sender: _Sender, *, paced: bool) -> tuple[Any, Callable[[], None]]:
    """Sends messages until their end, an error or a signal.

    Returns how far that went, and a function that tells it and raises the error.
    """
    import asyncio  # noqa: PLC0415 - only a sender needs it

    from spark.generator.pacing import Sent, send_due  # noqa: PLC0415 - an extra, and slow to load

    sent, began_s = Sent(), time.monotonic()
    failed: BaseException | None = None

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await send_due(readings, sender.send, sent, paced=paced, now_ms=_now_ms, sleep=asyncio.sleep)
        finally:
            await sender.close()

    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        failed = KeyboardInterrupt()
    except Exception as error:  # noqa: BLE001 - it is raised again, once it is told how far that went
        failed = error

    def ended() -> None:
        took_s = max(time.monotonic() - began_s, 1e-3)
        behind = f", {sent.lag_s:,.1f} s behind their times at most" if sent.lag_s >= BEHIND_S else ""
        typer.echo(f"{sent.messages:,} messages stored, {sent.messages / took_s:,.0f}/s{behind}")
        if failed is not None:
            raise failed

    return sent, ended


def _where(target: str) -> str:
    """Returns a URL without its user and password."""
    return re.sub("//[^/]*@", "//", target)


def _now_ms() -> int:
    return int(time.time() * 1_000)


@contextlib.contextmanager
def _loaded() -> Iterator[tuple[Any, Any]]:
    """Yields the modules of fleets and labels. Raises `SparkFailed` for each error of theirs."""
    try:
        from spark import errors  # noqa: PLC0415 - an extra, and slow to load
        from spark.generator import fleet, labels  # noqa: PLC0415

        yield fleet, labels
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    except errors.GatewayUnreachable as error:
        raise Unreachable(str(error)) from error
    except errors.SparkError as error:
        raise SparkFailed(str(error)) from error
