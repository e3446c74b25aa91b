"""Random, cut and patched datagrams: a Reset, an error of the protocol's own, or nothing; never an exception."""

from random import Random
from typing import Any

import pytest

from adapters.coap.codec.registry import ACK, BLOCK1, BLOCK2, CON, GET, NON, OBSERVE, POST, RST
from adapters.coap.codec.wire import Packet, decode, encode
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, request
from tests.support.coap.oscore_peer import ClientContext, OscoreDriver

ROUNDS = 3_000
SEEDS = [
    request("t/a/b", payload=b"body", content_format=50, query=("qos=1", "expiry=5", "x=y")),
    request("t/a/b", type=NON, token=b"12345678", payload=b"\xff\xff"),
    request("t/a", options=((BLOCK1, b"\x0e"),), payload=bytes(1024)),
    request("t/a", content_format=65_011, payload=b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":1}'),
    request("t/a", GET, options=((BLOCK2, b"\x10"), (17, b"\x32"), (4, b"etag"))),
    request(".well-known/core", GET, query=("href=/t/%41*", "rt=core")),
    request("a", GET, options=((OBSERVE, b""),)),
    request("a", GET, mid=2, options=((OBSERVE, b"\x01"),)),
    request("a", GET, query=("ct=application/cloudevents+json",)),
    encode(Packet(type=ACK, code=0, mid=1)),
    encode(Packet(type=CON, code=0, mid=1)),
]
LIMITS = {
    "dedup_peer_max": 50,
    "dedup_total_max": 80,
    "peers_max": 3,
    "requests_outstanding_max": 5,
    "observers_max": 2,
    "block_transfers_max": 3,
    "block_bytes_max": 4096,
    "max_body_bytes": 1500,
}


def check(driver: Driver, out: list[tuple[bytes, Any]]) -> None:
    for data, _ in out:
        packet = decode(data)
        if packet.type == RST:
            assert packet.code == 0
        else:
            assert packet.code == 0 or packet.code >> 5 in {2, 4, 5}


def mangled(random: Random) -> bytes:
    data = bytearray(random.choice(SEEDS))
    for _ in range(random.randrange(4)):
        what, at = random.randrange(4), random.randrange(len(data) or 1)
        if what == 0:
            del data[at:]
        elif what == 1:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif what == 2:
            data[at:at] = random.randbytes(random.randrange(20))
        else:
            data[2:4] = random.randbytes(2)
    return bytes(data)


def noise(random: Random) -> bytes:
    data = random.randbytes(random.randrange(40))
    if random.random() < 0.7:  # the right version, a request
        data = bytes([0x40 | random.randrange(32), random.choice([0, GET, POST, 3, 4, 69])]) + data
    return data


@pytest.mark.parametrize("make", [noise, mangled])
@pytest.mark.parametrize("limits", [{}, LIMITS])
@pytest.mark.parametrize("seed", [1, 2])
def test_datagrams_of_any_kind(make: Any, limits: dict[str, Any], seed: int) -> None:
    random = Random(seed)
    driver = Driver(limits, last=Message(address="a", body=bytes(1300), id="1"), listed=["a", "b/ü"])
    waiting: list[Any] = []
    for _ in range(ROUNDS):
        peer = (f"host{random.randrange(4)}", 1)
        waiting += driver.receive(*[make(random) for _ in range(random.randrange(1, 4))], peer=peer)
        if random.random() < 0.4:
            driver.complete(waiting)
            waiting = []
        check(driver, list(driver.endpoint.take_output()))
        if random.random() < 0.1:
            driver.now_ms += random.randrange(20_000)
            waiting += driver.endpoint.tick(now_ms=driver.now_ms)
            check(driver, list(driver.endpoint.take_output()))
    driver.complete(waiting)
    check(driver, list(driver.endpoint.take_output()))
    assert driver.endpoint.outstanding == 0
    for _ in range(1000):
        deadline = driver.endpoint.deadline_ms()
        if deadline is None:
            break
        driver.now_ms = max(driver.now_ms, deadline)
        driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
    assert driver.endpoint.exchanges.by_peer == {}
    assert len(driver.endpoint.exchanges) == 0
    assert len(driver.endpoint.transfers.uploads) == len(driver.endpoint.transfers.snapshots) == 0
    assert driver.endpoint.transfers.uploads._size_bytes == 0
    assert len(driver.endpoint.observers) == len(driver.subscriptions) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_protected_datagrams_of_any_kind(seed: int) -> None:
    """With OSCORE: whatever is changed outside or cut is answered in the protocol's terms, and nothing is kept."""
    random = Random(seed)
    driver = OscoreDriver(LIMITS, last=Message(address="a", body=bytes(300), id="1"))
    clients = [ClientContext(sender_id=bytes((n,))) for n in range(3)]
    for client in clients[:2]:
        driver.provision(f"dev{client.sender_id[0]}", client)
    waiting: list[Any] = []
    for _ in range(ROUNDS // 3):
        data = random.choice(clients).protect_request(
            random.choice(("t/a", "a", "t")),
            random.choice((GET, POST, 3, 4, 5)),
            token=random.randbytes(2),
            payload=random.choice((b"", b"x", b"a/#")),
            options=random.choice(((), ((OBSERVE, b""),), ((BLOCK1, b"\x08"),))),
        )
        if random.random() < 0.5:
            changed = bytearray(data)
            for _ in range(random.randrange(3)):
                changed[random.randrange(len(changed))] = random.randrange(256)
            data = bytes(changed[: random.randrange(len(changed) + 1)] if random.random() < 0.3 else changed)
        waiting += driver.receive(data, peer=(f"host{random.randrange(4)}", 1))
        if random.random() < 0.4:
            driver.complete(waiting)
            waiting = []
        check(driver, list(driver.endpoint.take_output()))
        if random.random() < 0.1:
            driver.now_ms += random.randrange(20_000)
            waiting += driver.endpoint.tick(now_ms=driver.now_ms)
            check(driver, list(driver.endpoint.take_output()))
    driver.complete(waiting)
    for _ in range(1000):
        check(driver, list(driver.endpoint.take_output()))
        deadline = driver.endpoint.deadline_ms()
        if deadline is None:
            break
        driver.now_ms = max(driver.now_ms, deadline)
        driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
    assert driver.stored
    assert driver.subscriptions == {}
    assert len(driver.endpoint._replies) == 0
    assert driver.endpoint._replies._size_bytes == 0


@pytest.mark.parametrize("data", SEEDS)
def test_every_prefix_of_a_message(data: bytes) -> None:
    driver = Driver(last=Message(address="a", id="1"))
    for end in range(len(data)):
        check(driver, [(encode(packet), None) for packet in driver.exchange(data[:end], peer=(str(end), 1))])
