"""A blocking MQTT client, packet by packet, for what no client library shows."""

import socket
import ssl
from typing import Any

from scramp import ScramClient

from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import Auth, Connect, Packet, Pingreq, Pingresp
from adapters.mqtt.codec.properties import Properties
from gateway.security.scram import MECHANISM

TIMEOUT_S = 60.0
CONTINUE, REAUTHENTICATE = 0x18, 0x19


class PacketClient:
    """A socket; each call sends a packet or waits for the next one."""

    def __init__(self, port: int, version: int = 5, tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("localhost" if tls else "127.0.0.1", port), TIMEOUT_S)
        self.socket = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
        self.version = version
        self._held = b""

    def send(self, packet: Packet) -> None:
        self.socket.sendall(encode(packet, self.version))

    def hear(self) -> Any:
        """Returns the next packet, None at the end of the connection."""
        while (frame := read_fixed_header(self._held)) is None or frame.end > len(self._held):
            more = self.socket.recv(65_536)
            if not more:
                return None
            self._held += more
        body, self._held = self._held[frame.start : frame.end], self._held[frame.end :]
        return decode(frame.first, body, self.version)

    def ask(self, packet: Packet) -> Any:
        """Sends a packet and returns the next one."""
        self.send(packet)
        return self.hear()

    def prove(self, user: str, password: str, *, client_id: str = "", again: bool = False, **fields: Any) -> list[Any]:
        """Proves a password by SCRAM, in a CONNECT or `again` in an AUTH; returns what was answered."""
        client = ScramClient([MECHANISM], user, password)
        first = _said(client.get_client_first(), **fields)
        if again:
            challenge = self.ask(Auth(code=REAUTHENTICATE, properties=first))
        else:
            challenge = self.ask(Connect(version=5, client_id=client_id, clean=False, properties=first))
        client.set_server_first(challenge.properties.authentication_data.decode())
        last = self.ask(Auth(code=CONTINUE, properties=_said(client.get_client_final())))
        if not last.code:
            client.set_server_final(last.properties.authentication_data.decode())
        return [challenge, last]

    def is_well(self) -> bool:
        """Returns whether it has been told nothing, and is still heard."""
        return isinstance(self.ask(Pingreq()), Pingresp)

    def close(self) -> None:
        """Ends the connection without a DISCONNECT."""
        self.socket.close()


def _said(data: str, **fields: Any) -> Properties:
    return Properties(authentication_method=MECHANISM, authentication_data=data.encode(), **fields)
