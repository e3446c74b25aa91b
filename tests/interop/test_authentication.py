"""Real clients prove who they are: passwords, SCRAM, tokens, certificates. Nobody else gets in, by any listener."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiocoap
import httpx
import jwt
import paho.mqtt.client as paho
import pika
import pika.credentials
import pika.exceptions
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Auth, Connack, Connect, Disconnect, Packet
from gateway.security.passwords import hash_password
from tests.support.mqtt.packet_client import PacketClient
from tests.support.mqtt.paho_client import PahoClient
from tests.support.process.certificates import Authority, Issued
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until

TIMEOUT_S = 60.0
T = TypeVar("T")
KEY = ec.generate_private_key(ec.SECP256R1())
SECRETS = ("open-sesame", "pencil", "guess")

CONFIG = """
[auth]
anonymous = "nobody"
guest = "nobody"

[auth.users.alice]
password_file = "{password}"

[auth.users.bob]
password_hash = "{hashed}"

[auth.jwt]
jwks_file = "{keys}"
audience = ["headgate"]
leeway_s = 0
device_claim = "device"

[topics]
index = ["address"]

[tls]
cert_file = "{cert}"
key_file = "{key}"
client_certificates = "optional"
client_ca_file = "{ca}"
client_crl_file = "{revoked}"
"""


class Guarded:
    """A gateway that lets nobody in who does not prove who he is, and who can."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ca")
        self.device = self.authority.issue("device-7")
        self.revoked = self.authority.issue("device-8")
        own = self.authority.issue(
            "gateway", x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")), server=True
        )
        password, keys, config = (directory / name for name in ("password", "jwks.json", "headgate.toml"))
        password.write_text("open-sesame\n")
        keys.write_text(json.dumps({"keys": [{**json.loads(ECAlgorithm.to_jwk(KEY.public_key())), "kid": "1"}]}))
        config.write_text(
            CONFIG.format(
                password=password,
                hashed=hash_password(b"pencil"),
                keys=keys,
                cert=own.cert_file,
                key=own.key_file,
                ca=self.authority.file,
                revoked=self.authority.revoke(self.revoked),
            )
        )
        self.process = GatewayProcess(directory / "data", "--config", str(config))

    def port(self, name: str) -> int:
        return self.process.port(name)

    def tls(self, client: Issued | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.file)
        if client is not None:
            context.load_cert_chain(client.cert_file, client.key_file)
        return context


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    found.process.start()
    yield found
    found.process.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_secret_is_logged(guarded: Guarded) -> Iterator[None]:
    yield
    log = guarded.process.log.read_text()
    assert [secret for secret in (*SECRETS, "eyJ", "$argon2", "SCRAM-SHA-256$") if secret in log] == []


def token(name: str = "fleet", *, lives_s: float = 300, key: Any = KEY, **claims: Any) -> str:
    claims = {"sub": name, "device": f"{name}-1", "aud": "headgate", "exp": time.time() + lives_s, **claims}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "1"})


def shortly(let_in: Callable[[str], T | None]) -> T:
    """Returns the result with a token that expires while it is used; grants a longer life if it expired too early."""
    for lives_s in (1.5, 6.0, 24.0):
        found = let_in(token(lives_s=lives_s))
        if found is not None:
            return found
    raise AssertionError("not let in")


# ---- MQTT


@pytest.fixture
def mqtt(guarded: Guarded) -> Iterator[Callable[..., PahoClient]]:
    made: list[PahoClient] = []

    def connect(
        listener: str = "mqtt",
        *,
        username: str | None = None,
        password: str = "",
        tls: ssl.SSLContext | None = None,
        version: int = paho.MQTTv5,
        transport: str = "tcp",
    ) -> PahoClient:
        """Returns a client that has heard whether it is let in."""
        client = PahoClient(
            guarded.port(listener),
            version,
            "",
            host="localhost" if tls else "127.0.0.1",
            user=None if username is None else (username, password),
            transport=transport,
            reconnect_on_failure=False,
        )
        if tls is not None:
            client.paho.tls_set_context(tls)
        if transport == "websockets":
            client.paho.ws_set_options("/mqtt")
        made.append(client)
        return client.connect()

    yield connect
    for one in made:
        one.close()


def is_of(guarded: Guarded, address: str, device: str) -> bool:
    """Returns whether the messages at an address are of a device, and of no other."""
    url = f"http://127.0.0.1:{guarded.port('http')}/messages"
    headers = {"authorization": f"Bearer {token()}"}

    def count(where: str) -> int:
        query = f"?address={quote(address)}&where={quote(where)}"
        answer = httpx.get(url + query, headers=headers, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        return len(answer.json())

    return count(f"device = '{device}'") > 0 and count(f"device <> '{device}'") == 0


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize(("name", "password"), [("alice", "open-sesame"), ("bob", "pencil")])
def test_a_name_and_a_password(mqtt: Callable[..., PahoClient], name: str, password: str, version: int) -> None:
    assert mqtt(username=name, password=password, version=version).code.value == 0
    refused = mqtt(username=name, password="guess", version=version).code.value
    assert refused == 0x86  # paho says 3.1.1's codes in 5.0's


@pytest.mark.parametrize(("listener", "transport"), [("mqtt", "tcp"), ("mqtt-ws", "websockets")])
def test_nobody_without_a_name(mqtt: Callable[..., PahoClient], listener: str, transport: str) -> None:
    assert mqtt(listener, transport=transport).code.value == 0x87
    assert mqtt(listener, transport=transport, username="guest", password="guest").code.value == 0x86
    assert mqtt(listener, transport=transport, username="alice", password="open-sesame").code.value == 0


@pytest.mark.parametrize(("listener", "transport"), [("mqtts", "tcp"), ("mqtt-wss", "websockets")])
def test_a_certificate(guarded: Guarded, mqtt: Callable[..., PahoClient], listener: str, transport: str) -> None:
    known = mqtt(listener, tls=guarded.tls(guarded.device), transport=transport)
    assert known.code.value == 0
    known.publish(f"auth/certificate/{transport}", b"x")
    assert is_of(guarded, f"auth/certificate/{transport}", "device-7")
    assert mqtt(listener, tls=guarded.tls(), transport=transport).code.value == 0x87
    context = guarded.tls(guarded.device)
    assert mqtt(listener, tls=context, transport=transport, username="alice", password="open-sesame").code.value == 0x86
    alone = mqtt(listener, tls=guarded.tls(), transport=transport, username="alice", password="open-sesame")
    assert alone.code.value == 0


def test_a_revoked_certificate(guarded: Guarded) -> None:
    """TLS 1.3 says so late: the handshake is over for a client before its certificate is looked at."""

    def hear() -> bytes:
        with (
            socket.create_connection(("localhost", guarded.port("mqtts")), TIMEOUT_S) as plain,
            guarded.tls(guarded.revoked).wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(encode(Connect(version=5, client_id="c"), 5))
            return secure.recv(1)

    try:
        heard = hear()
    except (ssl.SSLError, ConnectionError):
        heard = b""
    assert heard == b""


def test_a_token(guarded: Guarded, mqtt: Callable[..., PahoClient]) -> None:
    known = mqtt(username="whoever", password=token())
    assert known.code.value == 0
    known.publish("auth/token", b"x")
    assert is_of(guarded, "auth/token", "fleet-1")
    for bad in (token(key=ec.generate_private_key(ec.SECP256R1())), token(aud="others"), token(lives_s=-1)):
        assert mqtt(username="fleet", password=bad).code.value == 0x86


def test_a_connection_ends_when_its_token_does(mqtt: Callable[..., PahoClient]) -> None:
    def let_in(given: str) -> PahoClient | None:
        found = mqtt(username="fleet", password=given)
        return found if found.code.value == 0 else None

    known = shortly(let_in)
    assert known.left.get(timeout=TIMEOUT_S).value == 0x87


def exchange(port: int, name: str, password: str) -> list[Packet]:
    """Returns what a client of MQTT 5.0 is told that proves its password, and again."""
    client = PacketClient(port)
    try:
        told = client.prove(name, password, client_id="scram")
        if not told[-1].code:
            told += client.prove(name, password, again=True)
            client.send(Disconnect())
        return told
    finally:
        client.close()


@pytest.mark.parametrize(("name", "password"), [("alice", "open-sesame"), ("bob", "pencil")])
def test_a_password_is_proven_and_not_sent(guarded: Guarded, name: str, password: str) -> None:
    kinds = [(type(packet), packet.code) for packet in exchange(guarded.port("mqtt"), name, password)]
    assert kinds == [(Auth, 0x18), (Connack, 0), (Auth, 0x18), (Auth, 0)]
    (_, refused) = exchange(guarded.port("mqtt"), name, "guess")
    assert (type(refused), refused.code) == (Connack, 0x87)


# ---- HTTP, AMQP, CoAP


def test_http(guarded: Guarded) -> None:
    url = f"http://127.0.0.1:{guarded.port('http')}/topics/auth/http"
    for status, headers in (
        (401, {}),
        (401, {"authorization": "Bearer guess"}),
        (401, {"authorization": f"Bearer {token(lives_s=-1)}"}),
        (401, {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}),
        (201, {"authorization": f"Bearer {token()}"}),
    ):
        assert httpx.post(url, content=b"x", headers=headers, timeout=TIMEOUT_S).status_code == status
    assert httpx.post(url, content=b"x", auth=("alice", "open-sesame"), timeout=TIMEOUT_S).status_code == 201
    assert httpx.post(url, content=b"x", auth=("alice", "guess"), timeout=TIMEOUT_S).status_code == 401
    secure = f"https://localhost:{guarded.port('https')}/topics/auth/https"
    for http2 in (False, True):
        with httpx.Client(
            verify=guarded.tls(guarded.device), http2=http2, timeout=TIMEOUT_S, trust_env=False
        ) as client:
            assert client.post(secure, content=b"x").status_code == 201
            assert is_of(guarded, "auth/https", "device-7")
        with httpx.Client(verify=guarded.tls(), http2=http2, timeout=TIMEOUT_S, trust_env=False) as client:
            assert client.post(secure, content=b"x").status_code == 401


def test_requests_of_one_connection_are_checked_each_time(guarded: Guarded) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{guarded.port('http')}", timeout=TIMEOUT_S) as client:

        def let_in(given: str) -> dict[str, str] | None:
            headers = {"authorization": f"Bearer {given}"}
            answer = client.post("/topics/auth/each", content=b"x", headers=headers)
            return headers if answer.status_code == 201 else None

        headers = shortly(let_in)

        def refusal() -> httpx.Response | None:
            answer = client.post("/topics/auth/each", content=b"x", headers=headers)
            return None if answer.status_code == 201 else answer

        answer = wait_until(refusal)
        assert answer.status_code == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def amqp(port: int, credentials: Any, tls: ssl.SSLContext | None = None) -> pika.BlockingConnection:
    options = pika.SSLOptions(tls, "localhost") if tls is not None else None
    host = "localhost" if tls is not None else "127.0.0.1"
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, credentials=credentials, ssl_options=options, socket_timeout=TIMEOUT_S)
    )


def test_amqp(guarded: Guarded) -> None:
    plain, secure = guarded.port("amqp"), guarded.port("amqps")
    with amqp(plain, pika.PlainCredentials("alice", "open-sesame")), amqp(plain, pika.PlainCredentials("x", token())):
        pass
    with amqp(secure, pika.credentials.ExternalCredentials(), guarded.tls(guarded.device)) as connection:
        connection.channel().basic_publish("amq.topic", "auth.external", b"x")
    for name, password in (("guest", "guest"), ("alice", "guess"), ("x", token(lives_s=-1)), ("", "")):
        with pytest.raises(pika.exceptions.AMQPError):
            amqp(plain, pika.PlainCredentials(name, password))
    with pytest.raises(pika.exceptions.AMQPError):
        amqp(secure, pika.credentials.ExternalCredentials(), guarded.tls())


def test_an_amqp_connection_ends_when_its_token_does(guarded: Guarded) -> None:
    def let_in(given: str) -> pika.BlockingConnection | None:
        try:
            return amqp(guarded.port("amqp"), pika.PlainCredentials("x", given))
        except pika.exceptions.AMQPError:
            return None

    connection = shortly(let_in)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as ended:
        connection.sleep(TIMEOUT_S)
    assert ended.value.reply_code == 320


def test_coap(guarded: Guarded) -> None:
    async def ask() -> Any:
        context = await aiocoap.Context.create_client_context(transports=["simple6"])
        uri = f"coap://127.0.0.1:{guarded.port('coap')}/t/auth/coap"
        message = aiocoap.Message(code=aiocoap.POST, payload=b"x", uri=uri)
        try:
            return await context.request(message).response
        finally:
            await context.shutdown()

    assert asyncio.run(ask()).code is aiocoap.UNAUTHORIZED
