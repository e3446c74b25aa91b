"""The admin port tells the truth and cannot be made to hold much."""

import asyncio
import json
import re
import socket
import struct
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.ops.metrics import Metrics
from gateway.ops.status import Status
from store.base import admin
from store.base.admin import NO_OPERATIONS, ActionRefused, AdminAddress, AdminServer, Operations, ReadyState
from store.base.listening import PeerBudget
from store.base.process_errors import ServerFailed
from tests.support.process.cancelled_task import CancelledTask
from tests.support.process.loops import UvLoop
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

READY = ReadyState(True)


@asynccontextmanager
async def serving(state: ReadyState = READY, status=lambda: {"topics": []}, allowed_hosts=(), operations=NO_OPERATIONS):
    metrics = Metrics(process=False)
    metrics.messages_in("mqtt", "t", "stored").inc(3)
    place = AdminAddress("127.0.0.1", 0, allowed_hosts)
    server = await AdminServer.start(
        place, ready=lambda: state, status=status, registry=metrics.registry, operations=operations
    )
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
        assert (answer.status_code, answer.text) == (500, "internal error; the log of the process says more\n")
        assert (await get(server, "/healthz")).status_code == 200


async def test_a_port_that_is_taken_is_said_in_one_sentence():
    async with serving() as server:
        taken = AdminAddress("127.0.0.1", server.port)
        said = f"admin cannot listen on 127.0.0.1:{server.port}: Address already in use; write another admin.port or "
        with pytest.raises(ServerFailed, match=f"^{re.escape(said)}"):
            await AdminServer.start(taken, ready=lambda: READY, status=dict, registry=CollectorRegistry())


async def test_a_page_that_takes_too_long_is_said_and_disturbs_nobody(monkeypatch):
    async def never(_query=None):
        await asyncio.Event().wait()

    monkeypatch.setattr(admin, "PAGE_TIMEOUT_S", 0.01)
    async with serving(status=never, operations=Operations({"/things": never}, {})) as server:
        for path in ("/status", "/things"):
            answer = await get(server, path)
            assert (answer.status_code, answer.text) == (504, "it is not there after 0.01 s; ask again\n")
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


async def test_whoever_says_nothing_keeps_nobody_out(monkeypatch, caplog):
    monkeypatch.setattr(admin, "CONNECTIONS_MAX", 4)
    async with serving() as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        assert (await get(server, "/healthz")).status_code == 200
        assert len(server.tasks) <= 4
        assert not caplog.records
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": UvLoop})], ids=["uvloop"])
async def test_connections_that_are_gone_before_they_are_looked_at_leave_nothing(caplog):
    """Each left a task for ever, and an error in the log."""
    async with serving() as server:
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", server.port)) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert (await get(server, "/healthz")).text == "ok\n"
        await until(lambda: not server.tasks)
    assert not caplog.records


async def test_stopping_drops_idle_connections():
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while not server.tasks:
            await asyncio.sleep(0)
        await server.stop()
        assert await reader.read() == b""
        writer.close()


# ---- listings and actions


async def _listed(query):
    return {"query": query}


async def _done(body):
    if body == b"null":
        raise ActionRefused(HTTPStatus.CONFLICT, "not now")
    if body == b"0":
        raise RuntimeError("a bug")
    return {"size": len(body)}


OPERATIONS = Operations({"/things": _listed}, {"/things/end": _done})


async def post(server: AdminServer, body: bytes = b"{}", path: str = "/things/end", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        said = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        return await client.post(path, content=body, headers=said)


async def test_what_a_process_adds_is_listed_and_done():
    async with serving(operations=OPERATIONS) as server:
        assert (await get(server, "/things?a=1&b=x%20y")).json() == {"query": {"a": "1", "b": "x y"}}
        assert (await post(server, b"x" * 100_000)).json() == {"size": 100_000}
        assert (await post(server)).json() == {"size": 2}
        for path, method, status in (("/things", "POST", 405), ("/things/end", "GET", 405), ("/none", "POST", 404)):
            assert (await get(server, path, method)).status_code == status


async def test_an_action_that_is_refused_says_why():
    async with serving(operations=OPERATIONS) as server:
        refused = await post(server, b"null")
        assert (refused.status_code, refused.json()["detail"]) == (409, "not now")
        assert (await post(server, b"0")).json()["detail"].startswith("internal error; ")
        assert (await post(server, content_type="text/plain")).status_code == 415
        assert (await post(server, content_type="")).status_code == 415
        assert b" 411 " in await raw(server, b"POST /things/end HTTP/1.1\r\ncontent-type: application/json\r\n\r\n")
        for size in (b"-1", b"9" * 30, b"%d" % (admin.ACTION_BYTES_MAX + 1)):
            head = b"POST /things/end HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: " + size
            assert (await raw(server, head + b"\r\n\r\n")).split()[1] in {b"411", b"413"}


async def test_bodies_that_are_not_whole_count_as_unauthenticated_input(monkeypatch):
    budget = PeerBudget(300_000)
    monkeypatch.setattr(admin, "UNAUTHENTICATED", budget)
    head = b"POST /things/end HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
    async with serving(operations=OPERATIONS) as server:
        large, small = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        large[1].write(head + bytes(200_000))
        await until(lambda: budget.held_bytes == 200_000)
        small[1].write(head + bytes(150_000))
        assert await large[0].read() == b"", "it makes way"
        await until(lambda: budget.held_bytes == 150_000)
        assert (await post(server)).json() == {"size": 2}
        small[1].close()
        await until(lambda: not budget.held_bytes)
        large[1].close()


def test_the_figures_of_a_process_say_how_much_unauthenticated_input_it_holds(monkeypatch):
    budget = PeerBudget(300)
    monkeypatch.setattr(admin, "UNAUTHENTICATED", budget)
    registry = admin.process_registry()
    budget.hold(CancelledTask(), b"", 120)
    assert registry.get_sample_value("headgate_unauthenticated_bytes") == 120
    assert registry.get_sample_value("headgate_unauthenticated_limit_bytes") == 300


async def test_actions_are_for_this_machine_alone(monkeypatch):
    async with serving(operations=OPERATIONS) as server:
        assert (await post(server, x_forwarded_for="10.0.0.1")).status_code == 403
        monkeypatch.setattr(admin, "_is_loopback", lambda host: False)
        refused = await post(server)
        assert refused.status_code == 403
        assert "this machine" in refused.json()["detail"]
        assert (await get(server, "/things")).status_code == 200


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("fe80::1%eth0", False)],
)
def test_which_peers_are_on_this_machine(host, here):
    assert admin._is_loopback(host) is here


async def test_a_page_of_another_origin_acts_on_nothing():
    async with serving(operations=OPERATIONS) as server:
        assert (await post(server, origin="https://evil.example")).status_code == 403
