"""AUTH: how a client proves in several steps who it is, at its CONNECT and as often as it wants after (MQTT 5.0, 4.12).

The contents of these steps are between the client and the gateway; this file decides which side may send, when, and for
how long.
"""

from enum import Enum

from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.packets import Auth
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.connecting.connection_context import ConnectionContext
from gateway.domain.errors import Cause, ProtocolError, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Challenge

DATA_BYTES_MAX = 4_096  # of one packet: no mechanism needs as much
ROUNDS_COUNT_MAX = 8  # challenges of one exchange


class AuthTurn(Enum):
    """The side whose turn it is."""

    NOBODY = "no exchange is in progress"
    GATEWAY = "the gateway's answer is awaited"
    CLIENT = "the client's AUTH is awaited"


# The one turn in which a client may send an AUTH with a code (3.15.2.1): 0x18 answers, 0x19 begins anew.
_TURNS: dict[int, AuthTurn] = {
    ReasonCode.CONTINUE_AUTHENTICATION: AuthTurn.CLIENT,
    ReasonCode.REAUTHENTICATE: AuthTurn.NOBODY,
}


class Authentication:
    """The exchanges of one connection, one after the other, all by the method of its CONNECT."""

    __slots__ = ("_challenge", "_context", "_rounds", "_username", "method", "turn")

    def __init__(self, method: str, context: ConnectionContext, *, username: str) -> None:
        self.method = method
        self.turn = AuthTurn.NOBODY
        self._context = context
        self._username = username
        self._challenge: Challenge | None = None  # that the client answers next
        self._rounds = 0  # <= ROUNDS_COUNT_MAX

    def begin(self, data: bytes | None) -> Authenticate:
        """Begins an exchange with the client's first data. Raises `ProtocolError` (0x87)."""
        self._rounds = 0
        self._challenge = None
        return self._ask(data)

    def receive(self, packet: Auth) -> Authenticate:
        """Takes an AUTH of the client's, and returns the question for the gateway.

        Raises `ProtocolError`: 0x82 for one of another method or out of turn (MQTT-4.12.0-3, 4.12.0-5, 4.12.1-1), 0x87
        for data that no mechanism needs.
        """
        method = packet.properties.authentication_method
        if method != self.method:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without the authentication method of CONNECT")
        if _TURNS.get(packet.code) is not self.turn:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH with 0x{packet.code:02X} while {self.turn.value}")
        data = packet.properties.authentication_data
        return self.begin(data) if self.turn is AuthTurn.NOBODY else self._ask(data)

    def challenge(self, challenge: Challenge) -> None:
        """Answers the gateway's challenge. Raises `ProtocolError` (0x87) when it wants to too often."""
        self._rounds += 1
        if self._rounds > ROUNDS_COUNT_MAX:
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, "the authentication exchange has too many steps")
        self.turn = AuthTurn.CLIENT
        self._challenge = challenge
        self._send(ReasonCode.CONTINUE_AUTHENTICATION, challenge.data)

    def proven(self, principal: Principal) -> None:
        """Tells a connected client that it has proven again who it is (3.15.2.1). Raises `ProtocolError` (0x87)."""
        if principal.device != self._context.device:
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, "a re-authentication cannot change the user of a connection")
        self.end()
        self._send(ReasonCode.SUCCESS, principal.final)

    def end(self) -> None:
        """Ends the exchange in progress."""
        self.turn = AuthTurn.NOBODY
        self._challenge = None

    def check_patience(self, held: bytes | bytearray) -> None:
        """Raises `ProtocolError` for an unread packet that may not come before CONNACK (MQTT-3.1.2-30)."""
        if held and held[0] != PacketType.DISCONNECT << 4:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "only AUTH and DISCONNECT may come before CONNACK")

    def _ask(self, data: bytes | None) -> Authenticate:
        if data is not None and len(data) > DATA_BYTES_MAX:
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, f"at most {DATA_BYTES_MAX} bytes of authentication data")
        self.turn = AuthTurn.GATEWAY
        return Authenticate(
            mechanism=self.method,
            username=self._username,
            client_id=self._context.client_id,
            data=data or b"",
            exchange=None if self._challenge is None else self._challenge.exchange,
        )

    def _send(self, code: ReasonCode, data: bytes) -> None:
        said = Properties(authentication_method=self.method, authentication_data=data or None)
        if not self._context.send(Auth(code=code, properties=said)):
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, "the client takes no packet as large as an AUTH")


def disproven(refusal: Refusal) -> ProtocolError:
    """Returns the error for a client that could not prove again who it is (MQTT-4.12.1-2)."""
    busy = refusal.cause is Cause.OVERLOAD
    return ProtocolError(ReasonCode.SERVER_BUSY if busy else ReasonCode.NOT_AUTHORIZED, refusal.detail)
