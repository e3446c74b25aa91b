"""Clients behind a reverse proxy, which is 127.0.0.2 here: what it says of them counts, what others say does not."""

import socket

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import Connack, Connect
from tests.support.process.gateways import GatewayProcess

PROXY, DIRECT = "127.0.0.2", "127.0.0.1"
NEAR, FAR, OTHER = "127.0.0.1", "192.0.2.7", "192.0.2.8"
TIMEOUT_S = 60.0
CONFIG = """
[forwarding]
proxies = ["127.0.0.2", "10.0.0.0/8"]

[limits]
connections_per_address = 2

[auth]
failures_max = 2

[auth.users.ada]
password_file = "{password}"

[log]
format = "json"
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    directory = tmp_path_factory.mktemp("forwarding")
    (directory / "password").write_text("secret")
    file = directory / "headgate.toml"
    file.write_text(CONFIG.format(password=directory / "password"))
    gateway = GatewayProcess(directory / "data", "--config", str(file)).start()
    yield gateway
    gateway.close()


def post(gateway, said, *, by=PROXY, password=None, times=1):
    """Returns the answers to requests on one connection."""
    transport = httpx.HTTPTransport(local_address=by)
    auth = None if password is None else ("ada", password)
    with httpx.Client(transport=transport, base_url=gateway.url, timeout=TIMEOUT_S, auth=auth) as client:
        given = said if isinstance(said, list) else [said] * times
        return [client.post("/topics/t/x", content=b"x", headers=header(one)).status_code for one in given]


def header(said):
    return {} if said is None else {"x-forwarded-for": said}


def web(gateway, said, *, by=PROXY, password=b"secret") -> tuple[ClientConnection, Connack]:
    port = gateway.port("mqtt-ws")
    sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, source_address=(by, 0))
    client = connect(
        f"ws://127.0.0.1:{port}/mqtt", sock=sock, subprotocols=["mqtt"], additional_headers=header(said), proxy=None
    )
    client.send(encode(Connect(version=5, client_id="", username="ada" if password else None, password=password), 5))
    data = client.recv(TIMEOUT_S)
    frame = read_fixed_header(data)
    connack = decode(frame.first, data[frame.start : frame.end], 5)
    assert isinstance(connack, Connack)
    return client, connack


def test_who_has_no_name_is_let_in_from_this_machine_alone(gateway):
    assert post(gateway, [NEAR, FAR, NEAR, f"{NEAR}, {FAR}", f"{FAR}, {NEAR}", "nonsense"]) == [
        *(201, 401, 201),
        *(401, 201, 401),
    ]
    assert post(gateway, FAR, by=DIRECT) == [201]  # this sender's header does not count
    for said, code in ((FAR, 0x87), (NEAR, 0), (f"{NEAR}, {FAR}, 10.0.0.3", 0x87)):
        client, connack = web(gateway, said, password=None)
        client.close()
        assert connack.code == code


def test_wrong_passwords_are_counted_where_they_come_from(gateway):
    assert post(gateway, FAR, password="wrong", times=3) == [401, 401, 429]
    assert post(gateway, [FAR, OTHER], password="secret") == [429, 201]
    client, connack = web(gateway, FAR)
    client.close()
    assert connack.code == 0x97


def test_connections_are_counted_where_they_come_from(gateway):
    clients = [web(gateway, said) for said in (OTHER, OTHER, OTHER, "192.0.2.9")]
    assert [connack.code for _, connack in clients] == [0, 0, 0x97, 0]
    for client, _ in clients:
        client.close()
    assert f'"host":"{OTHER}"' in gateway.log.read_text()
