"""Rights by names: the permissions of RabbitMQ, regular expressions that are found in names of queues and exchanges.

They are for one virtual host and allow; a deny of any rule wins. RabbitMQ's permissions, and their meaning here:

    configure   manage of queues and exchanges
    write       publish to exchanges; the default exchange is called amq.default
    read        subscribe of queues, and of messages published to exchanges
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from gateway.domain.access_filters import MANY, ONE, Levels
from gateway.domain.address import unescape_level
from gateway.domain.vhosts import DEFAULT_VHOST, GENERATED, check_vhost, vhost_address

PATTERN_CHARS_MAX: Final = 4_096
DEFAULT_EXCHANGE: Final = "amq.default"  # the name, in patterns, of the exchange without a name
TOPIC_EXCHANGE: Final = "amq.topic"
_EVERYTHING: Final = frozenset({".*", "^.*", ".*$", "^.*$"})  # patterns that are certainly found in all names
_WILD: Final = frozenset({ONE, MANY})
_GENERATED_LEVEL: Final = "amq.gen"  # in front of the rest of a name that the gateway has made

_Pattern = Annotated[str, Meta(max_length=PATTERN_CHARS_MAX)]


class VhostPermission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The permissions of a user in one virtual host. An empty pattern allows nothing, as in RabbitMQ."""

    vhost: str
    configure: _Pattern = ""
    write: _Pattern = ""
    read: _Pattern = ""


class NameClause(NamedTuple):
    """Addresses that name a thing below some levels: allowed where a pattern is found in the name."""

    below: Levels
    pattern: re.Pattern[str]
    exchange: bool  # the first level names an exchange, and the rest is a routing key; else all of it is the name
    origin: str

    def matches(self, address: Sequence[str]) -> bool:
        """Returns whether it allows an address, given by its levels."""
        count = len(self.below)
        return len(address) > count and tuple(address[:count]) == self.below and self._allows(address[count:])

    def meets(self, wanted: Levels) -> bool:
        """Returns whether it may allow an address that a filter matches."""
        for i, level in enumerate(self.below):
            if i == len(wanted) or (i == 0 and wanted[0] in _WILD):
                return False  # a leading wildcard does not match `$`
            if wanted[i] == MANY:
                return True
            if wanted[i] not in (ONE, level):
                return False
        rest = wanted[len(self.below) :]
        return bool(rest) and (not _WILD.isdisjoint(rest[:1] if self.exchange else rest) or self._allows(rest))

    def covers(self, wanted: Levels) -> bool:
        """Returns whether it certainly allows all that a filter matches, which may have `#` anywhere."""
        count = len(self.below)
        rest = wanted[count:]
        if not rest or wanted[:count] != self.below:
            return False
        if _WILD.isdisjoint(rest[:1] if self.exchange else rest):
            return self._allows(rest)
        return self.pattern.pattern in _EVERYTHING

    def _allows(self, rest: Sequence[str]) -> bool:
        if self.exchange:
            name = unescape_level(rest[0]) or DEFAULT_EXCHANGE
        elif rest[0] == _GENERATED_LEVEL and len(rest) > 1:
            name = GENERATED + "/".join(rest[1:])
        else:
            name = "/".join(rest)
        return self.pattern.search(name) is not None


def names_of(said: Sequence[VhostPermission], action: str, user: str) -> tuple[NameClause, ...]:
    """Returns the names that permissions allow a user for one action: "publish", "subscribe" or "manage"."""
    found: list[NameClause] = []
    for one in said:
        pattern = {"manage": one.configure, "publish": one.write, "subscribe": one.read}[action]
        if pattern:
            clause = NameClause((), re.compile(pattern), False, f"vhost {one.vhost!r} of user {user}")
            found += [clause._replace(below=_below(one.vhost, at), exchange=at == "amqp") for at in _ROOTS[action]]
    return tuple(found)


_ROOTS: Final = {
    "manage": ("queue", "exchange"),
    "publish": ("amqp", "queue", "exchange"),  # of queues and exchanges: to bind them
    "subscribe": ("queue", "amqp"),
}


def _below(vhost: str, root: str) -> Levels:
    return (f"${root}",) if vhost == DEFAULT_VHOST else (*vhost_address(vhost).split("/"), root)


def reaches_everybodys(said: Sequence[VhostPermission], action: str) -> bool:
    """Returns whether permissions are for `amq.topic` of "/", whose routing keys are the addresses of all protocols."""
    patterns = [{"publish": one.write, "subscribe": one.read}.get(action, "") for one in said if one.vhost == "/"]
    return any(pattern and re.search(pattern, TOPIC_EXCHANGE) for pattern in patterns)


def name_mistakes(said: Sequence[VhostPermission]) -> Iterator[str]:
    """Yields the mistakes of permissions."""
    for one in said:
        try:
            check_vhost(one.vhost)
            for pattern in (one.configure, one.write, one.read):
                re.compile(pattern)
        except ValueError as error:
            yield str(error)
        except re.error as error:
            yield f"vhost {one.vhost!r}: {error.pattern!r} is no regular expression: {error}"
