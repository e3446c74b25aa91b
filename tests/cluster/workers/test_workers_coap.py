"""CoAP at `headgate serve --workers 2`: one UDP port, whose datagrams come to whichever worker their peer's come to."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from adapters.coap.codec.registry import GET, OBSERVE, PUT
from tests.support.cluster.senders import stored
from tests.support.coap.coap_device import BLOCK_BYTES, Device
from tests.support.coap.coap_driver import dotted
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

DEVICES = 12  # by chance at either worker; once in two thousand runs all at one, which says nothing then
BLOCKS = 8
WAIT_S = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    gateway = GatewayProcess(tmp_path_factory.mktemp("workers") / "data", "--workers", "2").start()
    yield gateway
    gateway.close()


@pytest.fixture
def devices(gateway):
    devices = [Device(gateway.port("coap")) for _ in range(DEVICES)]
    yield devices
    for one in devices:
        one.close()


def at_once(work, devices):
    """Returns the results of work that devices do at the same time; `work` is given their numbers too."""
    with ThreadPoolExecutor(len(devices)) as threads:
        return list(threads.map(work, range(len(devices)), devices))


def body_of(number):
    return bytes([number]) * (BLOCK_BYTES * BLOCKS - 100) + b"%d" % number


def test_what_one_publishes_all_read(devices):
    for number, device in enumerate(devices):
        said = dotted(device.ask("t/seen/here", PUT, payload=b"%d" % number).code)
        assert said == ("2.04" if number else "2.01")
        for other in devices:
            packet = other.ask("t/seen/here", GET)
            assert (dotted(packet.code), packet.payload) == ("2.05", b"%d" % number)


def test_what_one_publishes_all_observers_hear_at_whichever_worker(devices):
    publisher, *observers = devices
    publisher.ask("t/observed/here", payload=b"value")
    for device in observers:
        packet = device.ask("t/observed/here", GET, options=((OBSERVE, b""),))
        assert (dotted(packet.code), packet.payload) == ("2.05", b"value")
        assert OBSERVE in [number for number, _ in packet.options]
    assert dotted(publisher.ask("t/observed/here", PUT, payload=b"another").code) == "2.04"
    for device in observers:
        packet = device.heard()
        while packet.payload == b"value":  # on its way when it began to observe
            packet = device.heard()
        assert (dotted(packet.code), packet.payload) == ("2.05", b"another")
        assert OBSERVE in [number for number, _ in packet.options]


def test_a_message_that_comes_twice_is_stored_once(gateway, devices):
    def publish(number, device):
        first = device.ask(f"t/kill/coap{number}/n", payload=b"%d" % number)
        assert dotted(first.code) == "2.01"
        assert device.again() == first

    at_once(publish, devices)
    found = stored(gateway)
    for number in range(DEVICES):
        assert found[f"kill/coap{number}/n"] == [number]


def test_bodies_in_blocks_beside_each_other_are_whole(devices):
    assert (
        at_once(lambda number, device: device.upload(f"t/blocks/{number}", body_of(number)), devices)
        == ["2.01"] * DEVICES
    )
    read = at_once(lambda number, device: device.download(f"t/blocks/{(number + 1) % DEVICES}"), devices)
    assert read == [body_of((number + 1) % DEVICES) for number in range(DEVICES)]


def test_bodies_of_which_a_killed_worker_had_the_beginning_are_sent_anew_and_whole(gateway, devices):
    half = BLOCKS // 2

    def begin(number, device):
        return [dotted(device.put(f"t/halves/{number}", body_of(number), at).code) for at in range(half)]

    assert at_once(begin, devices) == [["2.31"] * half] * DEVICES
    killed = workers(gateway)[0]
    os.kill(killed["pid"], signal.SIGKILL)
    said = at_once(lambda number, device: device.upload(f"t/halves/{number}", body_of(number), first=half), devices)
    assert said == ["2.01"] * DEVICES
    read = at_once(lambda number, device: device.download(f"t/halves/{number}"), devices)
    assert read == [body_of(number) for number in range(DEVICES)]

    def is_started_again():
        one = workers(gateway)[0]
        return one["ready"] and one["pid"] != killed["pid"]

    wait_until(is_started_again, "the worker is not started again")


def workers(gateway):
    return httpx.get(f"http://127.0.0.1:{gateway.port('admin')}/status").json()["workers"]
