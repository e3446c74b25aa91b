"""Whoever can reach a controller's port: they hold few places for a short time, and keep no member out."""

import asyncio
import resource
import socket
import struct
from contextlib import ExitStack

import pytest

from controller.api.commands import CreateTopic
from controller.api.requests import AskService
from controller.node import streams
from controller.remote.remote import RemoteController
from controller.wire.wire import COMMAND, FOLLOW, HEARTBEAT, PEER, path
from store.base.listening import server
from store.base.pipes.pipe import OPENING
from tests.support.controller.controllers import Controllers

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SILENT_COUNT = 2_000
FILES = 3 * SILENT_COUNT


@pytest.fixture
def many_files():
    """Raises the limit of open files, and yields how many sockets the test may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield min(SILENT_COUNT, max(soft, most) // 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_ones(strangers):
    """Returns how many sockets have not been closed by the other side."""
    found = 0
    for one in strangers:
        try:
            found += one.recv(1 << 16) != b""  # a server of HTTP/2 speaks first
        except (BlockingIOError, InterruptedError):
            found += 1
        except ConnectionError:
            continue
    return found


def stream_of(method):
    """Returns the first bytes of a stream of which nothing else is said."""
    name = path(method).encode()
    return OPENING + struct.pack("<I", len(name)) + name


@pytest.mark.slow
async def test_two_thousand_silent_sockets_keep_no_member_out(tmp_path, many_files):
    async with Controllers(tmp_path, count=1) as controllers:
        await controllers.leader()
        before = controllers.remote()
        await before.ready()
        (address,) = before.addresses()
        host, _, port = address.rpartition(":")
        with ExitStack() as stack:
            strangers = []
            for n in range(many_files):
                one = stack.enter_context(socket.create_connection((host, int(port))))
                one.setblocking(False)
                strangers.append(one)
                if n % 100 == 0:
                    await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                while open_ones(strangers) > server.UNOPENED_MAX:
                    await asyncio.sleep(0.05)
                await before.do(CreateTopic(name="old"))
                member = RemoteController([address], now_ms=lambda: 0)
                await member.ready()
                assert [topic.name for topic in member.topics()] == ["old"]
                await member.close()


@pytest.mark.slow
async def test_a_socket_that_stays_silent_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "OPENING_S", 0.3)
    monkeypatch.setattr(streams, "OPENING_S", 0.3)
    async with Controllers(tmp_path, count=1) as controllers:
        await controllers.leader()
        client = controllers.remote()
        await client.ready()
        host, _, port = client.addresses()[0].rpartition(":")
        http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
        for said in (b"", http2, OPENING, *(stream_of(method) for method in (PEER, FOLLOW, COMMAND, HEARTBEAT))):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read(1 << 10):
                    pass
            writer.close()
        await asyncio.sleep(0.4)  # those who were admitted stay for longer than strangers may
        await client.do(AskService(group=0))


async def test_streams_that_say_nothing_make_way_for_those_that_come_later(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "UNOPENED_MAX", 4)
    async with Controllers(tmp_path, count=1) as controllers:
        await controllers.leader()
        client = controllers.remote()
        await client.ready()
        host, _, port = client.addresses()[0].rpartition(":")
        strangers = []
        for _ in range(12):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(stream_of(COMMAND))
            strangers.append((reader, writer))
        async with asyncio.timeout(PATIENCE_S):
            for reader, _ in strangers[:8]:
                while await reader.read(1 << 10):
                    pass
        await client.do(AskService(group=0))
        for _, writer in strangers:
            writer.close()
