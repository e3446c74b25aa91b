"""CoAP over TCP and TLS (RFC 8323) against a whole gateway, by bytes over real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.coap import FACTORY
from adapters.coap.codec.registry import CONTENT, CREATED, GET, OBSERVE, POST, URI_PATH
from adapters.coap.codec.wire import encode_options
from adapters.coap.stream.frames import encode_frame, read_head
from adapters.coap.stream.signals import CSM
from gateway.config.config import load
from gateway.process.app import Gateway
from gateway.process.backend import local_backend
from tests.support.process.certificates import Authority
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

ANSWER_TIMEOUT_S = 60
PATH = ((URI_PATH, b"t"), (URI_PATH, b"a"))
POSTED = encode_frame(POST, b"p", encode_options(PATH) + b"\xffx")
OBSERVED = encode_frame(GET, b"o", encode_options([*PATH, (OBSERVE, b"")]))


@pytest.fixture(autouse=True)
def coap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.app.adapter_factories", lambda: {"coap": FACTORY})


@asynccontextmanager
async def serving(directory: Path, **sections: Any) -> AsyncIterator[Gateway]:
    """Yields a gateway that speaks CoAP over TCP."""
    listeners = {"coap": {"enabled": False}, "coap-tcp": {"port": 0, "tls_port": 0}}
    store = {"data_dir": str(directory / "data")}
    overrides = {"store": store, "rpc": {"enabled": False}, "admin": {"port": 0}, "listeners": listeners, **sections}
    config = load(None, {}, overrides, factories={"coap": FACTORY})
    async with local_backend(config) as backend, asyncio.TaskGroup() as tasks:
        gateway = Gateway(config, backend, tasks)
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()
            await gateway.stop_admin()
            gateway.hub.cancel_tasks()


class Client:
    """A connection behind its CSM."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._data = b""

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
        client.writer.write(encode_frame(CSM))
        assert await client.heard() == CSM
        return client

    async def ask(self, data: bytes) -> int:
        """Sends a message, and returns the code of the next one that comes."""
        self.writer.write(data)
        return await self.heard()

    async def heard(self) -> int:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while (head := read_head(self._data, 0)) is None or len(self._data) < head.end:
                data = await self._reader.read(65_536)
                assert data
                self._data += data
        self._data = self._data[head.end :]
        return head.code


@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "reset"])
async def test_observations_end_with_their_connection(tmp_path: Path, *, abruptly: bool) -> None:
    async with serving(tmp_path) as gateway:
        client = await Client.connect(gateway.listening[0].port)
        assert [await client.ask(POSTED), await client.ask(OBSERVED)] == [CREATED, CONTENT]
        assert gateway.hub.fanout.subscription_count == 1
        if abruptly:
            client.writer.transport.abort()
        else:
            client.writer.close()
        await until(lambda: gateway.hub.fanout.subscription_count == 0)


async def test_tls_offers_the_protocol_coap(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    server = authority.issue("server", server=True)
    tls = {"cert_file": str(server.cert_file), "key_file": str(server.key_file)}
    async with serving(tmp_path, tls=tls) as gateway:
        (port,) = [one.port for one in gateway.listening if one.secure]
        context = ssl.create_default_context(cafile=str(authority.file))
        context.check_hostname = False
        context.set_alpn_protocols(["h2", "coap"])
        client = await Client.connect(port, context)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "coap"
        assert await client.ask(POSTED) == CREATED
        client.writer.close()
