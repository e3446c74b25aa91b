"""Every open port of every kind of process, under every kind of input that comes before an authentication.

The ports are read from the kernel, so that a new listener is attacked too. From ten addresses, strangers hold hundreds
of connections to each port at once. Clients from another address get in meanwhile, and when the strangers have gone
the processes have no socket and little memory more than before.
"""

import contextlib
import json
import random
import resource
import socket
import ssl
from ipaddress import ip_address

import httpx
import pika
import pytest
from aiocoap import POST, Message
from cryptography import x509
from typer.testing import CliRunner

from adapters.amqp.codec.wire import PROTOCOL_HEADER
from adapters.mqtt.codec.packets import Connect, Publish
from controller.wire.wire import COMMAND
from controller.wire.wire import path as path_of
from gateway.cli.commands import app
from gateway.process.local_cluster import ClusterPlan
from store.base.pipes.pipe import OPENING
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started
from tests.support.coap.coap_device import Device
from tests.support.coap.dtls_client import DtlsSocket
from tests.support.mqtt.packet_client import PacketClient
from tests.support.process.certificates import Authority
from tests.support.process.gateways import GatewayProcess
from tests.support.process.listening import ports_of, resident_bytes_of, sockets_of
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

CONNECTIONS = 300  # to each port; more than the 256 places that a store or a controller has for strangers
ADDRESSES = 10
OWN_SOCKETS = 8  # that a process opens when it first needs them, as for gRPC
GROWTH_BYTES_MAX = 320 << 20  # 192 MiB of unauthenticated input, and what serving costs
SUCCESS = 2  # the class of a code (RFC 7252, 5.9)
DATAGRAM_BYTES = 1_200
PSK = b"a-secret-of-dev42"

HELLO = bytes.fromhex("16030102000100") + b"\x01\xfc\x03\x03"  # a ClientHello of 512 bytes begins (RFC 8446, 4.1.2)
NOISE = random.Random(7).randbytes(4 << 10)
NAME = path_of(COMMAND).encode()
KINDS = {
    "silence": b"",
    "noise": NOISE,
    "half a TLS handshake": HELLO,
    "half a request": b"POST /topics/a HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n" + bytes(64 << 10),
    "HTTP/2 without a request": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"),
    "half an MQTT packet": b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05" + bytes(64 << 10),
    "an AMQP header": PROTOCOL_HEADER,
    "half a message of a pipe": OPENING + (75 << 20).to_bytes(4, "little") + bytes(64 << 10),
    "a call without a message": OPENING + len(NAME).to_bytes(4, "little") + NAME,
}


@contextlib.contextmanager
def strangers(ports, kinds):
    """Holds connections to every port, each of which has said one of the kinds in turn; datagrams are sent once."""
    with contextlib.ExitStack() as stack:
        for n in range(CONNECTIONS):
            said = KINDS[kinds[n % len(kinds)]]
            for port in ports:
                stream = port.transport == "tcp"
                one = stack.enter_context(
                    socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
                )
                one.bind((f"127.0.1.{1 + n % ADDRESSES}", 0))
                with contextlib.suppress(ConnectionError):  # the other side may have closed it by now
                    one.connect(("127.0.0.1", port.number))
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        one.send(said if stream else said[:DATAGRAM_BYTES])
        yield


@pytest.fixture(scope="module", autouse=True)
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Served:
    """`headgate serve` with every listener, TLS and DTLS among them."""

    def __init__(self, directory):
        authority = Authority(directory / "ca")
        own = authority.issue(
            "gateway", x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")), server=True
        )
        keys, config = directory / "psk.json", directory / "headgate.toml"
        keys.write_text(json.dumps({"keys": [{"identity": "dev42", "key": PSK.hex()}]}))
        config.write_text(
            f'[tls]\ncert_file = "{own.cert_file}"\nkey_file = "{own.key_file}"\n[auth]\npsk_file = "{keys}"\n'
            "[listeners.coaps]\nenabled = true\n"
        )
        self.tls = ssl.create_default_context(cafile=authority.file)
        self.gateway = GatewayProcess(directory / "data", "--config", str(config))
        self.posts = httpx.Client(verify=self.tls, trust_env=False, timeout=60)

    def pids(self):
        return [self.gateway.process.pid]

    def speak(self):
        """Publishes by every listener, on connections that are new, and reads what has been published."""
        port = self.gateway.port
        for name, tls in (("mqtt", None), ("mqtts", self.tls)):
            device = PacketClient(port(name), tls=tls)
            assert not device.ask(Connect(version=5, client_id=f"honest-{name}")).code
            assert not device.ask(Publish(topic=f"honest/{name}", payload=b"x", qos=1, packet_id=1)).code
            device.socket.close()
        for url in (self.gateway.url, f"https://localhost:{port('https')}"):
            assert self.posts.post(f"{url}/topics/honest", content=b"x", headers={"connection": "close"}).is_success
        device = Device(port("coap"))
        assert device.ask("topics/honest/coap", payload=b"x").code >> 5 == SUCCESS
        device.close()
        secured = DtlsSocket(port("coaps"), b"dev42", PSK)
        sent = Message(code=POST, uri_path=("topics", "honest", "coaps"), payload=b"x")
        assert secured.ask(sent).code.is_successful()
        secured.close()
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port("amqp"))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("amq.topic", "honest.amqp", b"x")
        command = ["topics", "--port-offset", str(self.gateway.offset)]
        assert "honest" in CliRunner().invoke(app, command).output
        assert self.gateway.answers("/readyz")


class Clustered:
    """A controller, a store node and a proxy."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.url = f"http://127.0.0.1:{8080 + cluster.plan.port_offset}"

    def pids(self):
        return [child.pid for child in self.cluster.children.values()]

    def speak(self):
        """Publishes through all three, and asks them by the command line how they are."""
        assert httpx.post(f"{self.url}/topics/honest", content=b"x", trust_env=False, timeout=60).is_success
        addresses = ",".join(self.cluster.plan.addresses.values())
        result = CliRunner().invoke(app, ["cluster", "status", "--json", "--controllers", addresses])
        assert json.loads(result.output)["troubles"] == [], result.output


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    found = Served(tmp_path_factory.mktemp("served"))
    found.gateway.start()
    yield found
    found.posts.close()
    found.gateway.close()


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    with started(on_free_ports(ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 1, 1, 1, 1)), all_groups) as cluster:
        yield Clustered(cluster)


def attack(rig, kinds):
    """Holds strangers' connections to every port of a rig, and compares what it has open before and afterwards."""
    rig.speak()
    pids = rig.pids()
    ports = [port for pid in pids for port in ports_of(pid)]
    sockets = {pid: len(sockets_of(pid)) for pid in pids}
    memory = {pid: resident_bytes_of(pid) for pid in pids}
    with strangers(ports, kinds):
        rig.speak()
        grown = {pid: resident_bytes_of(pid) - memory[pid] for pid in pids}
    assert max(grown.values()) < GROWTH_BYTES_MAX, grown
    for pid, count in sockets.items():
        wait_until(lambda pid=pid, most=count + OWN_SOCKETS: len(sockets_of(pid)) <= most, "sockets stay open")
    rig.speak()


@pytest.mark.parametrize("rig", ["served", "clustered"])
def test_strangers_of_every_kind_at_every_port_keep_nobody_out_and_leave_nothing(request, rig):
    attack(request.getfixturevalue(rig), list(KINDS))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rig", ["served", "clustered"])
def test_strangers_of_one_kind_at_every_port_keep_nobody_out_and_leave_nothing(request, rig, kind):
    attack(request.getfixturevalue(rig), [kind])
