"""One connection to a broker, without its publishing: CONNECT, CONNACK, keep alive, and its end."""

from typing import Final

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connack, Connect, Disconnect, Packet, Pingreq, Pingresp
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from adapters.mqtt.codec.reason import CODES_OF_RETURN, ReasonCode
from adapters.mqtt.receiving.keep_alive import KeepAlive
from gateway.domain.bridge_path import introduced, introduction
from gateway.domain.errors import ProtocolError
from gateway.port.bridge import ClientTerms

VERSIONS: Final = {"5.0": 5, "3.1.1": 4}
SHORT_CONNACK_BYTES: Final = 2  # of the CONNACK of 3.1.1: one of 5.0 has properties, too


class UpstreamClient:
    """The connection. Its methods never block; times are ms of one clock."""

    def __init__(self, terms: ClientTerms) -> None:
        self._terms = terms
        self.version = VERSIONS[terms.version]
        self.admitted = False  # by a CONNACK
        self.gateway = ""  # the id of the upstream, where that is a gateway like this one
        self.out: list[bytes] = []  # to be sent
        self._keep_alive = KeepAlive()
        self._asked_ms = 0  # when the peer was asked for something
        self._ticked_ms = 0  # the newest time that is known
        self._deadline_ms: int | None = None  # of its answer to CONNECT, and until `answered`

    def connected(self, now_ms: int) -> None:
        """Begins on a new connection: sends CONNECT."""
        terms, properties = self._terms, NO_PROPERTIES
        if self.version == 5:
            properties = Properties(
                session_expiry_s=0 if terms.clean else terms.session_expiry_s,
                receive_maximum=terms.receive_maximum,
                user=introduction(terms.gateway),
            )
        self._keep_alive.interval_ms = terms.keep_alive_s * 1_000
        self._keep_alive.received_ms = self._asked_ms = now_ms
        self._deadline_ms = now_ms + terms.answer_timeout_ms
        self.send(
            Connect(
                version=self.version,
                client_id=terms.client_id,
                clean=terms.clean,
                keep_alive_s=terms.keep_alive_s,
                username=terms.username,
                password=None if terms.password is None else terms.password.encode(),
                properties=properties,
            )
        )

    def answered(self) -> None:
        """Notes that the broker has answered all that the connection begins with."""
        self._deadline_ms = None

    def received(self, now_ms: int) -> None:
        """Notes that bytes have come."""
        self._keep_alive.received_ms = now_ms

    def lost(self) -> None:
        """Notes that the connection is gone."""
        self.admitted = False
        self.out = []
        self._deadline_ms = None

    def leave(self) -> None:
        """Sends DISCONNECT, where the broker has let us in."""
        if self.admitted:
            self.send(Disconnect())

    def send(self, packet: Packet) -> None:
        """Adds a packet to those that are to be sent."""
        self.out.append(encode(packet, self.version))

    def take_output(self) -> bytes:
        """Returns the bytes to be sent since the last call."""
        out, self.out = self.out, []
        return b"".join(out)

    # ---- time

    def tick(self, now_ms: int, *, reading: bool) -> None:
        """Notes the time; `reading`: the peer's input is read. Raises `ProtocolError` where the peer is too late."""
        if now_ms < max(self._ticked_ms, self._asked_ms):
            self._set_back(now_ms)
        self._ticked_ms = now_ms
        if self._deadline_ms is not None and now_ms >= self._deadline_ms:
            raise ProtocolError(ReasonCode.KEEP_ALIVE_TIMEOUT, "no answer to CONNECT or SUBSCRIBE")
        interval_ms = self._keep_alive.interval_ms
        if not interval_ms or not self.admitted:
            return
        if self._keep_alive.is_over(now_ms, reading=reading):
            raise ProtocolError(ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within the keep alive")
        if now_ms - self._asked_ms >= interval_ms:
            self._asked_ms = now_ms
            self.send(Pingreq())

    def _set_back(self, now_ms: int) -> None:
        """Counts anew, as the clock was set back, and asks the peer at once: the last time may be long ago."""
        self._keep_alive.received_ms = now_ms
        self._asked_ms = now_ms - self._keep_alive.interval_ms
        if self._deadline_ms is not None:
            self._deadline_ms = now_ms + self._terms.answer_timeout_ms

    def deadline_ms(self) -> int | None:
        """Returns the latest time to call `tick`."""
        if self._deadline_ms is not None:
            return self._deadline_ms
        limit_ms = self._keep_alive.limit_ms() if self.admitted else None
        return None if limit_ms is None else min(self._asked_ms + self._keep_alive.interval_ms, limit_ms)

    # ---- packets

    def check_length(self, size: int) -> None:
        """Raises `ProtocolError` where the first packet, of `size` bytes behind its head, is a CONNACK of 3.1.1."""
        if self.version == 5 and not self.admitted and size == SHORT_CONNACK_BYTES:
            raise ProtocolError(
                ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, f"the upstream does not speak MQTT 5.0; {self._terms.older}"
            )

    def control(self, packet: Packet, now_ms: int) -> Connack | None:
        """Takes a packet that is about the connection alone; returns the CONNACK that lets us in.

        Raises `ProtocolError` for a refusal, for the connection's end, and for any other packet.
        """
        match packet:
            case Connack() if not self.admitted:
                self._admit(packet, now_ms)
                return packet
            case Pingresp() if self.admitted:
                return None
            case Disconnect() if self.version == 5:
                raise ProtocolError(packet.code, f"the upstream ends the connection: {named(packet.code)}")
            case _:
                raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"an unexpected {type(packet).__name__.upper()}")

    def _admit(self, packet: Connack, now_ms: int) -> None:
        code = packet.code if self.version == 5 else CODES_OF_RETURN.get(packet.code, packet.code)
        if packet.code:
            raise ProtocolError(code, f"the upstream refuses the connection: {named(code)}{because(packet.properties)}")
        if packet.properties.server_keep_alive_s is not None:
            self._keep_alive.interval_ms = packet.properties.server_keep_alive_s * 1_000
        self.admitted = True
        self.gateway = introduced(packet.properties.user)
        self._asked_ms = now_ms


def named(code: int) -> str:
    """Returns a reason code for people."""
    try:
        return f"{ReasonCode(code).name.lower().replace('_', ' ')} (0x{code:02X})"
    except ValueError:
        return f"0x{code:02X}"


def because(properties: Properties) -> str:
    """Returns the reason that a peer gives, for people."""
    return "" if properties.reason is None else f", {properties.reason!r}"
