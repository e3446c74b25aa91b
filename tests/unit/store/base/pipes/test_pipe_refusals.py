"""Nodes whose certificates do not fit together: each side says so, and others are served."""

import ipaddress
import logging

import grpc
import grpc.aio
import pytest
from cryptography import x509

from store.base.pipes import PipeServer, open_channel
from store.rpc.credentials import CredentialFiles
from tests.support.process.certificates import Authority
from tests.support.process.loops import AsyncioLoop, UvLoop
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[AsyncioLoop, UvLoop], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    """Chooses the loop: each of the two ends a connection in its own way."""
    return "asyncio", {"loop_factory": request.param}


class Same(grpc.GenericRpcHandler):
    """One question."""

    def service(self, _details):
        """See `grpc.GenericRpcHandler`."""
        return grpc.unary_unary_rpc_method_handler(self.answer)

    async def answer(self, request, _context):
        """Returns what came."""
        return request


async def asked(port, files):
    channel = open_channel(f"127.0.0.1:{port}", files.channel())
    try:
        return await channel.unary_unary("/test/Same")(b"x")
    finally:
        await channel.close()


async def test_both_sides_say_that_a_certificate_is_not_accepted(tmp_path, caplog):
    """A store with a certificate of another CA logged nothing, and /readyz named no reason."""
    caplog.set_level(logging.INFO)
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "other")
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    served, sound, foreign = ours.issue("server", here, server=True), ours.issue("node"), theirs.issue("foreign")
    server = PipeServer()
    server.add_generic_rpc_handlers((Same(),))
    port = server.add_secure_port("127.0.0.1:0", CredentialFiles(served.cert_file, served.key_file, ours.file).server())
    await server.start()

    def warned(text):
        return [line for line in caplog.records if line.levelno == logging.WARNING and text in line.getMessage()]

    try:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asked(port, CredentialFiles(foreign.cert_file, foreign.key_file, ours.file))
            assert "it does not accept this node's certificate" in caught.value.details()
        await until(
            lambda: len(warned("127.0.0.1 is refused: its certificate is not accepted (unable to get local")) == 1
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(port, CredentialFiles(sound.cert_file, sound.key_file, theirs.file))
        assert "its certificate is not accepted here: " in caught.value.details()
        assert await asked(port, CredentialFiles(sound.cert_file, sound.key_file, ours.file)) == b"x"
    finally:
        await server.stop(None)
