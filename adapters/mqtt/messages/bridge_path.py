"""Through which gateways a message has come, so that those that read each other do not send it around for ever.

A gateway, or a cluster of them, has an id. A bridge says its own in CONNECT, and a gateway answers that with its own in
CONNACK; nobody else is told one. What a bridge reads from a gateway has both ids added to a user property, the path.
Messages whose path has a bridge's own id have been there, and are not stored again. Other user properties stay as they
are, in their order. Only MQTT 5.0 can say all this.
"""

from typing import Final, TypeAlias

GATEWAY: Final = "headgate-gateway"  # a user property of CONNECT and CONNACK: who speaks
PATH: Final = "headgate-path"  # a user property of a PUBLISH: ids with spaces between, the first gateway's first
PATH_COUNT_MAX: Final = 16  # ids; a message that would have more goes no further
ID_BYTES_MAX: Final = 64  # of what somebody says that its id is

Pairs: TypeAlias = tuple[tuple[str, str], ...]


def introduction(gateway: str) -> Pairs:
    """The user properties of a CONNECT or CONNACK that say who speaks; "" says nothing."""
    return ((GATEWAY, gateway),) if gateway else ()


def introduced(user: Pairs) -> str:
    """The gateway that the user properties of a CONNECT or CONNACK name; "": none."""
    for name, value in user:
        if name == GATEWAY and value.isascii() and value.isalnum() and len(value) <= ID_BYTES_MAX:
            return value
    return ""


def extended(user: Pairs, *, upstream: str, own: str) -> Pairs | None:
    """The user properties of a message that comes from a gateway, "" for another broker, into our own.

    None: it has been here before, or in too many gateways.
    """
    ids = [one for name, value in user if name == PATH for one in value.split()]
    if own in ids:
        return None
    if not own or not (upstream or ids):
        return user
    ids += [one for one in dict.fromkeys((upstream, own)) if one and one not in ids]
    if len(ids) > PATH_COUNT_MAX:
        return None
    return (*[pair for pair in user if pair[0] != PATH], (PATH, " ".join(ids)))
