"""One look of the poller: the order in which sockets are served."""

import asyncio
from contextlib import closing
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from types import SimpleNamespace

import pytest

from gateway.sockets.poller import Poller

pytestmark = pytest.mark.anyio

CLOSED, OPEN = 1, 2  # the numbers of two sockets


class ServedSocket:
    def __init__(self, poller, number, served):
        self.poller = poller
        self.number = number
        self.served = served

    def ready(self, events):
        self.served.append((self.number, events))
        if self.number == CLOSED:
            raise ValueError("a bug")

    def look_again(self):
        self.served.append("again")

    def abort(self):
        pass


@pytest.mark.parametrize("end", [EPOLLRDHUP, EPOLLHUP, EPOLLERR])
async def test_the_last_words_of_a_closed_socket_come_before_the_reads_of_others(end, capsys):
    found = [("reader", b"CONNECT")], [OPEN], [(OPEN, EPOLLIN | EPOLLOUT), (CLOSED, EPOLLIN | end)], 7
    looks = [found, ([], [], [], 0)]
    served = []
    batches = SimpleNamespace(receive=lambda *_: looks.pop(0))
    with closing(Poller(asyncio.get_running_loop(), served.append, batches=batches)) as poller:
        poller.sockets = {number: ServedSocket(poller, number, served) for number in (CLOSED, OPEN)}
        poller._turn()
    assert served == [(CLOSED, EPOLLIN | end), [("reader", b"CONNECT")], "again", (OPEN, EPOLLIN | EPOLLOUT)]
    assert "a socket cannot be served" in capsys.readouterr().out
