"""Datagrams of a socket that is bound to all addresses leave by the address that the peer has sent to."""

import socket
import sys
from collections.abc import Iterator

import pytest

from gateway.runtime.wildcard_socket import WildcardSocket, is_wildcard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the socket options are Linux's")


@pytest.fixture(params=["0.0.0.0", "::"])
def bound(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.bind((request.param, 0))
    except OSError:
        pytest.skip(f"this machine has no {request.param}")
    with sock:
        yield sock


def ask(address: str, port: int) -> socket.socket:
    """Returns a socket that has sent a datagram to an address, and hears nobody else."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.settimeout(60)
    client.connect((address, port))
    client.send(b"ask")
    return client


def test_an_answer_comes_from_the_address_that_was_asked(bound: socket.socket) -> None:
    served, port = WildcardSocket(bound), bound.getsockname()[1]
    bound.settimeout(60)
    addresses = ["127.0.0.1", "127.0.0.2", "127.9.9.9"]  # of IPv6, as addresses mapped into it
    if bound.family == socket.AF_INET6:
        addresses.append("::1")
    peers = set()
    for address in addresses:
        with ask(address, port) as client:
            data, peer = served.recvfrom(65_535)
            assert (data, peer[1]) == (b"ask", client.getsockname()[1])
            served.sendto(b"told", peer)
            assert client.recv(100) == b"told"
            peers.add(peer)
    assert len(peers) == len(addresses)


def test_a_peer_is_another_one_at_each_address_of_ours(bound: socket.socket) -> None:
    served, port = WildcardSocket(bound), bound.getsockname()[1]
    bound.settimeout(60)
    family = bound.family
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        peers = []
        for address in addresses:
            client.sendto(b"x", (f"::ffff:{address}" if family == socket.AF_INET6 else address, port))
            peers.append(served.recvfrom(65_535)[1])
    assert peers[0] == peers[2] != peers[1]
    assert peers[0][:-1] == peers[1][:-1]


def test_only_sockets_of_all_addresses_need_it(bound: socket.socket) -> None:
    assert is_wildcard(bound)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        assert not is_wildcard(one)
