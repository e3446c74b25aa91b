"""OSCORE over kill -9 and over several processes: nothing is done twice, no number is used twice, and clients go on."""

import socket
import time

import pytest

from adapters.coap.codec.registry import ACK, CON, EMPTY
from adapters.coap.codec.wire import Packet, decode, encode
from adapters.coap.oscore.option import decode_option
from tests.support.cluster.senders import stored
from tests.support.coap.oscore_client import provision
from tests.support.coap.oscore_peer import ClientContext
from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

OSCORE, ECHO = 9, 252
AGAIN_S = 0.5
PATIENCE_S = 60
CONFIG = """
[auth]
oscore_file = "{directory}/oscore.json"
[adapters.coap]
oscore = true
"""


class ProtectedDevice:
    """A device with a context; `pivs` are the gateway's sender sequence numbers that it has seen."""

    def __init__(self, context, port):
        self.context = context
        self.pivs = []
        self._token = 0
        self.socket = None
        self.at(port)

    def close(self):
        if self.socket is not None:
            self.socket.close()

    def at(self, port):
        """Sends from another port."""
        self.close()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(AGAIN_S)

    def exchange(self, data):
        """Sends a datagram until there is a response, and returns it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                self.socket.send(data)
                while True:
                    received = self.socket.recv(2_000)
                    packet = decode(received)
                    if packet.code != EMPTY and packet.token == decode(data).token:
                        break
            except (TimeoutError, ConnectionRefusedError):
                continue
            if packet.type == CON:
                self.socket.send(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))
            if packet.code >> 5 == 5:  # another process is to let go of the context first
                return None
            piv = decode_option(dict(packet.options).get(OSCORE, b"")).piv
            if piv is not None:
                self.pivs.append(piv)
            return received
        raise AssertionError("no answer")

    def publish(self, number):
        """Publishes a number, as fresh as it is asked for; the datagram that was taken."""
        options = ()
        for _ in range(20):
            self._token += 1
            data = self.context.protect_request(
                "t/kill/oscore/n", payload=b"%d" % number, token=self._token.to_bytes(3, "big"), options=options
            )
            received = self.exchange(data)
            if received is None or OSCORE not in dict(decode(received).options):
                time.sleep(0.1)
                continue
            answer = self.context.open_response(received)
            if answer.code.dotted == "2.01":
                return data
            assert answer.code.dotted == "4.01"
            options = ((ECHO, answer.opt.echo),)
        raise AssertionError("never published")


def replayed(gateway, device, datagrams):
    """Sends datagrams again from another address, as an attacker does who has recorded them."""
    thief = ProtectedDevice(device.context, gateway.port("coap"))
    for data in datagrams:
        thief.exchange(data)
    device.pivs += thief.pivs
    thief.close()


@pytest.fixture
def make_gateway(tmp_path):
    made = []

    def make(*arguments):
        provision(tmp_path / "oscore.json", "dev1")
        (tmp_path / "headgate.toml").write_text(CONFIG.format(directory=tmp_path))
        gateway = GatewayProcess(tmp_path / "data", "--config", str(tmp_path / "headgate.toml"), *arguments)
        made.append(gateway)
        return gateway.start()

    yield make
    for one in made:
        one.close()


def test_after_kill_9_no_replay_is_taken_and_no_number_used_again(make_gateway):
    gateway = make_gateway()
    device = ProtectedDevice(ClientContext(), gateway.port("coap"))
    taken = []
    for life in range(3):
        taken += [device.publish(number) for number in range(life * 10, life * 10 + 10)]
        if life == 2:
            break
        gateway.kill()
        gateway.process.wait()
        gateway.start()
        replayed(gateway, device, taken[-3:])
    assert stored(gateway)["kill/oscore/n"] == list(range(30))
    device.close()
    assert len(device.pivs) >= 8
    assert len(device.pivs) == len(set(device.pivs))


def test_a_context_goes_from_worker_to_worker(make_gateway):
    gateway = make_gateway("--workers", "2")
    device = ProtectedDevice(ClientContext(), gateway.port("coap"))
    taken = []
    for number in range(12):
        taken.append(device.publish(number))
        device.at(gateway.port("coap"))
        if number % 4 == 3:
            replayed(gateway, device, taken)
    device.close()
    assert stored(gateway)["kill/oscore/n"] == list(range(12))
    assert len(device.pivs) == len(set(device.pivs))
