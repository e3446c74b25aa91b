"""The client's address behind a reverse proxy: read from the proxy's header, if the proxy is one of ours.

    X-Forwarded-For: 203.0.113.7, 10.0.0.2
    Forwarded: for="[2001:db8::7]:4711";proto=https, for=10.0.0.2     (RFC 7239)

Each proxy appends the address of its peer; the client may have made up anything in front of that. So a header is read
from its end: past the trusted proxies, to the first address that is not one.
"""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from gateway.domain.forwarding_settings import ForwardingConfig

UNKNOWN: Final = "unknown"  # the client behind a proxy that does not name it by an address

_PAIR: Final = re.compile(r'[ \t]*([A-Za-z0-9!#$%&\'*+.^_`|~-]+)=(?:"([^"\\]*)"|([^";,\s]*))[ \t]*')
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")

_Address = IPv4Address | IPv6Address


class ForwardingSettings:
    """The settings of `[forwarding]`. `header` is the name of the header that is read, in lower case."""

    def __init__(self, config: ForwardingConfig) -> None:
        self.header = config.header
        self._networks: Sequence[IPv4Network | IPv6Network] = [ip_network(one) for one in config.proxies]

    @staticmethod
    def of(config: ForwardingConfig) -> "ForwardingSettings | None":
        """Returns the settings in use; None where no proxy is trusted."""
        return ForwardingSettings(config) if config.proxies else None

    def trusts(self, host: str) -> bool:
        """Returns whether a peer is one of our proxies."""
        address = _address(host)
        return address is not None and self._is_ours(address)

    def client(self, said: str | None) -> str:
        """Returns the address of a proxy's client; `said` is the proxy's header, repeats joined by commas.

        "" where it says nothing: no client is behind it. `UNKNOWN` where that is no address.
        """
        found = ""
        for hop in self._hops(said or ""):
            address = _address(hop)
            found = UNKNOWN if address is None else str(address)
            if address is None or not self._is_ours(address):
                break
        return found

    def _hops(self, said: str) -> Iterator[str]:
        """Yields the hops, the nearest first."""
        for one in reversed(said.split(",")):
            if hop := one.strip():
                yield hop if self.header == "x-forwarded-for" else _node(hop)

    def _is_ours(self, address: _Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _node(element: str) -> str:
    """Returns the node that an element of Forwarded is for; "" where it does not say, or is not an element.

    A quoted text with a comma is read as two elements that are both invalid: the author of the text in front of a comma
    is unknown, and a quote opened there must not reach the text that our proxy has written behind it.
    """
    found = ""
    for pair in element.split(";"):
        said = _PAIR.fullmatch(pair)
        if said is None:
            return ""
        if said[1].lower() == "for":
            found = said[2] or said[3] or ""
    return found


def _address(text: str) -> _Address | None:
    """Returns an address, given with or without a port; an IPv4-mapped IPv6 address as IPv4."""
    host = text
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest and not _PORT.fullmatch(rest):
            return None
    elif text.count(":") == 1:
        host = _PORT.sub("", text)
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
