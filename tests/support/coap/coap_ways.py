"""Clients of CoAP on every way into a gateway with users: each asks for a user, or without a name."""

import asyncio
import importlib.util
import json
import ssl
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from aiocoap import Context, Message
from aiocoap.message import Direction
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from adapters.coap.stream.signals import CSM
from tests.support.coap.oscore_client import oscore_client, provision
from tests.support.process.certificates import Authority

TIMEOUT_S = 60
PLAIN = {"coap": "coap", "coap+tcp": "coap-tcp", "coap+ws": "http"}  # listeners of those who have no name, by scheme
HAS_DTLS = importlib.util.find_spec("OpenSSL") is not None  # the extra dtls

Ask = Callable[[Message], Message]


class Way(NamedTuple):
    """The client's transport and its user: None without a name."""

    scheme: str
    user: str | None


class CoapFiles:
    """The files of a gateway whose users have a pre-shared key, a context of OSCORE and a certificate each."""

    def __init__(self, directory: Path, users: tuple[str, ...]) -> None:
        self.directory, self.users = directory, users
        directory.mkdir()
        provision(directory / "oscore.json", *users)
        keys = [{"identity": user, "key": _key(user).hex()} for user in users]
        (directory / "psk.json").write_text(json.dumps({"keys": keys}))
        self.authority = Authority(directory / "ca")
        self.server = self.authority.issue("localhost", server=True)
        self.issued = {user: self.authority.issue(user) for user in users}

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """Returns the sections of the gateway's configuration."""
        tls = {
            "cert_file": str(self.server.cert_file),
            "key_file": str(self.server.key_file),
            "client_certificates": "optional",
            "client_ca_file": str(self.authority.file),
        }
        auth = {"oscore_file": str(self.directory / "oscore.json")}
        if HAS_DTLS:
            auth["psk_file"] = str(self.directory / "psk.json")
        return {"tls": tls, "auth": auth, "adapters": {"coap": {"oscore": True}}}


class CoapWays:
    """The clients: those without a name on every transport, and each user by OSCORE, DTLS, and WebSocket over TLS."""

    def __init__(self, files: CoapFiles, ports: dict[str, int], tls_ports: dict[str, int]) -> None:
        self._files = files
        self._ports, self._tls_ports = ports, tls_ports
        self._runner = asyncio.Runner()
        self._stack = ExitStack()
        self.ask: dict[Way, Ask] = {}

    def __enter__(self) -> "CoapWays":
        self._stack.enter_context(self._runner)
        context = self._context(Context.create_client_context())
        for scheme, listener in PLAIN.items():
            self.ask[Way(scheme, None)] = self._by_aiocoap(context, f"{scheme}://127.0.0.1:{self._ports[listener]}")
        for number, user in enumerate(self._files.users, 1):
            uri = f"coap://127.0.0.1:{self._ports['coap']}"
            directory = self._files.directory / f"oscore-{user}"
            context = self._context(oscore_client(directory, uri, client_id=f"{number:02x}"))
            self.ask[Way("oscore", user)] = self._by_aiocoap(context, uri)
            if HAS_DTLS:
                self.ask[Way("coaps", user)] = self._by_dtls(user)
            self.ask[Way("coaps+ws", user)] = self._by_websocket(user)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _context(self, made: Any) -> Context:
        context: Context = self._runner.run(made)
        self._stack.callback(lambda: self._runner.run(context.shutdown()))
        return context

    def _by_aiocoap(self, context: Context, uri: str) -> Ask:
        async def asked(message: Message) -> Message:
            path, query = message.opt.uri_path, message.opt.uri_query
            message.set_request_uri(uri)
            message.opt.uri_path, message.opt.uri_query = path, query
            async with asyncio.timeout(TIMEOUT_S):
                return await context.request(message, handle_blockwise=False).response

        return lambda message: self._runner.run(asked(message))

    def _by_dtls(self, user: str) -> Ask:
        from tests.support.coap.dtls_client import DtlsSocket

        client = self._stack.enter_context(closing(DtlsSocket(self._ports["coaps"], user.encode(), _key(user))))
        return client.ask

    def _by_websocket(self, user: str) -> Ask:
        """Returns what asks over `coaps+ws` with the certificate of a user (RFC 8323, 4)."""
        issued = self._files.issued[user]
        tls = ssl.create_default_context(cafile=str(self._files.authority.file))
        tls.check_hostname = False
        tls.load_cert_chain(issued.cert_file, issued.key_file)
        url = f"wss://127.0.0.1:{self._tls_ports['http']}/.well-known/coap"
        found = connect(url, ssl=tls, subprotocols=[Subprotocol("coap")], proxy=None, open_timeout=TIMEOUT_S)
        socket = self._stack.enter_context(found)
        socket.send(bytes((0, CSM)))
        return lambda message: _ask_websocket(socket, message)


def _key(user: str) -> bytes:
    return f"a-secret-of-{user}".encode()


def _ask_websocket(socket: ClientConnection, message: Message) -> Message:
    marker = b"\xff" if message.payload else b""
    message.direction = Direction.OUTGOING
    socket.send(bytes((1, message.code)) + b"t" + message.opt.encode() + marker + message.payload)
    while True:
        data = socket.recv(timeout=TIMEOUT_S)
        assert isinstance(data, bytes)
        if data[1] == CSM:
            continue
        answer = Message(code=data[1])
        answer.payload = answer.opt.decode(data[2 + data[0] :])
        return answer
