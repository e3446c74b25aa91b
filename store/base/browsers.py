"""Browsers: which pages may use the gateway, by their Origin and the Host that they request.

A page of any site can send requests to the machine it is shown on, and open a WebSocket to it. Its browser says whose
page it is, and no page can keep it from saying so. A site can also let a name of its own lead to this machine (DNS
rebinding): then the gateway is the origin of its pages. `knows_host` finds such a name.
"""

import re
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"
# Browsers send at least one of these headers with each request, and a page cannot keep them from it; a tool that sends
# none is no browser. Sec-Fetch-Site alone is not enough: it is sent to trustworthy origins only.
BROWSERS: Final = ("origin", "sec-fetch-site", "sec-fetch-mode", "referer", "accept-language")
_PORT: Final = re.compile(r":[0-9]*\Z")


def allows_origin(origin: str, allowed: Collection[str]) -> bool:
    """Returns whether an operator has allowed pages of this origin, or of all."""
    return origin in allowed or ANY in allowed


def same_origin(origin: str, host: str | None) -> bool:
    """Returns whether a page came from where its request goes, whatever the scheme: a proxy may have changed it."""
    try:
        return host is not None and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def knows_host(host: str, known: Collection[str]) -> bool:
    """Returns whether the Host of a request is an address, localhost or one of the `known` names, on any port."""
    name = _PORT.sub("", host).lower()
    return name == "localhost" or _is_address(name) or name in {one.lower() for one in known}


def page_mistake(
    origins: Sequence[str],
    hosts: Sequence[str],
    *,
    allowed: Collection[str],
    known: Collection[str],
    local: bool,
    settings: str,
) -> tuple[int, str] | None:
    """Returns why a WebSocket must not be opened (RFC 6455, 10.2), as a status of HTTP and a text; None: it may be.

    `origins` and `hosts` are the lines of Origin and Host. Tools that are no browsers say nothing of an origin, or name
    the gateway itself. A client on this machine (`local`) may be let in without a password: a page then has to be of
    this machine by a name that is its own. `allowed` and `known` are `websocket_origins` and `websocket_hosts` of the
    section `settings`.
    """
    if len(hosts) != 1 or len(origins) > 1:
        return 400, "host: is there once, origin: at most once"
    if not origins or allows_origin(origins[0], allowed):
        return None
    if not same_origin(origins[0], hosts[0]):
        return 403, f"origin: {origins[0][:128]} is not one of {settings}.websocket_origins"
    if local and not knows_host(hosts[0], known):
        return 403, f"host: {hosts[0][:128]} is not one of {settings}.websocket_hosts"
    return None


def _is_address(name: str) -> bool:
    """Returns whether a host is an address itself, an IPv6 one in brackets (RFC 3986, 3.2.2)."""
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True
