"""A client of DTLS with a pre-shared key, by pyOpenSSL (the extra dtls), and CoAP over its session on a real socket."""

import contextlib
import socket
import time
from collections.abc import Iterable
from typing import Any

from aiocoap import Message
from aiocoap.message import Direction
from aiocoap.numbers.types import Type
from OpenSSL import SSL
from OpenSSL._util import ffi, lib

from gateway.dtls.context import DATAGRAM_BYTES
from gateway.dtls.sessions import datagrams_of

AGAIN_S = 0.5
PATIENCE_S = 60


class DtlsClient:
    """A client of DTLS with a pre-shared key, without a socket."""

    def __init__(
        self, identity: bytes = b"dev1", key: bytes = b"key-of-dev1", *, ciphers: bytes = b"PSK:@SECLEVEL=0"
    ) -> None:
        context = SSL.Context(SSL.DTLS_CLIENT_METHOD)

        def find(_: Any, _hint: Any, identity_out: Any, _identity_room: int, psk: Any, _room: int) -> int:
            ffi.memmove(identity_out, identity + b"\0", len(identity) + 1)
            ffi.memmove(psk, key, len(key))
            return len(key)

        kind = "unsigned int(SSL *, const char *, char *, unsigned int, unsigned char *, unsigned int)"
        self._callback = ffi.callback(kind, find)
        lib.SSL_CTX_set_psk_client_callback(context._context, self._callback)
        context.set_cipher_list(ciphers)
        context.set_options(SSL.OP_NO_QUERY_MTU)
        self.connection = SSL.Connection(context, None)
        self.connection.set_connect_state()
        self.connection.set_ciphertext_mtu(DATAGRAM_BYTES)
        self.done = False

    def shake(self) -> list[bytes]:
        """Goes on with the handshake, and returns the datagrams to send."""
        try:
            self.connection.do_handshake()
            self.done = True
        except SSL.WantReadError:
            pass
        return self.out()

    def out(self) -> list[bytes]:
        """Returns the datagrams to send."""
        try:
            return list(datagrams_of(self.connection.bio_read(65_536)))
        except SSL.WantReadError:
            return []

    def send(self, data: bytes) -> list[bytes]:
        """Returns the datagrams that carry a plaintext."""
        self.connection.send(data)
        return self.out()

    def read(self, datagrams: Iterable[bytes]) -> list[bytes]:
        """Returns the plaintexts in datagrams."""
        found: list[bytes] = []
        for data in datagrams:
            self.connection.bio_write(data)
            with contextlib.suppress(SSL.WantReadError):
                found.append(self.connection.recv(65_536))
        return found


class DtlsSocket:
    """A client of CoAP over DTLS: Confirmable requests, sent again until they are answered."""

    def __init__(self, port: int, identity: bytes, key: bytes) -> None:
        self._client = DtlsClient(identity, key)
        self._mid = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._socket.settimeout(AGAIN_S)
        deadline = time.monotonic() + PATIENCE_S
        while not self._client.done and time.monotonic() < deadline:
            self._send(self._client.shake())
            if not self._client.done and (data := self._receive()) is not None:
                self._client.connection.bio_write(data)
        assert self._client.done, "no handshake"

    def close(self) -> None:
        self._socket.close()

    def ask(self, message: Message) -> Message:
        """Returns the response to a request."""
        self._mid += 1
        message.direction = Direction.OUTGOING
        message.mid, message.token, message.mtype = self._mid, self._mid.to_bytes(2, "big"), Type.CON
        data = message.encode()
        deadline = time.monotonic() + PATIENCE_S
        self._send(self._client.send(data))
        while time.monotonic() < deadline:
            received = self._receive()
            if received is None:
                self._send(self._client.send(data))
                continue
            for plain in self._client.read([received]):
                answer = Message.decode(plain)
                if answer.token == message.token and answer.code.is_response():
                    return answer
        raise AssertionError(f"no answer to {message!r}")

    def _send(self, datagrams: Iterable[bytes]) -> None:
        for one in datagrams:
            self._socket.send(one)

    def _receive(self) -> bytes | None:
        """Returns a datagram; None when none has come for a while."""
        try:
            return self._socket.recv(65_536)
        except TimeoutError:
            lib.DTLSv1_handle_timeout(self._client.connection._ssl)
            return None
