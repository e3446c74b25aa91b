"""Plain sockets in turns behave as asyncio's own transports do: the same tests, with both."""

import asyncio
import errno
import socket
import struct
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest

from gateway.sockets import batches, calls, listening, plain_batches, poller
from gateway.sockets.listening import PlainListener
from gateway.sockets.poller import Poller
from gateway.sockets.transport import SocketTransport
from tests.support.process.open_files import open_files
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * 65_536  # more than the kernel keeps


class HeardProtocol(asyncio.Protocol):
    """Writes down what it hears."""

    def __init__(self, *, half_open=False):
        self.half_open = half_open
        self.heard = []
        self.data = b""

    def connection_made(self, transport):
        self.transport = transport
        self.heard.append("made")

    def data_received(self, data):
        assert type(data) is bytes
        assert data
        self.data += data

    def eof_received(self):
        self.heard.append("eof")
        return self.half_open

    def pause_writing(self):
        self.heard.append("pause")

    def resume_writing(self):
        self.heard.append("resume")

    def connection_lost(self, exc):
        self.heard.append("lost" if exc is None else type(exc).__name__)


class SocketRig:
    def __init__(self):
        self.half_open = False
        self.peers = []
        self.clients = []
        self.turns = 0

    def made(self):
        self.peers.append(HeardProtocol(half_open=self.half_open))
        return self.peers[-1]

    async def connect(self):
        """Connects a socket of a client, and returns it with the protocol at its other end."""
        loop = asyncio.get_running_loop()
        count = len(self.peers)
        sock = socket.socket()
        self.clients.append(sock)
        sock.setblocking(False)
        await loop.sock_connect(sock, self.address)
        await until(lambda: len(self.peers) > count and "made" in self.peers[-1].heard)
        return sock, self.peers[-1]


@asynccontextmanager
async def asyncios(rig, _monkeypatch):
    server = await asyncio.get_running_loop().create_server(rig.made, "127.0.0.1", 0)
    rig.address = server.sockets[0].getsockname()
    yield
    server.close()
    for peer in rig.peers:
        if not peer.transport.is_closing():
            peer.transport.abort()
    for sock in rig.clients:
        sock.close()
    await asyncio.sleep(0)


def handed_over(reads):
    for protocol, data in reads:
        protocol.data_received(data)


@asynccontextmanager
async def ours(rig, monkeypatch, *, together=False, made=batches.CALLS):
    turn = Poller._turn

    def counted(self):
        rig.turns += 1
        turn(self)

    monkeypatch.setattr(Poller, "_turn", counted)
    sockets = Poller(asyncio.get_running_loop(), handed_over, batches=made)
    server = PlainListener(rig.made, sockets, together=together)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    rig.address = server.sockets[0].getsockname()
    assert server.is_serving()
    yield
    server.close()
    assert not server.is_serving()
    for sock in rig.clients:
        sock.close()
    for peer in rig.peers:
        peer.transport.abort()
    await until(lambda: not sockets.sockets)
    await asyncio.sleep(0)  # until the last of them is told
    sockets.close()


def ours_together(rig, monkeypatch):
    return ours(rig, monkeypatch, together=True)


def ours_together_in_python(rig, monkeypatch):
    return ours(rig, monkeypatch, together=True, made=plain_batches)


@pytest.fixture(params=[asyncios, ours, ours_together, ours_together_in_python])
async def rig(request, monkeypatch):
    rig = SocketRig()
    async with request.param(rig, monkeypatch):
        yield rig


async def read(sock, size):
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < size and (more := await loop.sock_recv(sock, 1 << 20)):
        data += more
    return data


async def test_what_is_sent_arrives_in_order(rig):
    loop = asyncio.get_running_loop()
    sock, peer = await rig.connect()
    await loop.sock_sendall(sock, LARGE)
    await until(lambda: len(peer.data) == len(LARGE))
    assert peer.data == LARGE
    sock.close()
    await until(lambda: peer.heard == ["made", "eof", "lost"])


async def test_what_the_kernel_does_not_take_is_kept_and_the_writer_is_asked_to_pause(rig):
    sock, peer = await rig.connect()
    peer.transport.set_write_buffer_limits(high=1 << 16)
    peer.transport.write(LARGE)
    peer.transport.write(bytearray(b"the end"))
    assert peer.heard == ["made", "pause"]
    assert peer.transport.get_write_buffer_size() > 1 << 16
    assert await read(sock, len(LARGE) + 7) == LARGE + b"the end"
    await until(lambda: peer.heard == ["made", "pause", "resume"])
    assert peer.transport.get_write_buffer_size() == 0
    sock.close()


async def test_a_connection_that_is_closed_writes_what_is_kept_and_reads_no_more(rig):
    sock, peer = await rig.connect()
    peer.transport.write(LARGE)
    peer.transport.close()
    assert peer.transport.is_closing()
    assert await read(sock, len(LARGE)) == LARGE
    await until(lambda: peer.heard[-1] == "lost")
    assert peer.data == b""
    sock.close()


async def test_an_aborted_connection_drops_what_is_kept(rig):
    sock, peer = await rig.connect()
    peer.transport.write(LARGE)
    peer.transport.abort()
    assert "lost" not in peer.heard  # in a turn of its own
    await until(lambda: peer.heard[-1] == "lost")
    with suppress(ConnectionResetError):
        assert len(await read(sock, len(LARGE))) < len(LARGE)
    sock.close()


async def test_a_peer_that_has_said_everything_still_gets_its_answers(rig):
    rig.half_open = True
    loop = asyncio.get_running_loop()
    sock, peer = await rig.connect()
    await loop.sock_sendall(sock, b"question")
    sock.shutdown(socket.SHUT_WR)
    await until(lambda: peer.heard == ["made", "eof"])
    turns = rig.turns
    await asyncio.sleep(0.05)  # a repeated end of file would cause some thousand turns
    assert rig.turns - turns < 10
    peer.transport.write(b"answer")
    assert await read(sock, 6) == b"answer"
    peer.transport.close()
    await until(lambda: peer.heard == ["made", "eof", "lost"])
    sock.close()


async def test_both_halves_are_closed(rig):
    rig.half_open = True
    sock, peer = await rig.connect()
    peer.transport.write(LARGE)
    peer.transport.write_eof()
    assert await read(sock, len(LARGE) + 1) == LARGE
    sock.shutdown(socket.SHUT_WR)
    await until(lambda: "eof" in peer.heard)
    turns = rig.turns
    await asyncio.sleep(0.05)
    assert rig.turns - turns < 10
    peer.transport.close()
    await until(lambda: peer.heard[-1] == "lost")
    sock.close()


async def test_a_peer_that_breaks_off_is_an_error(rig):
    loop = asyncio.get_running_loop()
    sock, peer = await rig.connect()
    await loop.sock_sendall(sock, b"last words")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await until(lambda: peer.data == b"last words")
    sock.close()
    await until(lambda: peer.heard == ["made", "ConnectionResetError"])


async def test_what_is_written_to_a_peer_that_has_gone_is_an_error_told_later(rig):
    sock, peer = await rig.connect()
    peer.transport.pause_reading()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    for _ in range(200):
        peer.transport.write(b"hello")
        await asyncio.sleep(0.001)
        if peer.heard != ["made"]:
            break
    assert peer.heard in (["made", "ConnectionResetError"], ["made", "BrokenPipeError"])
    peer.transport.write(b"too late")
    peer.transport.close()
    peer.transport.abort()
    await asyncio.sleep(0)
    assert len(peer.heard) == 2


async def test_one_that_is_not_read_is_left_alone(rig):
    loop = asyncio.get_running_loop()
    sock, peer = await rig.connect()
    peer.transport.pause_reading()
    assert not peer.transport.is_reading()
    await loop.sock_sendall(sock, b"wait")
    turns = rig.turns
    await asyncio.sleep(0.05)
    assert peer.data == b""
    assert rig.turns - turns < 10
    peer.transport.resume_reading()
    await until(lambda: peer.data == b"wait")
    sock.close()


async def test_another_protocol_takes_over(rig):
    loop = asyncio.get_running_loop()
    sock, peer = await rig.connect()
    other = HeardProtocol()
    peer.transport.set_protocol(other)
    await loop.sock_sendall(sock, b"for the other")
    await until(lambda: other.data == b"for the other")
    sock.close()
    await until(lambda: other.heard == ["eof", "lost"])
    assert peer.data == b""


async def test_addresses_are_known(rig):
    sock, peer = await rig.connect()
    info = peer.transport.get_extra_info
    assert info("peername") == sock.getsockname()
    assert info("sockname") == sock.getpeername()
    assert info("ssl_object") is None
    sock.close()


async def test_a_socket_that_cannot_be_served_takes_nobody_with_it(monkeypatch):
    rig, said = SocketRig(), []
    monkeypatch.setattr(poller, "log", SimpleNamespace(exception=said.append))
    async with ours(rig, monkeypatch):
        loop = asyncio.get_running_loop()
        bad, worse = await rig.connect()
        good, peer = await rig.connect()
        worse.data_received = None
        await loop.sock_sendall(bad, b"x")
        await until(lambda: said == ["a socket cannot be served"])
        await loop.sock_sendall(good, b"fine")
        await until(lambda: peer.data == b"fine")
        bad.close()
        good.close()


async def test_connections_closed_in_one_turn_with_what_came_for_them(monkeypatch):
    """A connection may end another one that has something to read in the very same turn."""
    rig = SocketRig()
    async with ours(rig, monkeypatch):
        pairs = [await rig.connect() for _ in range(10)]

        def end_all(_data):
            for peer in rig.peers:
                peer.transport.abort()

        for _, peer in pairs:
            peer.data_received = end_all
        for sock, _ in pairs:
            sock.send(b"x")
        await until(lambda: all(peer.heard == ["made", "lost"] for peer in rig.peers))
        for sock, _ in pairs:
            sock.close()


async def test_more_sockets_than_one_turn_takes(monkeypatch):
    monkeypatch.setattr(poller, "SOCKETS_A_TURN", 3)
    rig = SocketRig()
    async with ours(rig, monkeypatch):
        pairs = [await rig.connect() for _ in range(10)]
        for sock, _ in pairs:
            sock.send(b"x")
        await until(lambda: all(peer.data == b"x" for peer in rig.peers))
        for sock, _ in pairs:
            sock.close()


async def test_a_connection_whose_protocol_fails_is_closed_and_others_are_let_in(monkeypatch):
    rig, said = SocketRig(), []
    monkeypatch.setattr(listening, "log", SimpleNamespace(exception=said.append))
    made = rig.made
    rig.made = lambda: rig.next()  # noqa: PLW0108 - which is another one later
    rig.next = lambda: 1 / 0
    async with ours(rig, monkeypatch):
        loop = asyncio.get_running_loop()
        sock = socket.create_connection(rig.address)
        sock.setblocking(False)
        assert await loop.sock_recv(sock, 1) == b""
        assert said == ["a connection cannot begin"]
        sock.close()
        rig.next = made
        sock, peer = await rig.connect()
        sock.close()
        await until(lambda: peer.heard[-1] == "lost")


async def test_a_connection_that_cannot_begin_is_looked_at_no_more_and_told_of_its_end(monkeypatch):
    rig = SocketRig()

    class Failing(HeardProtocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise KeyError("a bug of ours")

    monkeypatch.setattr(listening, "log", SimpleNamespace(exception=lambda *_: None))
    sockets = Poller(asyncio.get_running_loop(), handed_over)
    rig.made = lambda: rig.peers.append(Failing()) or rig.peers[-1]
    server = PlainListener(rig.made, sockets)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    with socket.create_connection(server.sockets[0].getsockname()) as sock:
        sock.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        assert not sockets.sockets
        await until(lambda: rig.peers[0].heard == ["made", "lost"])
    server.close()
    sockets.close()


async def test_connections_that_are_turned_away_leave_no_file_descriptor():
    class Shut(HeardProtocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.abort()

    sockets, peers = Poller(asyncio.get_running_loop(), handed_over), []
    server = PlainListener(lambda: peers.append(Shut()) or peers[-1], sockets)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    before = open_files()
    for count in range(1, 21):
        with socket.create_connection(server.sockets[0].getsockname()):
            await until(lambda count=count: len(peers) == count and peers[-1].heard == ["made", "lost"])
    assert [file for file in open_files() - before if file.startswith("socket:")] == []
    assert not sockets.sockets
    server.close()
    sockets.close()


async def test_a_poller_that_is_closed_ends_the_connections_that_are_left():
    sockets, peers = Poller(asyncio.get_running_loop(), handed_over), []
    server = PlainListener(lambda: peers.append(HeardProtocol()) or peers[-1], sockets)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    with socket.create_connection(server.sockets[0].getsockname()) as sock:
        await until(lambda: bool(peers))
        server.close()
        sockets.close()
        await until(lambda: peers[0].heard == ["made", "lost"])
        peers[0].transport.abort()
        peers[0].transport.resume_reading()
        sock.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""


async def test_a_family_of_addresses_that_the_kernel_is_without_is_passed_over(monkeypatch):
    loop, real = asyncio.get_running_loop(), socket.socket

    def without_v6(family, *args):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *args)

    async def both(_host, port, **_):
        v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        return [v6, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))][:found]

    server = PlainListener(HeardProtocol, Poller(loop, handed_over))
    server._loop = SimpleNamespace(getaddrinfo=both, add_reader=loop.add_reader, remove_reader=loop.remove_reader)
    monkeypatch.setattr(socket, "socket", without_v6)
    found = 2
    await server.listen("localhost", 0, backlog=10, shared=False)
    assert [sock.family for sock in server.sockets] == [socket.AF_INET]
    server.close()
    found = 1
    with pytest.raises(OSError, match="not supported"):
        await server.listen("localhost", 0, backlog=10, shared=False)
    server._poller.close()


class Abortable(HeardProtocol):
    def abort(self):
        self.transport.abort()


async def test_reads_that_cannot_be_handed_over_end_their_connections(monkeypatch):
    monkeypatch.setattr(poller, "log", SimpleNamespace(exception=lambda *_: None))
    peers = []

    def failing(_reads):
        raise KeyError("a bug of ours")

    sockets = Poller(asyncio.get_running_loop(), failing)
    server = PlainListener(lambda: peers.append(Abortable()) or peers[-1], sockets, together=True)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    with socket.create_connection(server.sockets[0].getsockname()) as sock:
        sock.sendall(b"x")
        await until(lambda: bool(peers) and peers[0].heard == ["made", "lost"])
    server.close()
    sockets.close()


async def test_a_socket_that_is_paused_in_its_turn_is_not_read_in_it():
    peers, read = [], []

    def pausing(reads):
        read.extend(reads)
        for peer in peers:
            peer.transport.pause_reading()

    sockets = Poller(asyncio.get_running_loop(), pausing)
    server = PlainListener(lambda: peers.append(Abortable()) or peers[-1], sockets, together=True)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    address = server.sockets[0].getsockname()
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_connection(address) as first,
        socket.create_connection(address) as second,
    ):
        patch.setattr(poller, "TOGETHER_BYTES", 1)
        await until(lambda: len(peers) == 2)
        first.sendall(b"x")
        second.sendall(b"y")
        await until(lambda: bool(read))
        assert len(read) == 1
        for peer in peers:
            peer.transport.resume_reading()
        await until(lambda: len(read) == 2)
    server.close()
    sockets.close()


@asynccontextmanager
async def two_peers(received):
    """Yields a poller with two connections, and the clients' ends of them; `received` takes each look's reads."""
    peers = []
    sockets = Poller(asyncio.get_running_loop(), received)
    server = PlainListener(lambda: peers.append(Abortable()) or peers[-1], sockets, together=True)
    await server.listen("127.0.0.1", 0, backlog=10, shared=False)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address) as first, socket.create_connection(address) as second:
        await until(lambda: len(peers) == 2)
        yield sockets, first, second
        for peer in peers:
            peer.transport.abort()
        await until(lambda: not sockets.sockets)
        await asyncio.sleep(0)
    server.close()
    sockets.close()


async def test_what_comes_while_reads_are_handed_over_is_read_in_the_same_turn():
    handed = []

    def received(reads):
        handed.append([data for _, data in reads])
        if len(handed) == 1:
            second.sendall(b"y")

    async with two_peers(received) as (sockets, first, second):
        asyncio.get_running_loop().remove_reader(sockets._epoll.fileno())
        first.sendall(b"x")
        sockets._turn()
        assert handed == [[b"x"], [b"y"]]
        asyncio.get_running_loop().add_reader(sockets._epoll.fileno(), sockets._turn)


async def test_reads_of_unknown_outcome_end_all_connections(monkeypatch):
    """Nobody knows which of them has lost what was read."""
    monkeypatch.setattr(poller, "log", SimpleNamespace(exception=lambda *_: None))

    def failing(*_):
        raise MemoryError

    async with two_peers(None) as (sockets, _, __):
        sockets._receive = failing
        sockets._turn()
        assert not sockets.sockets
        assert not sockets.readers


async def test_a_turn_ends_though_there_is_always_more_to_read():
    handed = []

    def received(reads):
        handed.append(b"".join([data for _, data in reads]))
        first.sendall(b"x")

    async with two_peers(received) as (sockets, first, _):
        asyncio.get_running_loop().remove_reader(sockets._epoll.fileno())
        first.sendall(b"x")
        sockets._turn()
        assert handed == [b"x"] * poller.LOOKS_A_TURN
        asyncio.get_running_loop().add_reader(sockets._epoll.fileno(), sockets._turn)


async def test_a_turn_that_has_read_much_does_not_look_again():
    handed = []

    def received(reads):
        handed.append(sum(len(data) for _, data in reads))
        first.sendall(b"x")

    async with two_peers(received) as (sockets, first, _):
        asyncio.get_running_loop().remove_reader(sockets._epoll.fileno())
        first.sendall(bytes(poller.LOOK_AGAIN_BYTES + 1))
        sockets._turn()
        assert handed == [poller.LOOK_AGAIN_BYTES + 1]
        asyncio.get_running_loop().add_reader(sockets._epoll.fileno(), sockets._turn)


async def test_what_one_read_leaves_is_read_in_the_next_looks(monkeypatch):
    monkeypatch.setattr(calls, "READ_BYTES", 4)
    handed = []

    def received(reads):
        handed.extend(data for _, data in reads)

    async with two_peers(received) as (_, first, __):
        first.sendall(b"0123456789")
        await until(lambda: b"".join(handed) == b"0123456789")
        assert max(map(len, handed)) <= 4


async def test_what_is_left_unread_is_read_without_anything_new(rig, monkeypatch):
    monkeypatch.setattr(calls, "READ_BYTES", 4)
    sock, peer = await rig.connect()
    sock.sendall(b"0123456789")
    await until(lambda: peer.data == b"0123456789")
    peer.transport.pause_reading()
    sock.sendall(b"while it is not read")
    sock.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0)
    peer.transport.resume_reading()
    await until(lambda: peer.heard[-1] == "lost")
    assert peer.data == b"0123456789while it is not read"
    assert peer.heard == ["made", "eof", "lost"]


async def test_a_last_word_and_its_end_that_come_in_one_look_are_both_heard(rig):
    rig.half_open = True
    sock, peer = await rig.connect()
    sock.sendall(b"last")
    sock.shutdown(socket.SHUT_WR)
    await until(lambda: peer.heard == ["made", "eof"])
    assert peer.data == b"last"
    peer.transport.write(b"answer")
    sock.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(sock, 100) == b"answer"


async def test_a_transport_says_while_it_may_be_written_to_directly(rig):
    sock, peer = await rig.connect()
    if not isinstance(peer.transport, SocketTransport):
        return
    number = peer.transport.get_extra_info("socket").fileno()
    assert peer.transport.writable_number == number
    peer.transport.wrote(b"all of it", 0)
    assert peer.transport.writable_number == -1
    sock.setblocking(False)
    assert await read(sock, 9) == b"all of it"
    await until(lambda: peer.transport.writable_number == number)
    peer.transport.write(b"more, ")
    peer.transport.wrote(b"__and more", 2)
    assert await read(sock, 14) == b"more, and more"
    await until(lambda: peer.transport.writable_number == number)
    peer.transport.write_eof()
    assert peer.transport.writable_number == -1
    peer.transport.wrote(b"x", -errno.EPIPE)
    await until(lambda: peer.heard[-1] == "BrokenPipeError")
    peer.transport.wrote(b"x", 0)
    assert peer.transport.get_write_buffer_size() == 0
    assert peer.transport.writable_number == -1


async def test_a_reset_is_heard_while_nothing_is_read(rig):
    sock, peer = await rig.connect()
    peer.transport.pause_reading()
    await asyncio.sleep(0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    peer.transport.resume_reading()
    await until(lambda: peer.heard[-1] in {"lost", "ConnectionResetError"})
