"""A TLS port: connections begin when their handshake is over, and those that wait are counted by network."""

import asyncio
import contextlib
import socket
import ssl

import pytest
from cryptography import x509

from gateway.security import tls_listener
from gateway.security.auth_settings import TlsConfig
from gateway.security.tls import ServerTls
from gateway.security.tls_listener import Handshakes, TlsListener
from gateway.sockets import listening as accepting
from store.base.listening import PeerBudget
from tests.support.process.certificates import Authority
from tests.support.process.loops import AsyncioLoop, UvLoop

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
# Each of the two loops ends a connection in its own way.
BOTH_LOOPS = pytest.mark.parametrize(
    "anyio_backend",
    [("asyncio", {"loop_factory": AsyncioLoop}), ("asyncio", {"loop_factory": UvLoop})],
    ids=["asyncio", "uvloop"],
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.issue("gateway", x509.DNSName("localhost"), server=True)


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class TlsRig:
    """A listener at 127.0.0.1."""

    def __init__(self, own, handshake_s, protocol=Echo, budget=None, **tls):
        self.cut_off = 0
        self.failed = []
        self.budget = budget or PeerBudget()
        self.handshakes = Handshakes(self.budget)
        config = TlsConfig(cert_file=own.cert_file, key_file=own.key_file, **tls)
        self.listener = TlsListener(
            protocol,
            ServerTls(config).context([]),
            self.handshakes,
            handshake_s=handshake_s,
            cut_off=self._cut,
            failed=lambda host, reason: self.failed.append((host, reason)),
        )

    def _cut(self):
        self.cut_off += 1

    async def open(self):
        await self.listener.listen("127.0.0.1", 0, backlog=10, shared=False)
        self.port = self.listener.sockets[0].getsockname()[1]
        return self

    async def connect(self, trust=None, *, by="127.0.0.1"):
        more = {} if trust is None else {"ssl": trust, "server_hostname": "localhost"}
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(by, 0), **more)

    async def until(self, count):
        async with asyncio.timeout(WAIT_S):
            while len(self.handshakes) != count:
                await asyncio.sleep(0.01)


@pytest.fixture
async def rig(own):
    async with contextlib.AsyncExitStack() as stack:

        async def made(*, handshake_s=WAIT_S, protocol=Echo, budget=None, **tls):
            rig = await TlsRig(own, handshake_s, protocol, budget, **tls).open()
            stack.callback(rig.listener.close)
            return rig

        yield made


@pytest.fixture
def trust(authority):
    return ssl.create_default_context(cafile=authority.file)


async def closed(writer):
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def test_a_connection_begins_when_its_handshake_is_over(rig, trust):
    rig = await rig()
    assert rig.listener.is_serving()
    reader, writer = await rig.connect(trust)
    writer.write(b"said")
    assert await reader.readexactly(4) == b"said"
    await rig.until(0)
    await closed(writer)


class Answering(asyncio.Protocol):
    """Answers with a body that is larger than sockets take, and closes."""

    SIZE_BYTES = 24 << 20
    made = None

    def connection_made(self, transport):
        Answering.made = self
        self.transport, self.paused = transport, False
        self.ended = asyncio.get_running_loop().create_future()
        transport.set_write_buffer_limits(high=1 << 20)

    def data_received(self, _data):
        self.transport.write(bytes(self.SIZE_BYTES))
        self.left_bytes = self.transport.get_write_buffer_size()
        self.transport.close()

    def pause_writing(self):
        self.paused = True

    def resume_writing(self):
        self.paused = False

    def connection_lost(self, exc):
        self.ended.set_result(exc)


async def test_output_that_a_peer_does_not_read_is_seen_and_arrives_when_it_reads(rig, trust):
    """Below TLS the event loop's transport takes any number of bytes, and says so to nobody."""
    rig = await rig(protocol=Answering)
    reader, writer = await rig.connect(trust)
    writer.write(b"GET")
    await writer.drain()
    async with asyncio.timeout(WAIT_S):
        while Answering.made is None or not hasattr(Answering.made, "left_bytes"):
            await asyncio.sleep(0.01)
        answering = Answering.made
        assert answering.paused
        assert answering.left_bytes > answering.SIZE_BYTES // 2
        assert len(await reader.read()) == answering.SIZE_BYTES
        assert not answering.paused
        await closed(writer)
        assert await answering.ended is None


@BOTH_LOOPS
@pytest.mark.parametrize("flood", ["127.0.0.1", "127.0.0.2"], ids=["its own network", "another network"])
async def test_handshakes_that_do_not_end_keep_nobody_out(rig, trust, monkeypatch, flood):
    """The oldest one makes way, of the network that has most, so those who come later are let in."""
    monkeypatch.setattr(tls_listener, "HANDSHAKES_COUNT_MAX", 3)
    rig = await rig()
    _, slow = others = await rig.connect(by="127.0.0.3")
    waiting = [await rig.connect(by=flood) for _ in range(8)]
    for reader, _ in waiting[:6]:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    assert (rig.cut_off, len(rig.handshakes)) == (6, 3)
    reader, writer = await rig.connect(trust)
    writer.write(b"said")
    assert await reader.readexactly(4) == b"said"
    assert not others[0].at_eof()
    for _, one in [*waiting, (reader, writer), (reader, slow)]:
        await closed(one)
    await rig.until(0)
    assert rig.budget.held_bytes == 0


@BOTH_LOOPS
async def test_handshakes_count_as_unauthenticated_input(rig):
    rig = await rig(budget=PeerBudget(3 * tls_listener.HANDSHAKE_BYTES))
    waiting = [await rig.connect() for _ in range(4)]
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(waiting[0][0].read(), WAIT_S) == b""
    await rig.until(3)
    assert (rig.cut_off, rig.budget.held_bytes) == (1, rig.budget.bytes_max)
    for _, one in waiting:
        await closed(one)
    await rig.until(0)
    assert rig.budget.held_bytes == 0


async def turned_away(reader, writer):
    """Waits for the end of a connection that is not let in."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        await asyncio.wait_for(reader.read(), WAIT_S)
    await closed(writer)


@BOTH_LOOPS
async def test_a_handshake_that_does_not_end_is_no_connection_and_is_said(rig):
    rig = await rig(handshake_s=0.05)
    await turned_away(*await rig.connect())
    await rig.until(0)
    assert rig.failed == [("127.0.0.1", "it takes too long")]


@BOTH_LOOPS
async def test_input_that_is_no_handshake_is_no_connection_and_is_said(rig):
    rig = await rig()
    reader, writer = await rig.connect()
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await turned_away(reader, writer)
    await rig.until(0)
    assert rig.failed == [("127.0.0.1", "http request")]


def shake_hands(port, context):
    """Connects as a program without an event loop does, and hears how it ends."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        secured.recv(1)


@BOTH_LOOPS
async def test_an_unknown_certificate_is_said_on_both_sides(rig, authority, trust, tmp_path):
    """The server's, as the client tells with its alert, and the client's, with the reason of the check."""
    rig = await rig(client_certificates="required", client_ca_file=authority.file)
    other = Authority(tmp_path)
    await asyncio.to_thread(shake_hands, rig.port, ssl.create_default_context(cafile=other.file))
    await rig.until(0)
    await asyncio.to_thread(shake_hands, rig.port, trust)  # without a certificate
    await rig.until(0)
    foreign = other.issue("device", x509.DNSName("device"))
    trust.load_cert_chain(foreign.cert_file, foreign.key_file)
    await asyncio.to_thread(shake_hands, rig.port, trust)
    await rig.until(0)
    (host, server), (_, missing), (_, unknown) = rig.failed
    assert host == "127.0.0.1"
    assert server.startswith("tlsv1 alert ")
    assert missing == "peer did not return a certificate"
    assert unknown.startswith("certificate verify failed: ")


@BOTH_LOOPS
async def test_a_peer_that_goes_away_is_not_worth_a_word(rig):
    rig = await rig()
    _, writer = await rig.connect()
    await rig.until(1)
    await closed(writer)
    await rig.until(0)
    assert rig.failed == []


async def test_a_port_that_is_closed_ends_handshakes_and_takes_no_more(rig):
    rig = await rig()
    reader, writer = await rig.connect()
    await rig.until(1)
    rig.listener.close()
    assert not rig.listener.is_serving()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    await rig.until(0)
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await rig.connect()
    await closed(writer)


async def test_a_port_that_is_taken_is_said(rig, own):
    rig = await rig()
    with pytest.raises(OSError, match="in use"):
        await TlsRig(own, WAIT_S).listener.listen("127.0.0.1", rig.port, backlog=10, shared=False)


async def test_without_file_descriptors_it_is_tried_again(rig, trust, monkeypatch):
    monkeypatch.setattr(accepting, "OUT_OF_FILES_S", 0.01)
    rig = await rig()
    (listening,) = rig.listener.sockets
    accept, failures = socket.socket.accept, [OSError(24, "Too many open files")]

    def fails_once(sock):
        if sock is listening and failures:
            raise failures.pop()
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", fails_once)
    reader, writer = await rig.connect(trust)
    writer.write(b"said")
    assert await reader.readexactly(4) == b"said"
    await closed(writer)
