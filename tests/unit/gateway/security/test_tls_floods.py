"""TLS whose records lead to nothing: it is ended soon, and small or slow records are not taken for it."""

import asyncio
import contextlib
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from gateway.security.auth_settings import TlsConfig
from gateway.security.tls import ServerTls
from gateway.security.tls_listener import HANDSHAKE_BYTES, Handshakes, TlsListener
from gateway.sockets.tls_input import BARREN_BYTES_MAX
from store.base.listening import PeerBudget
from tests.support.process.certificates import Authority
from tests.support.process.loops import AsyncioLoop, UvLoop

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
KEY_UPDATE = b"\x18\x00\x00\x01\x00"  # RFC 8446, 4.6.3: none is asked for in return
HANDSHAKE, APPLICATION_DATA = 22, 23


@pytest.fixture(params=[AsyncioLoop, UvLoop], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """Chooses the loop: each has its own TLS."""
    return "asyncio", {"loop_factory": request.param}


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


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

    def record(self, kind, data):
        """Returns a record, and goes on to the next key behind a key update."""
        head = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2, "big")
        nonce = (int.from_bytes(self._iv, "big") ^ self._count).to_bytes(12, "big")
        sealed = self._cipher.encrypt(nonce, data + bytes([kind]), head)
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


@pytest.fixture
async def rig(tmp_path):
    own = Authority(tmp_path).issue("gateway", x509.DNSName("localhost"), server=True)
    config = TlsConfig(cert_file=own.cert_file, key_file=own.key_file)
    async with contextlib.AsyncExitStack() as stack:
        rig = Rig(tmp_path / "keys", stack)
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
        self.cut_off, self.failed = [], []

    async def peer(self):
        port = self.listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._stack.callback(writer.close)
        return Peer(reader, writer, self._keys)

    async def ended(self, peer):
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while await peer.reader.read(1 << 16):
                    pass
            while not self.cut_off:
                await asyncio.sleep(0.01)


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


async def test_a_handshake_that_leads_to_nothing_ends(rig):
    peer = await rig.peer()
    part = b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc" + bytes((16 << 10) - 4)  # of a ClientHello, and again
    peer.writer.write(part * (2 * HANDSHAKE_BYTES // len(part) + 1))
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            while await peer.reader.read(1 << 16):
                pass
        while not rig.cut_off and not rig.failed:
            await asyncio.sleep(0.01)
