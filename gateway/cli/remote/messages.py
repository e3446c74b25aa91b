"""`headgate pub`, `sub`, `find` and `topics`: the commands that speak to a running gateway."""

import base64
import sys
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import typer

from gateway.cli.remote.options import (
    ADMIN_PORT,
    HTTP_PORT,
    AdminPortOption,
    CaFileOption,
    GatewayLocation,
    HostOption,
    OffsetOption,
    PortOption,
    UrlOption,
    at_gateway,
    gateway_location,
    gateway_url,
    host_of,
    moved,
)
from gateway.remote.http import RemoteGateway, ServerSentEvent


class _CloudEvent(msgspec.Struct):
    """The part of an event that is shown; `data` is the value as it stands there."""

    subject: str = ""
    datacontenttype: str = "application/json"
    data: msgspec.Raw = msgspec.Raw()
    data_base64: str | None = None


WhereOption = Annotated[
    str | None, typer.Option("--where", "-w", help="Only those this is true of, such as \"qos > 0 AND unit = 'C'\".")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Position and address in front.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Each as a CloudEvent in JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(pub)
    app.command()(sub)
    app.command()(find)
    app.command()(topics)


@at_gateway
def pub(
    address: Annotated[str, typer.Argument(help="Such as telemetry/site1/dev42/temp.")],
    body: Annotated[str, typer.Argument(help="The body; - reads it from standard input.")] = "-",
    *,
    at: GatewayLocation,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="What subscribers may rely on.")] = 1,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Keep it for those who subscribe later.")] = False,
    content_type: Annotated[str | None, typer.Option("--content-type", "-t", help="Such as application/json.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Publish it so many times.")] = 1,
) -> None:
    """Publish a message; returns when it is on disk."""
    data = sys.stdin.buffer.read() if body == "-" else body.encode("utf-8", "surrogateescape")
    with RemoteGateway(at.url, ca_file=at.ca_file) as gateway:
        for _ in range(count):
            gateway.publish(address, data, qos=qos, retain=retain, content_type=content_type)


@at_gateway
def sub(
    pattern: Annotated[str, typer.Argument(metavar="FILTER", help="Such as telemetry/+/dev42/#.")],
    *,
    at: GatewayLocation,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many messages.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="The position after which to begin, as printed by --verbose.")
    ] = None,
    where: WhereOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the bodies of messages as they are published, one a line, until interrupted."""
    out = sys.stdout.buffer
    with suppress(KeyboardInterrupt), RemoteGateway(at.url, ca_file=at.ca_file) as gateway:
        for seen, event in enumerate(gateway.subscribe(pattern, start=start, where=where), 1):
            out.write(event.data.replace("\n", " ").encode() if as_json else _shown(event, verbose=verbose))
            out.write(b"\n")
            out.flush()
            if seen == count:
                break


@at_gateway
def find(
    *,
    at: GatewayLocation,
    key: Annotated[str | None, typer.Option("--key", "-k", help="By ordering key; the device, where none is.")] = None,
    address: Annotated[str | None, typer.Option("--address", "-a", help="By address.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", "-i", help="By id.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Stored then or later: RFC 3339, or ms of 1970.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Stored before.")] = None,
    where: WhereOption = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the bodies of stored messages, newest first, one a line."""
    asked = {"key": key, "address": address, "id": message_id, "from": since, "to": until, "where": where}
    out = sys.stdout.buffer
    with RemoteGateway(at.url, ca_file=at.ca_file) as gateway:
        for event in gateway.find(count, **{name: text for name, text in asked.items() if text is not None}):
            out.write(event.data.encode() if as_json else _shown(event, verbose=verbose))
            out.write(b"\n")
        out.flush()


def topics(
    prefix: Annotated[
        str | None, typer.Argument(help="List the addresses that begin so and were published to; / for all.")
    ] = None,
    *,
    host: HostOption = "127.0.0.1",
    port: PortOption = HTTP_PORT,
    admin_port: AdminPortOption = ADMIN_PORT,
    port_offset: OffsetOption = 0,
    url: UrlOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List the topics with their queues and records, or the addresses below a prefix."""
    if prefix is not None:
        at = gateway_location(host=host, port=port, port_offset=port_offset, url=url, ca_file=ca_file)
        with RemoteGateway(at.url, ca_file=at.ca_file) as gateway:
            for address in gateway.addresses("" if prefix == "/" else prefix):
                typer.echo(address)
        return
    with RemoteGateway(gateway_url(None, host_of(url) if url else host, moved(admin_port, port_offset))) as admin:
        status = admin.status()
    if not sys.stdout.isatty():
        for topic in status.topics:
            typer.echo(f"{topic.name}\t{topic.queues}\t{_records(topic)}\t{topic.config}".rstrip())
        return
    from rich.console import Console  # noqa: PLC0415 - an import for terminals alone
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic")
    table.add_column("queues", justify="right")
    table.add_column("records", justify="right")
    table.add_column("configured")
    for topic in status.topics:
        table.add_row(topic.name, str(topic.queues), _records(topic, ","), topic.config)
    Console().print(table if status.topics else "no topics yet")


def _shown(event: ServerSentEvent, *, verbose: bool) -> bytes:
    """Returns a message's body as it was published, from the CloudEvent that the event holds (JSON format, 3.1).

    Of JSON no more is lost than CR between its tokens, and white space around the whole.
    """
    try:
        found = msgspec.json.decode(event.data, type=_CloudEvent)
        data, subject = bytes(found.data), found.subject
        if found.data_base64 is not None:
            body = base64.b64decode(found.data_base64)
        elif data.startswith(b'"') and "json" not in found.datacontenttype:
            body = msgspec.json.decode(data, type=str).encode()
        else:
            body = data
    except ValueError:
        body, subject = event.data.encode(), ""
    return f"{event.id}\t{subject}\t".encode() + body if verbose else body


def _records(topic: Any, grouping: str = "") -> str:
    """Returns how many records a topic holds, as far as its queues answer."""
    count = f"{topic.records:{grouping}}"
    return f"{count} and {topic.unknown} queues that do not answer" if topic.unknown else count
