"""The options that say where a running gateway is."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from store.base.process_errors import ConfigError

HTTP_PORT, ADMIN_PORT = 8080, 8088
_PORT_MAX = 65_535

HostOption = Annotated[str, typer.Option("--host", help="Where the gateway is.")]
PortOption = Annotated[int, typer.Option("--port", help="Its HTTP port.", min=1, max=65_535)]
AdminPortOption = Annotated[int, typer.Option("--admin-port", help="Its admin port.", min=1, max=65_535)]
OffsetOption = Annotated[int, typer.Option("--port-offset", help="The gateway's own port offset.", min=0)]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Its HTTP base URL, in place of host and port.", envvar="HEADGATE_URL")
]
CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        help="PEM of the authorities of --url with https.",
        show_default="the system's, or of SSL_CERT_FILE",
    ),
]


class GatewayLocation(NamedTuple):
    """The base URL of a gateway's HTTP port, and the file of its certificate's authorities."""

    url: str
    ca_file: Path | None


def gateway_url(url: str | None, host: str, port: int) -> str:
    """Returns the base URL that the options of a command say."""
    if url:
        return url if "://" in url else f"http://{url}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def host_of(url: str) -> str:
    """Returns the host of a base URL. Raises `ConfigError`."""
    try:
        host = urlsplit(gateway_url(url, "", 0)).hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError("--url: names no host; write http://host:port")
    return host


def _giving(locate: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that gives a command the options of `locate`; the command takes its result as `at`."""
    options = inspect.signature(locate).parameters

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            location = {name: given.pop(name) for name in options}
            command(at=locate(**location), **given)

        signature = inspect.signature(command)
        own = [one for one in signature.parameters.values() if one.name != "at"]
        run.__signature__ = signature.replace(parameters=[*own, *options.values()])  # type: ignore[attr-defined]
        return run

    return give


def moved(port: int, offset: int) -> int:
    """Returns a port with the gateway's port offset. Raises `ConfigError` beyond the largest one."""
    if port + offset > _PORT_MAX:
        raise ConfigError(f"option port-offset cannot be {offset}: port {port} would be {port + offset}")
    return port + offset


def gateway_location(
    *,
    host: HostOption = "127.0.0.1",
    port: PortOption = HTTP_PORT,
    port_offset: OffsetOption = 0,
    url: UrlOption = None,
    ca_file: CaFileOption = None,
) -> GatewayLocation:
    """Returns where the HTTP port is, by a command's options. Raises `ConfigError`."""
    if ca_file is not None:
        from gateway.base.client_tls import ca_file_mistake  # noqa: PLC0415 - loads ssl

        if mistake := ca_file_mistake(ca_file):
            raise ConfigError(f"--ca-file: {mistake}")
    return GatewayLocation(gateway_url(url, host, port if url else moved(port, port_offset)), ca_file)


at_gateway = _giving(gateway_location)


@_giving
def at_admin_port(
    *, host: HostOption = "127.0.0.1", admin_port: AdminPortOption = ADMIN_PORT, port_offset: OffsetOption = 0
) -> str:
    """Gives a command the options that say where the admin port is; the command takes its URL as `at`."""
    return gateway_url(None, host, moved(admin_port, port_offset))
