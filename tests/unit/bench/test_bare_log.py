"""The bare durable broker: what it acknowledges is in its file, however the packets were cut."""

import os
import socket
import threading
from itertools import pairwise

from tests.bench.load.base import json_payload
from tests.bench.load.mqtt.mqtt_wire import PINGRESP, connect, publish, receive, topic
from tests.bench.peers.bare_log import serve

PINGREQ = b"\xc0\x00"


def test_messages_are_in_the_file_before_they_are_acknowledged(tmp_path):
    path, stop = tmp_path / "log", os.eventfd(0, os.EFD_NONBLOCK)
    log = os.open(path, os.O_CREAT | os.O_WRONLY)
    packets = [publish(topic(n), json_payload(300), qos=n % 2, identifier=300 + n) for n in range(5)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener, log, stop))
        server.start()
        try:
            with connect("127.0.0.1", listener.getsockname()[1], "bare") as device:
                stream = b"".join(packets) + PINGREQ
                for start, end in pairwise((0, 1, 200, 500, len(stream))):
                    device.sendall(stream[start:end])
                expected = b"\x40\x02" + (301).to_bytes(2, "big") + b"\x40\x02" + (303).to_bytes(2, "big") + PINGRESP
                came = b""
                while len(came) < len(expected):
                    came += receive(device)
            assert came == expected
            assert path.read_bytes() == b"".join(packets)
        finally:
            os.eventfd_write(stop, 1)
            server.join()
            os.close(log)
            os.close(stop)
