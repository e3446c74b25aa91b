"""Clients that name another user's session, over real sockets: refused, however they prove who they are.

One process, two workers, one that is killed and started again, and one where sessions are anybody's.
"""

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.codec.properties import Properties
from tests.support.mqtt.packet_client import PacketClient
from tests.support.process.certificates import Authority
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
KEY = ec.generate_private_key(ec.SECP256R1())
REFUSED = {4: 5, 5: 0x87}  # not authorized
TAKEN_OVER = 0x8E
ALICE, BOB = {"username": "alice", "password": b"open-sesame"}, {"username": "bob", "password": b"pencil"}

CONFIG = """
[auth]
anonymous = "loopback"

[auth.users.alice]
password_file = "{alice}"

[auth.users.bob]
password_file = "{bob}"

[auth.jwt]
jwks_file = "{keys}"
audience = ["headgate"]
device_claim = "device"

[tls]
cert_file = "{cert}"
key_file = "{key}"
client_certificates = "optional"
client_ca_file = "{ca}"
"""


class SessionClient(PacketClient):
    """A client whose session outlives its connection."""

    def connect(self, name: str, *, clean: bool = False, expiry_s: int = 600, **said: Any) -> Connack:
        """Connects; a session of 3.1.1 that is not clean lasts, too."""
        properties = Properties(session_expiry_s=expiry_s) if self.version == 5 else Properties()
        found = self.ask(Connect(version=self.version, client_id=name, clean=clean, properties=properties, **said))
        assert isinstance(found, Connack)
        return found

    def proven(self, name: str, user: str, password: str) -> Connack:
        """Connects by SCRAM."""
        found = self.prove(user, password, client_id=name, session_expiry_s=600)[-1]
        assert isinstance(found, Connack)
        return found


class Guarded:
    """A gateway that knows alice, bob, tokens, and certificates."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.authority = Authority(directory / "ca")
        own = self.authority.issue(
            "gateway", x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")), server=True
        )
        alice, bob, keys, config = (directory / name for name in ("alice", "bob", "jwks.json", "headgate.toml"))
        alice.write_text("open-sesame\n")
        bob.write_text("pencil\n")
        keys.write_text(json.dumps({"keys": [{**json.loads(ECAlgorithm.to_jwk(KEY.public_key())), "kid": "1"}]}))
        files = {"alice": alice, "bob": bob, "keys": keys, "ca": self.authority.file}
        config.write_text(CONFIG.format(**files, cert=own.cert_file, key=own.key_file))
        self.process = GatewayProcess(directory / "data", "--config", str(config), *arguments)
        self.process.start()

    def tls(self, name: str) -> ssl.SSLContext:
        issued = self.authority.issue(name)
        context = ssl.create_default_context(cafile=self.authority.file)
        context.load_cert_chain(issued.cert_file, issued.key_file)
        return context


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("users"), *request.param)
    yield found
    found.process.close()


@pytest.fixture
def peer(guarded: Guarded) -> Iterator[Callable[..., SessionClient]]:
    with ExitStack() as made:

        def connect(version: int = 5, *, tls: str = "") -> SessionClient:
            port = guarded.process.port("mqtts" if tls else "mqtt")
            one = SessionClient(port, version, guarded.tls(tls) if tls else None)
            made.callback(one.close)
            return one

        yield connect


def token(name: str, device: str = "") -> dict[str, Any]:
    claims = {"sub": name, "device": device or name, "aud": "headgate", "exp": time.time() + 300}
    return {"username": name, "password": jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "1"}).encode()}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kept", [False, True])
def test_another_user_is_refused_and_nobody_is_hurt(
    peer: Callable[..., SessionClient], version: int, *, kept: bool
) -> None:
    name = f"live-{version}-{kept}"
    alice = peer(5)
    assert alice.connect(name, expiry_s=600 if kept else 0, **ALICE).code == 0
    subscription = Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern=name, qos=0),))
    assert isinstance(alice.ask(subscription), Suback)
    for clean in (False, True) * 3:
        refused = peer(version)
        assert refused.connect(name, clean=clean, **BOB).code == REFUSED[version]
        assert refused.hear() is None
        assert peer(version).connect(name, clean=clean).code == REFUSED[version]  # without a name
    bob = peer(version)
    assert bob.connect(f"{name}-bob", **BOB).code == 0
    bob.send(Publish(topic=name, payload=b"to alice"))
    assert alice.hear().payload == b"to alice"
    assert alice.is_well()


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_that_waits_is_its_users(peer: Callable[..., SessionClient], version: int) -> None:
    name = f"kept-{version}"
    alice = peer(version)
    assert alice.connect(name, **ALICE).code == 0
    alice.send(Disconnect())
    assert alice.hear() is None
    for clean in (False, True) * 3:
        assert peer(version).connect(name, clean=clean, **BOB).code == REFUSED[version]
    again = peer(version)
    back = again.connect(name, **ALICE)
    assert (back.code, back.session_present) == (0, True)
    third = peer(version)
    assert third.connect(name, clean=True, **ALICE).code == 0
    told = again.hear()
    assert told is None if version == 4 else told.code == TAKEN_OVER
    assert third.is_well()


def test_a_name_is_a_name_however_it_is_proven(peer: Callable[..., SessionClient]) -> None:
    """A password, a token, a certificate and SCRAM: all of them are alice, whose session it is."""
    ways: list[Callable[[SessionClient, str, str], Connack]] = [
        lambda one, name, user: one.connect(name, **(ALICE if user == "alice" else BOB)),
        lambda one, name, user: one.connect(name, **token(user)),
        lambda one, name, user: one.proven(name, user, "open-sesame" if user == "alice" else "pencil"),
    ]
    name = "proven"
    assert peer().connect(name, **ALICE).code == 0
    for way in ways:
        assert way(peer(), name, "bob").code == 0x87
        assert way(peer(), name, "alice").session_present
    assert peer(tls="bob").connect(name).code == 0x87
    last = peer(tls="alice")
    assert last.connect(name).session_present
    assert last.is_well()


def test_a_device_of_a_token_has_its_own(peer: Callable[..., SessionClient]) -> None:
    one = peer()
    assert one.connect("device", **token("fleet", "one")).code == 0
    assert peer().connect("device", **token("fleet", "other")).code == 0x87
    assert peer().connect("device", **token("fleet")).code == 0x87
    assert peer().connect("device", **token("tank", "one")).code == 0x87
    assert one.is_well()
    assert peer().connect("device", **token("fleet", "one")).session_present


def test_a_session_without_a_name_is_of_whoever_takes_it(peer: Callable[..., SessionClient]) -> None:
    nobody = peer()
    assert nobody.connect("nameless").code == 0
    assert peer().connect("nameless").session_present
    assert nobody.hear().code == TAKEN_OVER
    alice = peer()
    assert alice.connect("nameless", **ALICE).session_present
    assert peer().connect("nameless").code == 0x87
    assert peer().connect("nameless", clean=True, **BOB).code == 0x87
    assert alice.is_well()


def test_a_session_that_ends_with_its_connection_is_free_then(peer: Callable[..., SessionClient]) -> None:
    alice = peer()
    assert alice.connect("short", expiry_s=0, **ALICE).code == 0
    assert peer().connect("short", **BOB).code == 0x87
    alice.send(Disconnect())
    assert alice.hear() is None

    def let_in() -> Connack | None:
        found = peer().connect("short", **BOB)
        return found if found.code == 0 else None

    assert not wait_until(let_in, "the end of her session is not written").session_present


def test_a_restart_forgets_no_user_and_a_switch_lets_go(guarded: Guarded, peer: Callable[..., SessionClient]) -> None:
    """The last test: it changes the gateway."""
    assert peer().connect("durable", **ALICE).code == 0
    gone = peer()
    assert gone.connect("durable-gone", **ALICE).code == 0
    gone.send(Disconnect())
    assert gone.hear() is None
    guarded.process.kill()
    guarded.process.start()
    for name in ("durable", "durable-gone"):
        assert peer().connect(name, clean=True, **BOB).code == 0x87
        assert peer().connect(name).code == 0x87
        assert peer().connect(name, **ALICE).session_present
    if guarded.process.arguments[-1] == "2":
        return  # as slow to start as it is alike
    guarded.process.stop()
    guarded.process.environ = {"HEADGATE__AUTH__SESSIONS_BOUND": "false"}
    guarded.process.start()
    assert peer().connect("durable", **BOB).session_present
    alice = peer()
    assert alice.connect("durable-gone", **ALICE).session_present
    assert peer().connect("durable-gone").session_present
    assert alice.hear().code == TAKEN_OVER
