"""Ports for processes of tests: none is among those that the system gives to connections, which are from 32768 on."""

import random
import socket
from collections.abc import Callable, Collection

PORTS = {"mqtt": 1883, "mqtt-ws": 8083, "coap": 5683, "amqp": 5672, "http": 8080, "rpc": 8081, "admin": 8088}
TLS_PORTS = {"mqtts": 8883, "mqtt-wss": 8084, "amqps": 5671, "https": 8443}
OFFSETS = range(10_000, 22_500)  # added to ports below 10,000
TRIES = 100


def free_offset(ports: Callable[[int], Collection[int]], *, but: Collection[int] = ()) -> int:
    """An offset at which every port is free, for TCP and for UDP, and none of `but`. `ports` says which they are."""
    for offset in random.sample(OFFSETS, TRIES):
        if all(port not in but and _is_free(port) for port in ports(offset)):
            return offset
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
