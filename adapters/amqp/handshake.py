"""The opening of a connection: who we are, who the peer is, and the limits both keep (AMQP 0-9-1, 2.2.4)."""

from enum import Enum
from typing import Any, Final, NamedTuple

from adapters.amqp.codec.wire import ACCESS_REFUSED, FRAME_OVERHEAD, NOT_ALLOWED, SYNTAX_ERROR, Table, read_table
from adapters.amqp.options import FRAME_MIN, AmqpOptions
from gateway.domain.bridge_path import GATEWAY
from gateway.domain.errors import ProtocolError
from gateway.port.adapter import Authenticate, ConnectionInfo

SERVER_PROPERTIES: Final[Table] = {
    "capabilities": {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
        "x-delayed-message": True,
        "x-consistent-hash": True,
    },
    "product": "Headgate",
    "platform": "Python",
    "information": "AMQP 0-9-1 into one durable log",
}


def server_properties(gateway: str) -> Table:
    """Returns the properties that connection.start shows, with the gateway's id if it has one."""
    return {**SERVER_PROPERTIES, GATEWAY: gateway} if gateway else SERVER_PROPERTIES


class Phase(Enum):
    """The phases of a connection."""

    HEADER = "header"  # the protocol header is awaited
    START = "start"  # start-ok is
    AUTHENTICATING = "authenticating"  # the gateway's answer is
    TUNE = "tune"  # tune-ok is
    OPENING = "opening"  # open is
    OPEN = "open"
    CLOSING = "closing"  # we have sent close; close-ok is awaited
    CLOSED = "closed"


class Limits(NamedTuple):
    """The limits that both peers keep."""

    channel_max: int
    payload_max: int  # bytes of a frame without its overhead
    heartbeat_s: int  # 0: none


def mechanisms(info: ConnectionInfo) -> bytes:
    """Returns the mechanisms that a client may use; EXTERNAL for one that has shown a certificate."""
    return b"PLAIN AMQPLAIN EXTERNAL" if info.certificate is not None else b"PLAIN AMQPLAIN"


def authentication(mechanism: str, response: bytes, offered: bytes) -> Authenticate:
    """The question who this is. Raises `ProtocolError` (ACCESS_REFUSED, SYNTAX_ERROR).

    PLAIN is RFC 4616; AMQPLAIN a field table with LOGIN and PASSWORD, without its size; EXTERNAL a name or none
    (RFC 4422, A).
    """
    if mechanism.encode() not in offered.split():
        raise ProtocolError(ACCESS_REFUSED, f"mechanism {mechanism[:32]!r} is not one of {offered.decode()}")
    if mechanism == "EXTERNAL":
        try:
            return Authenticate(mechanism="external", username=response.decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(SYNTAX_ERROR, "the response of EXTERNAL is malformed") from error
    username, password = _credentials(mechanism, response)
    return Authenticate(mechanism="password", username=username, password=password)


def renewed(login: Authenticate, secret: Any) -> Authenticate:
    """Returns the check of a user's new password. Raises `ProtocolError` (NOT_ALLOWED) if the login had none."""
    if login.mechanism != "password":
        raise ProtocolError(NOT_ALLOWED, "a client authenticated by certificate has no secret to update")
    return Authenticate(mechanism="password", username=login.username, password=bytes(secret))


def _credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """User name and password."""
    try:
        if mechanism == "PLAIN":
            authorization, name, password = response.split(b"\0")
            if authorization not in (b"", name):
                raise ProtocolError(ACCESS_REFUSED, "nobody may act for another user")
            return name.decode(), password
        table, _ = read_table(len(response).to_bytes(4, "big") + response, 0)
        name, password = table["LOGIN"], table["PASSWORD"]
        if isinstance(name, str) and isinstance(password, str | bytes):
            return name, password.encode() if isinstance(password, str) else password
        raise ValueError("LOGIN and PASSWORD are texts")
    except (ValueError, LookupError) as error:
        raise ProtocolError(SYNTAX_ERROR, f"the response of {mechanism} is malformed") from error


def negotiate(options: AmqpOptions, *, channel_max: int, frame_max: int, heartbeat_s: int) -> Limits:
    """Returns the limits by tune-ok; 0 leaves a limit to our proposal. Raises `ProtocolError` (NOT_ALLOWED)."""
    if frame_max and not FRAME_MIN <= frame_max <= options.frame_max:
        raise ProtocolError(NOT_ALLOWED, f"frame_max {frame_max} is not within {FRAME_MIN} and {options.frame_max}")
    if channel_max > options.channel_max:
        raise ProtocolError(NOT_ALLOWED, f"channel_max {channel_max} is above {options.channel_max}")
    return Limits(
        channel_max=channel_max or options.channel_max,
        payload_max=(frame_max or options.frame_max) - FRAME_OVERHEAD,
        heartbeat_s=heartbeat_s,
    )
