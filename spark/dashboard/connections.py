"""The HTTP server of the dashboard: waitress, whose places for connections are shared out by address.

Waitress accepts nothing more while it has its number of connections, and keeps one that says nothing. So connections
of one address would keep all others out: here the address that has most makes way, with the one that was idle longest.
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server

CONNECTIONS_COUNT_MAX = 256
CLOSING_COUNT_MAX = 64  # beyond them: connections that make way, and are not closed yet
SILENCE_S = 30  # that a connection without a request in progress may take
CLEANUP_S = 5  # between two looks for such
_NETWORK_BITS = 64  # of an address of IPv6: one host chooses the rest itself


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection."""

    def __init__(self, server: Any, sock: Any, addr: Any, adj: Adjustments, map: Any = None) -> None:
        super().__init__(server, sock, addr, adj, map=map)
        self.origin = origin_of(addr[0])
        make_way([one for one in server.active_channels.values() if not one.will_close])


def create(app: Callable[..., Any], **settings: Any) -> TcpWSGIServer:
    """Returns a server of a WSGI application; settings are waitress's."""
    server = create_server(
        app,
        connection_limit=CONNECTIONS_COUNT_MAX + CLOSING_COUNT_MAX,
        channel_timeout=SILENCE_S,
        cleanup_interval=CLEANUP_S,
        asyncore_use_poll=True,  # select() takes no file above 1,023
        **settings,
    )
    server.channel_class = _Channel
    return server


def make_way(channels: list[Any]) -> None:
    """Closes connections that are too many: of the address with most, those that were idle longest.

    One with a request in progress comes last.
    """
    while len(channels) > CONNECTIONS_COUNT_MAX:
        by_origin: dict[str, list[Any]] = {}
        for one in channels:
            by_origin.setdefault(one.origin, []).append(one)
        most = max(by_origin.values(), key=len)
        victim = min(most, key=lambda one: (bool(one.requests), one.last_activity))
        victim.will_close = True
        channels.remove(victim)


def origin_of(host: str) -> str:
    """Returns whose a connection is, by its address: a host's of IPv4, a network's of 64 bits of IPv6."""
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(int(address) >> (128 - _NETWORK_BITS))
