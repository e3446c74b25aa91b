"""TLS whose records lead to nothing: it is ended soon, and small or slow records are not taken for it."""

import asyncio
import contextlib
import gc
import ssl
import weakref

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from gateway.security import tls_listener
from gateway.security.auth_settings import TlsConfig
from gateway.security.tls import ServerTls
from gateway.security.tls_listener import HANDSHAKE_BYTES, Handshakes, TlsListener
from gateway.sockets import tls_input
from gateway.sockets.tls_input import BARREN_BYTES_MAX, KEPT_BYTES_MAX, PIECE_BYTES_MAX, TlsInput
from store.base.listening import PeerBudget
from tests.support.process.certificates import Authority
from tests.support.process.loops import AsyncioLoop, UvLoop

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
KEY_UPDATE = b"\x18\x00\x00\x01\x00"  # RFC 8446, 4.6.3: none is asked for in return
ALERT, HANDSHAKE, APPLICATION_DATA = 21, 22, 23


@pytest.fixture(params=[AsyncioLoop, UvLoop], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """Chooses the loop: each has its own TLS."""
    return "asyncio", {"loop_factory": request.param}


@pytest.fixture(params=[None, 0], ids=["in time", "always late"], autouse=True)
def turn_s(request, monkeypatch):
    """Puts each piece aside, or those alone for which there is no time."""
    if request.param is not None:
        monkeypatch.setattr(tls_input, "TURN_S", request.param)


class Echo(asyncio.Protocol):
    """Says what it hears."""

    last = None

    def connection_made(self, transport):
        Echo.last, self.transport = self, transport
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.transport.write(data)

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Collector(asyncio.Protocol):
    """Takes over a connection, and only hears."""

    def __init__(self, heard, lost):
        self._heard, self._lost = heard, lost

    def data_received(self, data):
        self._heard.append(data)

    def connection_lost(self, exc):
        self._lost.set_result(exc)


class Peer:
    """A client that encrypts its records itself, once the handshake is done (RFC 8446, 5.2, 7.1 and 7.2)."""

    def __init__(self, reader, writer, keys):
        self.reader, self.writer = reader, writer
        self._keys = keys
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    async def shake(self):
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        trust.minimum_version, trust.keylog_filename = ssl.TLSVersion.TLSv1_3, str(self._keys)
        tls = trust.wrap_bio(self._incoming, self._outgoing)
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            self.writer.write(self._outgoing.read())
            self._incoming.write(await self.reader.read(1 << 16))
        self.writer.write(self._outgoing.read())
        self.tls = tls
        assert tls.cipher()[0] == "TLS_AES_256_GCM_SHA384"
        lines = dict(line.split()[::2] for line in self._keys.read_text().splitlines() if line[0] != "#")
        self._take(bytes.fromhex(lines["CLIENT_TRAFFIC_SECRET_0"]))
        return self

    def _take(self, secret):
        self._secret, self._count = secret, 0
        self._cipher, self._iv = AESGCM(self._expand(b"key", 32)), self._expand(b"iv", 12)

    def _expand(self, label, size):
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)

    def record(self, kind, data, *, padding=0):
        """Returns a record, and goes on to the next key behind a key update."""
        head = b"\x17\x03\x03" + (len(data) + 17 + padding).to_bytes(2, "big")
        nonce = (int.from_bytes(self._iv, "big") ^ self._count).to_bytes(12, "big")
        sealed = self._cipher.encrypt(nonce, data + bytes([kind]) + bytes(padding), head)
        self._count += 1
        if data == KEY_UPDATE:
            self._take(self._expand(b"traffic upd", 48))
        return head + sealed

    async def heard(self, size):
        """Returns so many bytes of plaintext."""
        found = b""
        async with asyncio.timeout(WAIT_S):
            while len(found) < size:
                try:
                    found += self.tls.read(1 << 16)
                except ssl.SSLWantReadError:
                    data = await self.reader.read(1 << 16)
                    assert data, "the connection was ended"
                    self._incoming.write(data)
        return found


async def until(met):
    async with asyncio.timeout(WAIT_S):
        while not met():
            await asyncio.sleep(0.01)


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    own = Authority(tmp_path).issue("gateway", x509.DNSName("localhost"), server=True)
    config = TlsConfig(cert_file=own.cert_file, key_file=own.key_file)
    async with contextlib.AsyncExitStack() as stack:
        rig = Rig(tmp_path / "keys", stack)

        def made(*given, **more):
            rig.inputs.append(TlsInput(*given, **more))
            return rig.inputs[-1]

        monkeypatch.setattr(tls_listener, "TlsInput", made)
        rig.listener = TlsListener(
            Echo,
            ServerTls(config).context([]),
            Handshakes(PeerBudget()),
            handshake_s=WAIT_S,
            cut_off=lambda: rig.cut_off.append(True),
            failed=lambda _host, reason: rig.failed.append(reason),
        )
        await rig.listener.listen("127.0.0.1", 0, backlog=10, shared=False)
        stack.callback(rig.listener.close)
        yield rig


class Rig:
    """A listener, and its peers."""

    def __init__(self, keys, stack):
        self._keys, self._stack = keys, stack
        self.cut_off, self.failed, self.inputs = [], [], []

    async def peer(self):
        port = self.listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._stack.callback(writer.close)
        return Peer(reader, writer, self._keys)

    async def served(self):
        """Returns a peer that was answered once."""
        peer = await (await self.peer()).shake()
        peer.writer.write(peer.record(APPLICATION_DATA, b"x"))
        assert await peer.heard(1) == b"x"
        return peer

    async def ended(self, peer):
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while await peer.reader.read(1 << 16):
                    pass
        await until(lambda: self.cut_off)


async def test_key_updates_without_end_end_the_connection(rig):
    """One connection without a login kept the event loop for as long as it sent them."""
    peer = await (await rig.peer()).shake()
    flood = b"".join(peer.record(HANDSHAKE, KEY_UPDATE) for _ in range(2 * BARREN_BYTES_MAX // 27))
    peer.writer.write(flood)
    await rig.ended(peer)
    assert rig.cut_off == [True]


async def test_key_updates_between_data_do_not(rig):
    peer = await (await rig.peer()).shake()
    said = b""
    for n in range(2 * BARREN_BYTES_MAX // 27):
        data = b"%d" % n
        peer.writer.write(peer.record(HANDSHAKE, KEY_UPDATE) + peer.record(APPLICATION_DATA, data))
        said += data
    assert await peer.heard(len(said)) == said
    assert rig.cut_off == []


@pytest.mark.parametrize("size", [1, 16 << 10])
async def test_records_of_any_size_that_come_byte_by_byte_do_not(rig, size):
    peer = await (await rig.peer()).shake()
    said = bytes(size) * 3
    records = b"".join(peer.record(APPLICATION_DATA, bytes(size)) for _ in range(3))
    step = max(len(records) // 500, 1)
    for at in range(0, len(records), step):
        peer.writer.write(records[at : at + step])
        await asyncio.sleep(0)
    assert await peer.heard(len(said)) == said
    assert rig.cut_off == []


async def test_padding_is_paid_for_by_time(rig, monkeypatch):
    monkeypatch.setattr(tls_input, "BARREN_BYTES_PER_S", 1 << 40)
    peer = await (await rig.peer()).shake()
    for _ in range(3 * BARREN_BYTES_MAX // 2_000):
        peer.writer.write(peer.record(APPLICATION_DATA, b"x", padding=2_000))
        assert await peer.heard(1) == b"x"
        await asyncio.sleep(0.002)  # uvloop's clock counts milliseconds
    assert rig.cut_off == []


async def test_little_is_kept_while_nobody_reads_and_all_of_it_is_there_later(rig):
    peer = await rig.served()
    (below,) = rig.inputs
    Echo.last.transport.pause_reading()
    said = b"".join(peer.record(APPLICATION_DATA, bytes(10_000)) for _ in range(100))
    peer.writer.write(said)
    await until(lambda: below._aside_bytes > KEPT_BYTES_MAX)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert below._aside_bytes <= KEPT_BYTES_MAX + PIECE_BYTES_MAX
    Echo.last.transport.resume_reading()
    assert len(await peer.heard(1_000_000)) == 1_000_000
    assert below._aside_bytes == 0
    assert rig.cut_off == []


async def test_key_updates_while_nobody_reads_count_when_it_is_read_again(rig):
    """TLS kept them, and decrypted them at once, in nobody's time."""
    peer = await rig.served()
    (below,) = rig.inputs
    Echo.last.transport.pause_reading()
    peer.writer.write(b"".join(peer.record(HANDSHAKE, KEY_UPDATE) for _ in range(2 * BARREN_BYTES_MAX // 27)))
    await until(lambda: below._aside_bytes > KEPT_BYTES_MAX)
    assert rig.cut_off == []
    Echo.last.transport.resume_reading()
    await rig.ended(peer)
    assert rig.cut_off == [True]


async def test_an_end_comes_behind_what_was_put_aside(rig):
    peer = await rig.served()
    (below,) = rig.inputs
    heard = []
    Echo.last.transport.set_protocol(Collector(heard, Echo.last.lost))
    Echo.last.transport.pause_reading()
    peer.writer.write(b"".join(peer.record(APPLICATION_DATA, bytes(1_000)) for _ in range(20)))
    peer.writer.write_eof()
    await until(lambda: below._at_end)
    Echo.last.transport.resume_reading()
    await asyncio.wait_for(Echo.last.lost, WAIT_S)
    assert sum(map(len, heard)) == 20_000


async def test_an_error_of_ours_ends_one_connection(rig, monkeypatch):
    peer, other = await (await rig.peer()).shake(), await (await rig.peer()).shake()
    failing, _ = rig.inputs
    real = TlsInput._decrypt

    def decrypt(one, nbytes):
        if one is failing:
            raise ZeroDivisionError
        real(one, nbytes)

    monkeypatch.setattr(TlsInput, "_decrypt", decrypt)
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    peer.writer.write(peer.record(APPLICATION_DATA, b"x"))
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(peer.reader.read(), WAIT_S)
    other.writer.write(other.record(APPLICATION_DATA, b"y"))
    assert await other.heard(1) == b"y"
    assert [type(one) for one in told] == [ZeroDivisionError]


@pytest.mark.parametrize("time_s", [60.0, 0.0])
async def test_input_after_the_end_may_take_some_time(rig, monkeypatch, time_s):
    monkeypatch.setattr(tls_input, "ENDING_S_MAX", time_s)
    peer = await rig.served()
    Echo.last.transport.close()
    peer.writer.write(b"".join(peer.record(APPLICATION_DATA, bytes(10_000)) for _ in range(30)))
    if time_s:
        peer.writer.write(peer.record(ALERT, b"\x01\x00"))  # close_notify
    await asyncio.wait_for(Echo.last.lost, WAIT_S)
    assert rig.cut_off == [] if time_s else [True]


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""])
async def test_a_handshake_that_fails_leaves_nothing(rig, begun, monkeypatch):
    """Its error referred to itself, by what it was raised in: 45 KB stayed until the next search for cycles."""
    if isinstance(asyncio.get_running_loop(), AsyncioLoop):
        pytest.skip("asyncio's TLS itself leaves some")
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            peer = await rig.peer()
            peer.writer.write(begun)
            peer.writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(peer.reader.read(), WAIT_S)
            peer.writer.close()
        made = [weakref.ref(one) for one in rig.inputs]
        rig.inputs.clear()
        await until(lambda: not any(one() for one in made))
    finally:
        gc.enable()


async def test_a_handshake_that_leads_to_nothing_ends(rig):
    peer = await rig.peer()
    part = b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc" + bytes((16 << 10) - 4)  # of a ClientHello, and again
    peer.writer.write(part * (2 * HANDSHAKE_BYTES // len(part) + 1))
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            while await peer.reader.read(1 << 16):
                pass
    await until(lambda: rig.cut_off or rig.failed)
