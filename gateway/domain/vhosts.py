"""Virtual hosts: namespaces of queues, exchanges and their addresses, isolated from each other.

Inside the gateway a queue or an exchange has one name, which is unique over all virtual hosts:

    of "/"        the name itself
    of others     amq.vhost/{vhost}/{name}      with `/` in the name of the virtual host as `%2F`

Names that begin with `amq.` are reserved, so no queue and no exchange of "/" has such a name. One that a client of "/"
asks for is `amq.vhost/%2F/{name}`, which nothing has: a name of one virtual host is never one of another. For access
rules and other protocols, a thing of another virtual host than "/" is below `$vhost/{vhost}/`, which no filter with a
leading wildcard matches.
"""

import re
from typing import Final

from gateway.domain.address import escape_level, unescape_level

DEFAULT_VHOST: Final = "/"
GENERATED: Final = "amq.gen-"  # queues that the gateway has named begin so
REPLIES: Final = "amq.rabbitmq.reply-to."  # and so those for answers to one connection (RabbitMQ's direct reply-to)
VHOST_ROOT: Final = "$vhost"  # the first level of all addresses of other virtual hosts
VHOST_BYTES_MAX: Final = 128  # of a name
_PREFIX: Final = "amq.vhost/"
_UNSOUND: Final = re.compile("[%\x00-\x1f\x7f]")


def check_vhost(vhost: str) -> str:
    """Returns the name; raises ValueError for one that no virtual host may have."""
    if not vhost or len(vhost.encode("utf-8", "surrogatepass")) > VHOST_BYTES_MAX:
        raise ValueError(f"the name of a virtual host has 1 to {VHOST_BYTES_MAX} bytes")
    if _UNSOUND.search(vhost) is not None:
        raise ValueError(f"the name of a virtual host holds no '%' and no control characters: {vhost!r}")
    return vhost


def in_vhost(vhost: str, name: str) -> str:
    """Returns the gateway's internal name for `name` in a virtual host."""
    if vhost == DEFAULT_VHOST and not name.startswith(_PREFIX):
        return name
    return f"{_PREFIX}{escape_level(vhost)}/{name}"


def split_name(inside: str) -> tuple[str, str]:
    """Returns the virtual host and the name there: inverts `in_vhost`."""
    if not inside.startswith(_PREFIX):
        return DEFAULT_VHOST, inside
    vhost, _, name = inside[len(_PREFIX) :].partition("/")
    return unescape_level(vhost), name


def vhost_of(inside: str) -> str:
    """Returns the virtual host of a name inside the gateway."""
    return split_name(inside)[0]


def local_name(inside: str) -> str:
    """Returns a name as it is within its virtual host."""
    return split_name(inside)[1]


def said(inside: str) -> str:
    """Returns the words for a thing in texts for clients, as RabbitMQ's: `'orders' in vhost 'shop'`."""
    vhost, name = split_name(inside)
    return f"'{name}' in vhost '{vhost}'"


def vhost_address(vhost: str) -> str:
    """Returns the address above all addresses of a virtual host other than "/"."""
    return f"{VHOST_ROOT}/{escape_level(vhost)}"


def vhost_of_address(address: str) -> str:
    """Returns the virtual host that a message at an address belongs to."""
    levels = address.split("/", 2)
    return unescape_level(levels[1]) if levels[0] == VHOST_ROOT and len(levels) == 3 else DEFAULT_VHOST


# ---- names in access rules


def queue_address(inside: str) -> str:
    """Returns the address of a queue in access rules. Those that the gateway names are below `$queue/amq.gen/`.

    So are queues for answers.

    Of another virtual host than "/" it is `$vhost/{vhost}/queue/{name}`.
    """
    vhost, name = split_name(inside)
    if not name or name.startswith((GENERATED, REPLIES)):
        name = f"amq.gen/{name.removeprefix(GENERATED).removeprefix(REPLIES)}"
    return f"$queue/{name}" if vhost == DEFAULT_VHOST else f"{vhost_address(vhost)}/queue/{name}"


def exchange_address(inside: str) -> str:
    """Returns the address of an exchange in access rules; `$vhost/{vhost}/exchange/{name}` as for queues."""
    vhost, name = split_name(inside)
    return f"$exchange/{name}" if vhost == DEFAULT_VHOST else f"{vhost_address(vhost)}/exchange/{name}"
