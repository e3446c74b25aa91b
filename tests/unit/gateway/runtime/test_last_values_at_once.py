"""Last values that many connections ask for at once: as many are read at a time as there is memory for."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.delivery.read_slots import MessageReads
from gateway.port.adapter import Call, Token
from gateway.port.reads import LastValue, LastValues
from gateway.runtime.requests import answer
from store.api.message import Message, encode
from store.format.frame import LogOffset, Position

pytestmark = pytest.mark.anyio

MiB = 1 << 20


class Log:
    """A log whose reads take some turns of the loop."""

    def __init__(self):
        self.under_way = self.most = 0

    async def last(self, _hash, queues):
        assert list(queues) == [16]
        return Position(LogOffset(8), 0)

    async def addresses(self, _prefix, *, after, limit):
        return [] if after else ["a"]

    async def read(self, _position):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        return encode(Message("a", b"x", 0, "http", "d"))


@pytest.mark.parametrize("request_", [LastValue(address="a"), LastValues(pattern="#", limit=9)])
async def test_no_more_are_read_at_a_time_than_fit(request_):
    log = Log()
    reads = MessageReads(bytes_max=256 * MiB, message_bytes_max=16 * MiB, unread_bytes=lambda: 0)
    directory = SimpleNamespace(settle=lambda: asyncio.sleep(0))
    router = SimpleNamespace(queues_at=lambda _address: [16])
    hub = SimpleNamespace(store=SimpleNamespace(log=log), reads=reads, directory=directory, router=router)
    permissions = SimpleNamespace(access=None, reads=lambda _address: True)
    endpoint = SimpleNamespace(principal=SimpleNamespace(permissions=permissions))
    calls = [answer(hub, endpoint, Call(request=request_, token=Token(number))) for number in range(40)]
    found = await asyncio.gather(*calls)
    assert len(found) == 40
    assert log.most == 8
