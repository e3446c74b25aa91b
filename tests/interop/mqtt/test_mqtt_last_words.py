"""The last words of a connection about its session are known to the next one, however soon that comes."""

import socket
import struct

import pytest

from tests.support.mqtt.paho_client import fresh


def connect(port, name):
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    client_id = name.encode()
    body = b"\0\4MQTT\4\0\0\x3c" + struct.pack("!H", len(client_id)) + client_id
    peer.sendall(bytes([0x10, len(body)]) + body)
    assert peer.recv(4)[:2] == b"\x20\2"
    return peer


def packets(peer, count):
    """Returns the next packets, of less than 128 bytes each, as their first byte and their body."""
    data, found = b"", []
    while len(found) < count:
        data += peer.recv(65_536)
        while len(data) > 1 and len(data) >= 2 + data[1]:
            found.append((data[0], data[2 : 2 + data[1]]))
            data = data[2 + data[1] :]
    return found


@pytest.mark.parametrize("how", ["abrupt", "closed", "taken over"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_is_sent_again_with_its_identifier(shared_gateway, how, qos):
    port, topic = shared_gateway.port("mqtt"), fresh("last").encode()
    name = fresh("w")[-23:]
    with connect(port, fresh("p")[-23:]) as publisher:
        peer = connect(port, name)
        subscribe = b"\0\1" + struct.pack("!H", len(topic)) + topic + bytes([qos])
        peer.sendall(bytes([0x82, len(subscribe)]) + subscribe)
        assert packets(peer, 1) == [(0x90, bytes([0, 1, qos]))]
        for n in range(1, 4):
            body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", n) + b"x%d" % n
            publisher.sendall(bytes([0x32, len(body)]) + body)
        first = packets(peer, 3)
        for _ in range(5):
            before = peer
            if how == "abrupt":
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how != "taken over":
                peer.close()
            peer = connect(port, name)
            before.close()
            again = packets(peer, 3)
            assert [(kind | 8, body) for kind, body in first] == again
        peer.close()
