"""The places of sinks: not on this machine, and in no private network, unless the configuration allows it.

A name is resolved once for each connection, and the connection goes to an address that was checked, so that a name that
leads elsewhere a moment later (DNS rebinding) leads nowhere.
"""

import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

from gateway.domain.errors import Cause, Refusal
from gateway.push.lookups import NameLookups
from gateway.push.settings import SubscriptionsConfig

SINK_CHARS_MAX: Final = 2_048
_SECURE: Final = frozenset({"https", "mqtts", "amqps"})  # schemes over TLS
_NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an address of IPv4
_Address: TypeAlias = IPv4Address | IPv6Address
_Connection = TypeVar("_Connection")


class SinkRefused(Refusal):
    """Raised for a sink where nothing may be sent."""

    def __init__(self, why: str) -> None:
        super().__init__(Cause.FORBIDDEN, f"sink: {why}")
        self.attribute = "sink"


class SinkUnreachable(Exception):
    """Raised where a sink is not found, or did not answer."""


class SinkGuard:
    """Says which sinks are allowed, and looks their names up."""

    def __init__(self, config: SubscriptionsConfig, lookups: NameLookups | None = None) -> None:
        self.lookups = lookups or NameLookups()
        self._plain = config.plain_http
        self._networks = []
        self._names: list[str] = []
        for one in config.private_sinks:
            try:
                self._networks.append(ip_network(one))
            except ValueError:
                self._names.append(one.lower())

    def parse(self, sink: str, schemes: Collection[str]) -> SplitResult:
        """Returns the parts of a sink's URL. Raises `Refusal` (MALFORMED) for none of these schemes, `SinkRefused`."""
        try:
            if len(sink) > SINK_CHARS_MAX or not sink.isascii() or not sink.isprintable() or " " in sink:
                raise ValueError(f"up to {SINK_CHARS_MAX} visible ASCII characters are allowed")
            url = urlsplit(sink)
            host, port = url.hostname, url.port
        except ValueError as error:
            raise _malformed(f"is no URL: {error}") from error
        if url.scheme not in schemes or not host or port == 0:
            raise _malformed(f"is no absolute URL of the schemes {' and '.join(schemes)}")
        if url.username is not None or url.password is not None:
            raise _malformed("holds a user name; sinkcredential is for that")
        if url.fragment:
            raise _malformed("has a fragment, which no request carries")
        literal = _literal(host)
        if literal is not None and not self._allows(host, literal):
            raise SinkRefused(_not_allowed(str(literal)))
        if url.scheme not in _SECURE and not self._plain and not self._is_private(host, literal):
            secure = f"is not {url.scheme}s"
            raise SinkRefused(
                f"{secure}; subscriptions.plain_http allows {url.scheme}, subscriptions.private_sinks a host"
            )
        return url

    def allowed(self, host: str, found: Sequence[str]) -> list[str]:
        """Returns those addresses of a host that may be connected to. Raises `SinkRefused` where none may."""
        kept = [text for text in found if self._allows(host, ip_address(text.partition("%")[0]))]
        if not kept:
            raise SinkRefused(_not_allowed(host))  # and not its address: names of a private network are not told
        return kept

    def _is_private(self, host: str, literal: _Address | None) -> bool:
        """Returns whether the configuration names a host, or the network of an address."""
        name = host.lower().rstrip(".")
        if literal is not None and any(literal in network for network in self._networks):
            return True
        return any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in self._names)

    def _allows(self, host: str, address: _Address) -> bool:
        plain = _unwrapped(address)
        if self._is_private(host, plain):
            return True
        if isinstance(plain, IPv6Address) and plain.is_site_local:  # deprecated (RFC 3879), and still of a site's own
            return False
        return plain.is_global and not (plain.is_multicast or plain.is_reserved or plain.is_unspecified)


async def resolve(guard: SinkGuard, host: str) -> list[str]:
    """Returns the addresses of a host that may be connected to. Raises `SinkRefused`, `SinkUnreachable`."""
    if _literal(host) is not None:
        return guard.allowed(host, [host])
    try:
        found = await guard.lookups.addresses(host)
    except (OSError, UnicodeError) as error:
        raise SinkUnreachable(f"{host} is not found: {error}") from error
    return guard.allowed(host, found)


async def connect_checked(
    guard: SinkGuard,
    host: str,
    connect: Callable[[str], Awaitable[_Connection]],
    *,
    failures: tuple[type[Exception], ...],
) -> _Connection:
    """Resolves a host once, and connects to the first of its addresses that may be connected to and answers.

    `connect` connects to an address, and raises one of `failures` where it cannot. Raises `SinkRefused`,
    `SinkUnreachable`, and the failure at the last address.
    """
    addresses = await resolve(guard, host)
    for address in addresses[:-1]:
        with contextlib.suppress(*failures):
            return await connect(address)
    return await connect(addresses[-1])


def _unwrapped(address: _Address) -> _Address:
    """Returns the IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _literal(host: str) -> _Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _not_allowed(where: str) -> str:
    return f"{where} is on this machine or in a private network; subscriptions.private_sinks allows such sinks"


def _malformed(why: str) -> Refusal:
    return Refusal(Cause.MALFORMED, f"sink: {why}")
