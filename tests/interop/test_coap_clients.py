"""Real CoAP clients against a whole gateway: aiocoap's, and libcoap's coap-client where it is installed."""

import asyncio
import json
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cbor2
import pytest
from aiocoap import Context, Message, Unreliable
from aiocoap.numbers.codes import DELETE, FETCH, GET, POST, PUT, iPATCH

from adapters.coap import FACTORY
from adapters.http import FACTORY as HTTP
from gateway.config.config import load
from gateway.process.app import Gateway
from gateway.process.backend import local_backend

pytestmark = pytest.mark.anyio

ANSWER_TIMEOUT_S = 60
SCHEMES = {"coap": "coap", "coap-tcp": "coap+tcp", "http": "coap+ws"}  # by listener
LIBCOAP_SCHEMES = ("coap", "coap+tcp")  # distributions build its client without WebSocket
FACTORIES = {"coap": FACTORY, "http": HTTP}
LARGE = bytes(range(256)) * 200  # fifty blocks of 1024

# Debian's package has the program once for each TLS library.
LIBCOAP = next(filter(None, map(shutil.which, ("coap-client", "coap-client-notls", "coap-client-openssl"))), None)


@asynccontextmanager
async def serving(
    data_dir: Path, scheme: str = "coap", *, host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[str]:
    """Yields the URI of a gateway that speaks CoAP, with these settings, also over WebSocket."""
    overrides = {
        "store": {"data_dir": str(data_dir)},
        "listeners": {"coap": {"port": 0, "host": host}, "coap-tcp": {"port": 0}, "http": {"port": 0}},
        "rpc": {"enabled": False},
        "admin": {"port": 0},
        "adapters": {"coap": options},
    }
    config = load(None, {}, overrides, factories=FACTORIES)
    async with local_backend(config) as backend, asyncio.TaskGroup() as tasks:
        gateway = Gateway(config, backend, tasks)
        await gateway.start()
        ports = {SCHEMES.get(listening.name): listening.port for listening in gateway.listening}
        try:
            yield f"{scheme}://127.0.0.1:{ports[scheme]}"
        finally:
            await gateway.stop()
            await gateway.stop_admin()
            gateway.hub.cancel_tasks()


@pytest.fixture(autouse=True)
def coap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.app.adapter_factories", lambda: FACTORIES)


class CoapClient:
    """aiocoap's client."""

    def __init__(self, context: Context, uri: str) -> None:
        self._context = context
        self._uri = uri

    async def ask(
        self, code: int, path: str, payload: bytes = b"", *, reliable: bool = True, **options: Any
    ) -> Message:
        tuning = {} if reliable else {"transport_tuning": Unreliable}
        message = Message(code=code, uri=self._uri + path, payload=payload, **tuning)
        for name, value in options.items():
            setattr(message.opt, name, value)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self._context.request(message).response


@asynccontextmanager
async def client(data_dir: Path, scheme: str = "coap") -> AsyncIterator[CoapClient]:
    async with serving(data_dir, scheme) as uri:
        context = await Context.create_client_context()
        try:
            yield CoapClient(context, uri)
        finally:
            await context.shutdown()


def dotted(message: Message) -> str:
    return message.code.dotted


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_aiocoap_publishes_and_reads(tmp_path: Path, scheme: str) -> None:
    async with client(tmp_path, scheme) as peer:
        assert dotted(await peer.ask(GET, "/t/plant/dev1/temp")) == "4.04"
        assert dotted(await peer.ask(POST, "/t/plant/dev1/temp", b'{"t":1}', content_format=50)) == "2.01"
        assert dotted(await peer.ask(PUT, "/ps/plant/dev1/temp", b'{"t":2}', content_format=50)) == "2.04"
        value = await peer.ask(GET, "/t/plant/dev1/temp")
        assert (dotted(value), value.payload, int(value.opt.content_format)) == ("2.05", b'{"t":2}', 50)
        assert value.opt.max_age == 0
        same = await peer.ask(GET, "/plant/dev1/temp", etags=[value.opt.etag])
        assert (dotted(same), same.payload) == ("2.03", b"")
        assert dotted(await peer.ask(POST, "/t/plant/dev1/temp", b"3", reliable=False)) == "2.01"
        assert (await peer.ask(GET, "/t/plant/dev1/temp", reliable=False)).payload == b"3"


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_aiocoap_transfers_blocks_both_ways(tmp_path: Path, scheme: str) -> None:
    async with client(tmp_path, scheme) as peer:
        assert dotted(await peer.ask(POST, "/t/plant/dev1/large", LARGE)) == "2.01"
        assert (await peer.ask(GET, "/t/plant/dev1/large")).payload == LARGE
        assert dotted(await peer.ask(POST, "/t/plant/dev1/large", bytes(1024 * 1024 + 1))) == "4.13"
        assert (await peer.ask(GET, "/t/plant/dev1/large")).payload == LARGE


async def test_aiocoap_reads_a_cloudevent(tmp_path: Path) -> None:
    event = {"specversion": "1.0", "id": "e1", "source": "//dev1", "type": "reading", "data": {"t": 1}}
    async with client(tmp_path) as peer:
        answer = await peer.ask(POST, "/t/plant/dev1/event", json.dumps(event).encode(), content_format=65_011)
        assert dotted(answer) == "2.01"
        assert json.loads((await peer.ask(GET, "/t/plant/dev1/event", accept=65_011)).payload) == {
            **event,
            "headgateaddress": "plant/dev1/event",
        }
        assert json.loads((await peer.ask(GET, "/t/plant/dev1/event")).payload) == {"t": 1}


async def test_aiocoap_is_refused_in_the_protocols_words(tmp_path: Path) -> None:
    async with client(tmp_path) as peer:
        wrong = await peer.ask(POST, "/t/plant/dev1/temp?qos=9", b"x")
        assert (dotted(wrong), wrong.payload) == ("4.00", b"qos: must be 0, 1 or 2")
        assert dotted(await peer.ask(DELETE, "/t")) == "4.05"
        assert dotted(await peer.ask(POST, "/t/", b"x")) == "4.00"
        event = await peer.ask(POST, "/t/plant/e?ct=application/cloudevents%2Bjson", b"{}", content_format=60)
        assert dotted(event) == "4.15"
        await peer.ask(POST, "/t/plant/dev1/temp", b"1", content_format=0)
        assert dotted(await peer.ask(GET, "/t/plant/dev1/temp", accept=60)) == "4.06"


async def test_aiocoap_discovers(tmp_path: Path) -> None:
    async with client(tmp_path) as peer:
        await peer.ask(POST, "/t/plant/dev1/temp?retain=true", b"1")
        async with asyncio.timeout(60):  # an address is noted behind its first message
            while b"</t/plant/dev1/temp>" not in (links := await peer.ask(GET, "/.well-known/core")).payload:
                assert int(links.opt.content_format) == 40
        below = await peer.ask(GET, "/.well-known/core?href=/t/plant/*")
        assert below.payload == b'</t/plant/dev1/temp>;rt="core.ps.data"'


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_aiocoap_creates_changes_and_deletes(tmp_path: Path, scheme: str) -> None:
    async with client(tmp_path, scheme) as peer:
        assert dotted(await peer.ask(PUT, "/t/plant/dev1/state", b"1")) == "2.01"
        assert dotted(await peer.ask(PUT, "/t/plant/dev1/state", b"2")) == "2.04"
        assert dotted(await peer.ask(DELETE, "/t/plant/dev1/state")) == "2.02"
        assert dotted(await peer.ask(GET, "/t/plant/dev1/state")) == "4.04"
        assert dotted(await peer.ask(DELETE, "/t/plant/dev1/state")) == "2.02"
        assert dotted(await peer.ask(PUT, "/t/plant/dev1/state", b"3")) == "2.01"


async def test_aiocoap_names_segments_as_it_likes(tmp_path: Path) -> None:
    async with client(tmp_path) as peer:
        for number, segment in enumerate(("+", "#", "a%2Fb", "%25", "%252F", "%2B%23")):
            path = f"/t/plant/{quote(segment, safe='%')}"
            assert dotted(await peer.ask(POST, path, b"%d" % number)) == "2.01"
            assert (await peer.ask(GET, path)).payload == b"%d" % number


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_aiocoap_observes_a_filter(tmp_path: Path, scheme: str) -> None:
    def told(message: Message) -> dict[str, Any]:
        return {event["subject"]: event["data"] for event in json.loads(message.payload)}

    async with serving(tmp_path, scheme) as uri:
        context = await Context.create_client_context()
        peer = CoapClient(context, uri)
        try:
            for n in range(200):
                await peer.ask(POST, f"/t/plant/dev{n}/temp", b"%d" % n, content_format=50)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while len(told(await peer.ask(FETCH, "/t", b"plant/+/temp"))) < 200:
                    pass  # addresses are listed soon after they are published to
                asked = context.request(Message(code=FETCH, uri=f"{uri}/t", payload=b"plant/+/temp", observe=0))
                assert told(await asked.response) == {f"plant/dev{n}/temp": n for n in range(200)}
                heard = aiter(asked.observation)
                for n in range(40):
                    await peer.ask(POST, f"/t/plant/dev{n}/temp", b"%d" % -n, content_format=50)
                    await peer.ask(POST, f"/t/plant/dev{n}/other", b"1", content_format=50)
                    news = told(await anext(heard))
                    assert news[f"plant/dev{n}/temp"] == -n
                    # One that is Confirmable repeats what was sent since the last acknowledgement.
                    assert news.items() <= {f"plant/dev{k}/temp": -k for k in range(n + 1)}.items()
                    assert len(news) == 1 or (scheme == "coap" and len(news) <= 16)
        finally:
            await context.shutdown()


async def test_aiocoap_makes_requests_conditional(tmp_path: Path) -> None:
    async with client(tmp_path) as peer:
        path = "/t/plant/dev1/mode"
        assert dotted(await peer.ask(PUT, path, b"1", if_none_match=True)) == "2.01"
        assert dotted(await peer.ask(PUT, path, b"2", if_none_match=True)) == "4.12"
        etag = (await peer.ask(GET, path)).opt.etag
        assert dotted(await peer.ask(PUT, path, b"3", if_match=[etag])) == "2.04"
        assert dotted(await peer.ask(PUT, path, b"4", if_match=[etag])) == "4.12"
        assert (await peer.ask(GET, path)).payload == b"3"


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_many_devices_at_once(tmp_path: Path, scheme: str) -> None:
    async with client(tmp_path, scheme) as peer, asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(peer.ask(POST, f"/t/plant/dev{n}/temp", b"%d" % n)) for n in range(200)]
    assert {dotted(answer.result()) for answer in answers} == {"2.01"}


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_aiocoap_observes(tmp_path: Path, scheme: str) -> None:
    async with serving(tmp_path, scheme) as uri:
        context = await Context.create_client_context()
        peer = CoapClient(context, uri)
        try:
            await peer.ask(POST, "/t/plant/dev1/temp", b"0")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                asked = context.request(Message(code=GET, uri=f"{uri}/t/plant/dev1/temp", observe=0))
                first = await asked.response
                assert (first.payload, first.opt.observe is not None) == (b"0", True)
                heard = aiter(asked.observation)
                for body in (b"1", b"2", LARGE, *[b"%d" % n for n in range(40)]):
                    await peer.ask(POST, "/t/plant/dev1/temp", body)
                    while (await anext(heard)).payload != body:
                        pass
                await peer.ask(DELETE, "/t/plant/dev1/temp")
                while await anext(heard, None) is not None:  # until the 4.04 of an address without a value
                    pass
        finally:
            await context.shutdown()


@pytest.mark.parametrize("scheme", LIBCOAP_SCHEMES)
@pytest.mark.skipif(LIBCOAP is None, reason="libcoap's coap-client is not installed")
async def test_libcoap_observes(tmp_path: Path, scheme: str) -> None:
    assert LIBCOAP is not None
    async with serving(tmp_path, scheme) as uri:
        context = await Context.create_client_context()
        peer = CoapClient(context, uri)
        try:
            await peer.ask(POST, "/t/plant/dev1/temp", b"<0>", content_format=0)
            process = await asyncio.create_subprocess_exec(
                LIBCOAP, "-s", "600", "-m", "get", f"{uri}/t/plant/dev1/temp", stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    for n in range(40):
                        await process.stdout.readuntil(b"<%d>" % n)
                        await peer.ask(POST, "/t/plant/dev1/temp", b"<%d>" % (n + 1), content_format=0)
            finally:
                process.kill()
                await process.wait()
        finally:
            await context.shutdown()


@pytest.mark.skipif(LIBCOAP is None, reason="libcoap's coap-client is not installed")
async def test_libcoap_verifies_its_address_and_is_fresh(tmp_path: Path) -> None:
    """RFC 9175: the client sends the request again with the Echo that it is answered with."""
    assert LIBCOAP is not None
    body = tmp_path / "body"
    body.write_bytes(LARGE)
    async with serving(tmp_path / "data", echo_fresh_s=60, amplification_max=3) as uri:
        for arguments in (("put", "-b", "1024", "-f", str(body)), ("get", "-o", str(tmp_path / "out"))):
            process = await asyncio.create_subprocess_exec(LIBCOAP, "-m", *arguments, f"{uri}/t/plant/dev1/large")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await process.wait()
    assert (tmp_path / "out").read_bytes() == LARGE


async def test_aiocoap_sends_an_echo_back(tmp_path: Path) -> None:
    async with serving(tmp_path, echo_fresh_s=60) as uri:
        context = await Context.create_client_context()
        peer = CoapClient(context, uri)
        try:
            refused = await peer.ask(POST, "/t/plant/dev1/temp", b"1")
            assert dotted(refused) == "4.01"
            assert dotted(await peer.ask(POST, "/t/plant/dev1/temp", b"1", echo=refused.opt.echo)) == "2.01"
        finally:
            await context.shutdown()


@pytest.mark.parametrize("scheme", LIBCOAP_SCHEMES)
@pytest.mark.skipif(LIBCOAP is None, reason="libcoap's coap-client is not installed")
async def test_libcoap_publishes_and_reads(tmp_path: Path, scheme: str) -> None:
    async def run(*arguments: str, all_output: bool = False) -> bytes:
        errors = asyncio.subprocess.STDOUT if all_output else None
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(LIBCOAP, *arguments, stdout=pipe, stderr=errors)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out

    body = tmp_path / "body"
    body.write_bytes(LARGE)
    async with serving(tmp_path / "data", scheme) as uri:
        await run("-m", "post", "-t", "50", "-e", '{"t":1}', f"{uri}/t/plant/dev1/temp")
        assert (await run("-m", "get", f"{uri}/t/plant/dev1/temp")).strip() == b'{"t":1}'
        await run("-m", "put", "-b", "1024", "-f", str(body), f"{uri}/t/plant/dev1/large")
        out = tmp_path / "out"
        await run("-m", "get", "-b", "1024", "-o", str(out), f"{uri}/t/plant/dev1/large")
        assert out.read_bytes() == LARGE
        async with asyncio.timeout(ANSWER_TIMEOUT_S):  # the values of a filter in two blocks
            while b'"data":{"t":1}' not in await run(
                "-m", "fetch", "-b", "16", "-t", "0", "-e", "plant/dev1/temp/#", f"{uri}/t"
            ):
                pass
        await run("-m", "put", "-e", "1", f"{uri}/t/plant/%2B/a%2Fb")
        assert (await run("-m", "get", f"{uri}/t/plant/%2B/a%2Fb")).strip() == b"1"
        async with asyncio.timeout(ANSWER_TIMEOUT_S):  # a list follows a publish a moment later
            while b"</t/plant/%2B/a%2Fb>" not in await run("-m", "get", f"{uri}/t?href=/t/plant/%252B/*"):
                pass
        await run("-m", "delete", f"{uri}/t/plant/%2B/a%2Fb")
        assert b"4.04" in await run("-m", "get", f"{uri}/t/plant/%2B/a%2Fb", all_output=True)
        assert b"4.02" in await run("-m", "get", "-O", "9,x", f"{uri}/t/plant/dev1/temp", all_output=True)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system chooses the address of an answer")
async def test_an_answer_comes_from_the_address_that_was_asked(tmp_path: Path) -> None:
    """(RFC 7252, 5.3.2) A connected socket hears nobody but the address that it is connected to."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(ANSWER_TIMEOUT_S), serving(tmp_path, host="0.0.0.0") as uri:
        for address in ("127.0.0.1", "127.0.0.2"):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.setblocking(False)
                client.connect((address, int(uri.rpartition(":")[2])))
                client.send(b"\x40\x00\x12\x34")  # a ping
                assert await loop.sock_recv(client, 100) == b"\x70\x00\x12\x34"


@pytest.mark.parametrize("scheme", SCHEMES.values())
async def test_aiocoap_uses_topics_which_survive_a_restart(tmp_path: Path, scheme: str) -> None:
    """(draft-ietf-core-coap-pubsub-21)"""
    name, kind = {0: "plant/dev1", 2: "core.ps.data"}, {"content_format": 606}
    async with client(tmp_path, scheme) as peer:
        made = await peer.ask(POST, "/ps", cbor2.dumps({**name, 4: "temperature"}), **kind)
        path = "/" + "/".join(made.opt.location_path)
        data = cbor2.loads(made.payload)[1]
        assert (dotted(made), data) == ("2.01", "/ps/plant/dev1")
        assert dotted(await peer.ask(POST, "/ps", cbor2.dumps(name), **kind)) == "4.09"
        assert dotted(await peer.ask(GET, data)) == "4.04"
        assert dotted(await peer.ask(PUT, data, b"21")) == "2.01"
    async with client(tmp_path, scheme) as peer:
        assert (await peer.ask(GET, "/ps")).payload == f'<{path}>;rt="core.ps.conf"'.encode()
        found = await peer.ask(FETCH, "/ps", cbor2.dumps({4: "temperature"}), **kind)
        assert found.payload == f'<{path}>;rt="core.ps.conf"'.encode()
        part = await peer.ask(FETCH, path, cbor2.dumps([0, 4]), content_format=60)
        assert cbor2.loads(part.payload) == {0: "plant/dev1", 4: "temperature"}
        changed = await peer.ask(iPATCH, path, cbor2.dumps({4: "humidity"}), **kind)
        assert (dotted(changed), cbor2.loads(changed.payload)[4]) == ("2.04", "humidity")
        assert (await peer.ask(GET, data)).payload == b"21"
        assert dotted(await peer.ask(DELETE, path)) == "2.02"
        assert dotted(await peer.ask(GET, path)) == "4.04"
        assert dotted(await peer.ask(GET, data)) == "4.04"
