"""The gateways that a message has come through, so that those that read each other do not send it around forever.

A gateway, or a cluster of them, has an id. Over MQTT 5.0 a bridge says its own in CONNECT, and a gateway answers that
with its own in CONNACK; over AMQP 0-9-1 a gateway says it in the server properties of connection.start. A message that
a bridge reads from a gateway has both ids added to its path: a user property, or a header. One that a bridge forwards
has its own gateway's id added. Messages whose path has a gateway's own id have been there, and are not stored again.
Other properties stay as they are, in their order. MQTT 3.1.1 has no place for any of this.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

GATEWAY: Final = "headgate-gateway"  # a user property of CONNECT and CONNACK, a server property: who speaks
PATH: Final = (
    "headgate-path"  # a user property or header of messages: ids with spaces between, the first gateway's first
)
PATH_COUNT_MAX: Final = 16  # ids; a message that would have more goes no further
ID_BYTES_MAX: Final = 64  # of the id that another gateway claims

Pairs: TypeAlias = tuple[tuple[str, str], ...]


def introduction(gateway: str) -> Pairs:
    """Returns the user properties of a CONNECT or CONNACK that say who speaks; "" says nothing."""
    return ((GATEWAY, gateway),) if gateway else ()


def introduced(user: Pairs) -> str:
    """Returns the gateway that the user properties of a CONNECT or CONNACK name; "": none."""
    for name, value in user:
        if name == GATEWAY and is_gateway_id(value):
            return value
    return ""


def is_gateway_id(text: str) -> bool:
    """Returns whether a text that a peer has sent can be the id of a gateway."""
    return text.isascii() and text.isalnum() and len(text) <= ID_BYTES_MAX


def extended(user: Pairs, *, upstream: str, own: str) -> Pairs | None:
    """Returns the user properties of a message that comes from a gateway, "" for another broker, into our own.

    None: it has been here before, or in too many gateways.
    """
    ids = [one for name, value in user if name == PATH for one in value.split()]
    path = extended_path(ids, upstream=upstream, own=own)
    if path is None:
        return None
    if path == ids:
        return user
    return (*[pair for pair in user if pair[0] != PATH], (PATH, " ".join(path)))


def extended_path(ids: Sequence[str], *, upstream: str, own: str) -> list[str] | None:
    """Returns the path of a message that comes from a gateway, "" for another broker, into our own; None as above."""
    if own in ids:
        return None
    if not own or not (upstream or ids):
        return list(ids)
    path = [*ids, *[one for one in dict.fromkeys((upstream, own)) if one and one not in ids]]
    return None if len(path) > PATH_COUNT_MAX else path


def forwarded_path(ids: Sequence[str], *, upstream: str, own: str) -> list[str] | None:
    """Returns the path of a message that goes from our own gateway to another one, "" for another broker.

    None: it has been there before, or in too many gateways.
    """
    if upstream and upstream in ids:
        return None
    path = [*ids, own] if own and own not in ids else list(ids)
    return None if len(path) > PATH_COUNT_MAX else path
