"""The options that say where a running gateway is."""

from typing import Annotated

import typer

HTTP_PORT, ADMIN_PORT = 8080, 8088

HostOption = Annotated[str, typer.Option("--host", help="Where the gateway is.")]
PortOption = Annotated[int, typer.Option("--port", help="Its HTTP port.", min=1, max=65_535)]
OffsetOption = Annotated[int, typer.Option("--port-offset", help="The gateway's own port offset.", min=0)]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Its HTTP base URL, in place of host and port.", envvar="HEADGATE_URL")
]


def gateway_url(url: str | None, host: str, port: int) -> str:
    """Returns the base URL that the options of a command say."""
    if url:
        return url if "://" in url else f"http://{url}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
