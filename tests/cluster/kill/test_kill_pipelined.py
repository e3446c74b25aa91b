"""kill -9 under HTTP clients with several requests in flight: the log has everything that was answered."""

import socket
import threading

import pytest

from tests.support.cluster.senders import stored
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

KILLS = 2
CLIENTS = 8
AT_ONCE = 3  # requests in flight on each connection, sent one by one
ANSWERS_A_LIFE = 300
REQUEST = (
    "POST /events HTTP/1.1\r\nhost: localhost\r\nce-specversion: 1.0\r\nce-source: //a/b\r\nce-type: t\r\n"
    "ce-subject: {subject}\r\nce-id: {number}\r\ncontent-length: {size}\r\n\r\n{number}"
)


class Client(threading.Thread):
    """Posts events, until its connection ends; `answered` are the numbers of those that the gateway has answered."""

    def __init__(self, gateway, name, first):
        super().__init__(daemon=True)
        self.peer = socket.create_connection((gateway.host, gateway.port("http")), timeout=90)
        self.name, self.sent, self.answered, self.wrong = name, first, [], []

    def post(self):
        self.peer.sendall(
            REQUEST.format(subject=f"kill/{self.name}", number=self.sent, size=len(str(self.sent))).encode()
        )
        self.sent += 1

    def run(self):
        due, unread = self.sent, b""
        try:
            for _ in range(AT_ONCE):
                self.post()
            while data := self.peer.recv(1 << 16):
                unread += data
                while b"\r\n\r\n" in unread and unread.endswith(b"}"):
                    head, _, rest = unread.partition(b"\r\n\r\n")
                    body, _, unread = rest.partition(b"}")
                    if not head.startswith(b"HTTP/1.1 200 ") or b'"id":"%d"' % due not in body:
                        self.wrong.append(head + body)
                    self.answered.append(due)
                    due += 1
                    self.post()
        except OSError:
            pass  # it was killed
        self.peer.close()


def test_what_was_answered_is_stored_once_and_in_order(new_gateway):
    gateway = new_gateway()
    begun, answered = [0] * CLIENTS, [[] for _ in range(CLIENTS)]
    for _ in range(KILLS):
        gateway.start()
        clients = [Client(gateway, f"c{n}", first) for n, first in enumerate(begun)]
        for client in clients:
            client.start()
        wait_until(lambda clients=clients: all(len(one.answered) >= ANSWERS_A_LIFE for one in clients), "no answers")
        gateway.kill()
        for n, client in enumerate(clients):
            client.join()
            assert not client.wrong
            begun[n] = client.sent
            answered[n] += client.answered
    gateway.start()
    found = stored(gateway)
    for n, numbers in enumerate(answered):
        log = found[f"kill/c{n}"]
        assert log == sorted(set(log))
        assert set(numbers) <= set(log)
