"""Ports that workers share are nobody else's."""

import socket

import pytest

from gateway.config.config import ListenerConfig
from gateway.process.shared_ports import SharedPorts
from store.base.process_errors import ServerFailed

pytestmark = pytest.mark.anyio


def stream(port=0, **more):
    return {"mqtt": ListenerConfig(name="mqtt", transport="tcp", port=port, **more)}


def datagram(port=0):
    return {"coap": ListenerConfig(name="coap", transport="udp", port=port)}


def worker(port, kind=socket.SOCK_STREAM):
    sock = socket.socket(socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    if kind == socket.SOCK_STREAM:
        sock.listen()
    return sock


@pytest.fixture
async def kept():
    ports = await SharedPorts.keep(stream(tls_port=0) | datagram())
    yield ports
    ports.close()


async def test_a_port_that_was_left_open_is_a_real_one_for_all_workers(kept):
    mqtt, coap = kept.listeners["mqtt"], kept.listeners["coap"]
    assert mqtt.port
    assert mqtt.tls_port
    assert mqtt.port != mqtt.tls_port
    assert coap.port
    with worker(mqtt.port), worker(mqtt.port), worker(coap.port, socket.SOCK_DGRAM):
        pass


async def test_another_gateway_cannot_have_it_even_while_no_worker_lives(kept):
    port = kept.listeners["mqtt"].port
    with pytest.raises(ServerFailed, match=f"mqtt cannot listen on 127.0.0.1:{port}"):
        await SharedPorts.keep(stream(port))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
async def test_ports_that_others_share_are_taken(kind):
    with worker(0, kind) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerFailed, match="cannot listen"):
            await SharedPorts.keep(stream(port) if kind == socket.SOCK_STREAM else datagram(port))


async def test_nobody_is_counted_as_listening_who_only_keeps(kept):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", kept.listeners["mqtt"].port), timeout=60).close()


async def test_what_is_not_enabled_takes_nothing():
    with worker(0) as other:
        port = other.getsockname()[1]
        ports = await SharedPorts.keep(stream(port, enabled=False))
        assert ports.listeners["mqtt"].port == port
        ports.close()
