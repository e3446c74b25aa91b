"""The admin port tells the truth and cannot be made to hold much."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from gateway.ops.metrics import Metrics
from gateway.ops.status import Status
from store.base import admin
from store.base.admin import AdminPlace, AdminServer, ReadyState

pytestmark = pytest.mark.anyio

READY = ReadyState(True)


@asynccontextmanager
async def serving(state: ReadyState = READY, status=lambda: {"topics": []}, allowed_hosts=()):
    metrics = Metrics(process=False)
    metrics.messages_in("mqtt", "t", "stored").inc(3)
    place = AdminPlace("127.0.0.1", 0, allowed_hosts)
    server = await AdminServer.start(place, ready=lambda: state, status=status, registry=metrics.registry)
    try:
        yield server
    finally:
        await server.stop()


async def get(server: AdminServer, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        return await client.request(method, path)


async def raw(server: AdminServer, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def test_healthy_and_ready():
    async with serving() as server:
        assert (await get(server, "/healthz")).text == "ok\n"
        assert (await get(server, "/readyz")).status_code == 200


async def test_not_ready_says_why_while_it_is_alive():
    async with serving(ReadyState(False, ("listener mqtt is down", "the store is behind"))) as server:
        answer = await get(server, "/readyz")
        assert (answer.status_code, answer.text) == (503, "listener mqtt is down\nthe store is behind\n")
        assert (await get(server, "/healthz")).status_code == 200


async def test_what_some_clients_suffer_from_is_said_and_no_reason_to_send_them_elsewhere():
    async with serving(ReadyState(True, warnings=("store group 1: it has no master",))) as server:
        answer = await get(server, "/readyz")
        assert (answer.status_code, answer.text) == (200, "degraded\nstore group 1: it has no master\n")


async def test_a_gateway_that_only_a_restart_helps_is_not_healthy():
    async with serving(ReadyState(False, ("the store has failed",), alive=False)) as server:
        answer = await get(server, "/healthz")
        assert (answer.status_code, answer.text) == (503, "the store has failed\n")


async def test_metrics_and_status():
    async with serving(status=lambda: {"log": {"end": 5}}) as server:
        metrics = await get(server, "/metrics")
        assert 'headgate_messages_in_total{protocol="mqtt",status="stored",topic="t"} 3.0' in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain")
        status = await get(server, "/status?x=1")
        assert status.json() == {"log": {"end": 5}}
        assert status.headers["content-type"] == "application/json"


async def test_the_status_may_have_to_be_awaited():
    async def status():
        await asyncio.sleep(0)
        return Status(version="1", ready=True)

    async with serving(status=status) as server:
        assert msgspec.json.decode((await get(server, "/status")).content, type=Status) == Status(
            version="1", ready=True
        )


async def test_head_has_no_body():
    async with serving() as server:
        answer = await get(server, "/readyz", "HEAD")
        assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "6")


async def test_other_paths_and_methods_are_refused():
    async with serving() as server:
        assert (await get(server, "/nope")).status_code == 404
        answer = await get(server, "/status", "POST")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8088"}, 200),  # a tool: no page can send this without more
        ({"host": "evil.example:8088", "accept-language": "en"}, 403),
        ({"host": "evil.example:8088", "sec-fetch-site": "none"}, 403),
        ({"host": "localhost:8088", "accept-language": "en"}, 200),
        ({"host": "[::1]:8088", "accept-language": "en"}, 200),
        ({"host": "ops.example:8088", "accept-language": "en"}, 200),
        ({"host": "localhost:8088", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:8088", "origin": "null"}, 403),
        ({"host": "localhost:8088", "origin": "http://localhost:8088"}, 200),
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/status", "/none"])
async def test_pages_of_other_sites_read_nothing(headers, status, path):
    async with serving(allowed_hosts=("ops.example",)) as server:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        answer = await raw(server, f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        found = int(answer.split(b" ", 2)[1])
        assert found == (404 if path == "/none" and status == 200 else status)


async def test_a_status_that_fails_is_told_and_disturbs_nobody(caplog):
    def failing():
        raise RuntimeError("store gone")

    async with serving(status=failing) as server:
        answer = await get(server, "/status")
        assert (answer.status_code, answer.text) == (500, "RuntimeError: store gone\n")
        assert (await get(server, "/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/2.0\r\n\r\n", b"400"),
        (b"GET http://[/healthz HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * admin.HEAD_BYTES_MAX * 3, b"431"),
    ],
)
async def test_what_is_no_request_gets_an_error(data, code):
    async with serving() as server:
        assert (await raw(server, data)).split(b" ")[1] == code
        assert json.loads((await get(server, "/status")).text) == {"topics": []}


async def test_a_request_that_never_ends_is_cut_off(monkeypatch):
    monkeypatch.setattr(admin, "HEAD_TIMEOUT_S", 0.05)
    async with serving() as server:
        assert (await raw(server, b"GET /healthz HT")).startswith(b"HTTP/1.1 408 ")


async def test_whoever_says_nothing_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(admin, "CONNECTIONS_MAX", 4)
    async with serving() as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        assert (await get(server, "/healthz")).status_code == 200
        assert len(server.tasks) <= 4
        for _, writer in silent:
            writer.close()


async def test_stopping_drops_idle_connections():
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while not server.tasks:
            await asyncio.sleep(0)
        await server.stop()
        assert await reader.read() == b""
        writer.close()
