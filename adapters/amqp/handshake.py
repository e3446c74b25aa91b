"""The methods of channel 0: the opening of a connection, and its close (AMQP 0-9-1, 2.2.4).

The opening says who we are, who the peer is, and which limits both keep.
"""

from enum import Enum
from typing import Any, Final, NamedTuple

from pamqp.base import Frame
from pamqp.commands import Connection as Methods

from adapters.amqp.blocking import Blocking
from adapters.amqp.codec.wire import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    FRAME_OVERHEAD,
    NOT_ALLOWED,
    PROTOCOL_HEADER,
    PROTOCOL_HEADERS,
    REPLY_CODES,
    SYNTAX_ERROR,
    Table,
    method_frame,
    read_table,
)
from adapters.amqp.connection_output import ConnectionOutput
from adapters.amqp.keepalive import Keepalive
from adapters.amqp.options import FRAME_MIN, AmqpOptions
from adapters.amqp.publishing import targets_of
from gateway.domain.bridge_path import GATEWAY
from gateway.domain.errors import Cause, ProtocolError
from gateway.domain.principal import Principal
from gateway.domain.vhosts import DEFAULT_VHOST
from gateway.port.adapter import Authenticate, ConnectionInfo, Outcome
from gateway.port.queues import OpenVhost

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
    # Clients look here for the extensions of RabbitMQ that depart from the specification: kombu, and so Celery, asks
    # for one prefetch of all consumers of a channel, which it can change, only from a RabbitMQ of 3.3 to 3.13.
    "product": "RabbitMQ",
    "version": "3.13.0",
    "platform": "Headgate",
    "information": "Headgate: AMQP 0-9-1 into one durable log, as RabbitMQ speaks it",
}


def server_properties(gateway: str) -> Table:
    """Returns the properties that connection.start shows, with the gateway's id if it has one."""
    return {**SERVER_PROPERTIES, GATEWAY: gateway} if gateway else SERVER_PROPERTIES


class Phase(Enum):
    """The phases of a connection; clients read the values."""

    HEADER = "header"  # the protocol header is awaited
    START = "starting"  # start-ok is
    AUTHENTICATING = "authenticating"  # the gateway's answer is
    TUNE = "tuning"  # tune-ok is
    OPENING = "opening"  # open is
    OPEN = "running"
    CLOSING = "closing"  # we have sent close; close-ok is awaited
    CLOSED = "closed"


ENDING: Final = (Phase.CLOSING, Phase.CLOSED)


class TuneLimits(NamedTuple):
    """The limits that both peers keep."""

    channel_max: int
    payload_max: int  # bytes of a frame without its overhead
    heartbeat_s: int  # 0: none


def mechanisms(info: ConnectionInfo) -> bytes:
    """Returns the mechanisms that a client may use; EXTERNAL for one that has shown a certificate."""
    return b"PLAIN AMQPLAIN EXTERNAL" if info.certificate is not None else b"PLAIN AMQPLAIN"


def authentication(mechanism: str, response: bytes, offered: bytes) -> Authenticate:
    """Returns the question who this is. Raises `ProtocolError` (ACCESS_REFUSED, SYNTAX_ERROR).

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
    """Returns user name and password."""
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


def negotiate(options: AmqpOptions, *, channel_max: int, frame_max: int, heartbeat_s: int) -> TuneLimits:
    """Returns the limits by tune-ok; 0 leaves a limit to our proposal. Raises `ProtocolError` (NOT_ALLOWED)."""
    if 0 < frame_max < FRAME_MIN:
        why = f"negotiated frame_max = {frame_max} is lower than the minimum allowed value ({FRAME_MIN})"
        raise ProtocolError(NOT_ALLOWED, why)
    for name, value, most in (
        ("frame_max", frame_max, options.frame_max),
        ("channel_max", channel_max, options.channel_max),
    ):
        if value > most:
            why = f"negotiated {name} = {value} is higher than the maximum allowed value ({most})"
            raise ProtocolError(NOT_ALLOWED, why)
    return TuneLimits(
        channel_max=channel_max or options.channel_max,
        payload_max=(frame_max or options.frame_max) - FRAME_OVERHEAD,
        heartbeat_s=heartbeat_s,
    )


class Handshake:
    """The phase of one connection, and the terms that its handshake has agreed: the peer's user, and the limits.

    The connection passes in the methods of channel 0.
    """

    __slots__ = (
        "_blocking",
        "_keepalive",
        "_login",
        "_mechanism",
        "_mechanisms",
        "_output",
        "_reads_refusal",
        "_server_properties",
        "limits",
        "phase",
        "principal",
    )

    def __init__(
        self, output: ConnectionOutput, info: ConnectionInfo, *, keepalive: Keepalive, blocking: Blocking
    ) -> None:
        options = output.options
        self._output = output
        self._keepalive = keepalive
        self._blocking = blocking
        self._mechanisms = mechanisms(info)
        self._server_properties = server_properties(info.gateway)
        self._login: Authenticate  # of start-ok
        self._mechanism = ""
        self._reads_refusal = False  # the client takes connection.close before the connection is open
        self.phase = Phase.HEADER
        self.principal = Principal(name="")
        self.limits = TuneLimits(options.channel_max, options.frame_max - FRAME_OVERHEAD, 0)
        output.payload_max = self.limits.payload_max

    def take_header(self, data: bytes) -> int:
        """Takes the protocol header (AMQP 0-9-1, 4.2.2), and returns its length; 0 while it is not whole."""
        header, output = data[: len(PROTOCOL_HEADER)], self._output
        if header in PROTOCOL_HEADERS:
            self.phase = Phase.START
            output.write(method_frame(0, Methods.Start, 0, 9, self._server_properties, self._mechanisms, b"en_US"))
            return len(header)
        if not any(one.startswith(header) for one in PROTOCOL_HEADERS):
            output.write(PROTOCOL_HEADER)
            output.end("not AMQP 0-9-1")
        return 0

    def take(self, method: Frame) -> bool:
        """Takes a method; returns False when it has to wait.

        Raises `ProtocolError` (CHANNEL_ERROR) for one that does not belong here.
        """
        match self.phase, method:
            case _, Methods.Close():
                return self._close()
            case Phase.CLOSING, _:
                if isinstance(method, Methods.CloseOk):
                    self._output.end("")
            case Phase.AUTHENTICATING, _:
                return False
            case Phase.START, Methods.StartOk() as start_ok:
                self._start_ok(start_ok)
            case Phase.TUNE, Methods.TuneOk() as tune_ok:
                self._tune_ok(tune_ok)
            case Phase.OPENING, Methods.Open() as opening:
                self._open(opening)
            case Phase.OPEN, Methods.UpdateSecret() as update:
                self._update_secret(update)
            case _:
                why = f"unexpected method in connection state {self.phase.value}: {method.name}"
                raise ProtocolError(CHANNEL_ERROR, why)
        return True

    def _close(self) -> bool:
        output = self._output
        if self.phase is Phase.OPEN and output.unanswered:
            return False  # the client reads close-ok when its messages are durable
        output.drop_bodies()
        output.write(method_frame(0, Methods.CloseOk))
        output.end("")
        return True

    def _start_ok(self, method: Methods.StartOk) -> None:
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self._output.cancel_notify = capabilities.get("consumer_cancel_notify") is True
            self._blocking.understood = capabilities.get("connection.blocked") is True
            self._reads_refusal = capabilities.get("authentication_failure_close") is True
        response: Any = method.response
        try:
            self._login = authentication(method.mechanism, response, self._mechanisms)
        except ProtocolError as error:
            if self._reads_refusal:
                raise
            self._output.end(error.detail)
            return
        self._mechanism = method.mechanism
        self.phase = Phase.AUTHENTICATING
        self._output.call(self._login, self._authenticated)

    def _authenticated(self, outcome: Outcome, now_ms: int) -> None:
        if self.phase is not Phase.AUTHENTICATING:
            return
        output, options, refusal = self._output, self._output.options, outcome.error
        if refusal is not None:
            code, why = REPLY_CODES[refusal.cause], refusal.detail
            if not self._reads_refusal:
                output.end(why)
                return
            if code == ACCESS_REFUSED:
                why = f"Login was refused using authentication mechanism {self._mechanism}: {why}"
            output.fail(code, why, now_ms, method=0)  # as RabbitMQ, which names no method here
            return
        self._let_in(outcome.value)
        self.phase = Phase.TUNE
        output.write(method_frame(0, Methods.Tune, options.channel_max, options.frame_max, options.heartbeat_s))

    def _let_in(self, principal: Principal) -> None:
        self.principal, self._keepalive.expires_at_ms = principal, principal.expires_at_ms

    def _tune_ok(self, method: Methods.TuneOk) -> None:
        self.limits = negotiate(
            self._output.options,
            channel_max=method.channel_max,
            frame_max=method.frame_max,
            heartbeat_s=method.heartbeat,
        )
        self._output.payload_max = self.limits.payload_max
        self.phase = Phase.OPENING

    def _open(self, method: Methods.Open) -> None:
        vhost, output = method.virtual_host, self._output
        if vhost == DEFAULT_VHOST:
            self._opened()
            return
        self.phase = Phase.AUTHENTICATING  # input that comes before the answer is not read

        def answered(outcome: Outcome, now_ms: int) -> None:
            if self.phase is not Phase.AUTHENTICATING:
                return
            refusal = outcome.error
            if refusal is not None:
                refused = refusal.cause in {Cause.NOT_FOUND, Cause.FORBIDDEN}
                code = NOT_ALLOWED if refused else REPLY_CODES[refusal.cause]
                output.fail(code, refusal.detail, now_ms, method=Methods.Open.index)
                return
            output.vhost, output.targets = vhost, targets_of(vhost)
            self._opened()

        output.call(OpenVhost(name=vhost), answered)

    def _opened(self) -> None:
        self.phase = Phase.OPEN
        self._keepalive.opened(self.limits.heartbeat_s)
        self._output.write(method_frame(0, Methods.OpenOk, ""))

    def _update_secret(self, method: Methods.UpdateSecret) -> None:
        """Takes a token of the same user that expires later (an extension of RabbitMQ).

        As there, credentials that do not expire need no renewal: the new secret changes nothing.
        """
        if self.principal.expires_at_ms is None:
            self._output.write(method_frame(0, Methods.UpdateSecretOk))
        else:
            self._output.call(renewed(self._login, method.new_secret), self._renewed)

    def _renewed(self, outcome: Outcome, now_ms: int) -> None:
        if self.phase is not Phase.OPEN:
            return
        if outcome.error is not None or outcome.value.name != self.principal.name:
            self._output.fail(NOT_ALLOWED, "the new secret was refused", now_ms, method=Methods.UpdateSecret.index)
            return
        self._let_in(outcome.value)
        self._output.write(method_frame(0, Methods.UpdateSecretOk))
