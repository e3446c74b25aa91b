"""Requests to a sink that answers byte by byte, as a server of our own."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest

from gateway.domain.access import Identity
from gateway.port.push import SinkRequest, SubscriptionSpec
from gateway.push.client import SinkAnswer, SinkClient
from gateway.push.guard import SinkGuard, SinkUnreachable
from gateway.push.http_sender import HttpSender
from gateway.push.settings import SubscriptionsConfig
from gateway.push.spec import SubscriptionRecord
from store.api.message import Message

pytestmark = pytest.mark.anyio

CONFIG = SubscriptionsConfig(private_sinks=("127.0.0.1",))
GUARD = SinkGuard(CONFIG)
TRICKLED_S = 10.0  # for a head to come on a busy machine, and a body that never ends
BUSY_MS = 60_000


async def end(writer: asyncio.StreamWriter) -> None:
    """Ends the connection."""


async def trickle(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def sink(
    answer: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]] = end
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yields the URL of a sink that sends these bytes, and then does something; and the heads that it has read."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
            await then(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", heads


async def request(url: str, *, timeout_s: float = 60.0) -> SinkAnswer:
    client = SinkClient(GUARD, connections_max=1, tls=ssl.create_default_context())
    try:
        return await client.request("POST", url, [], b"", timeout_s=timeout_s)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nx", end),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\nx", trickle),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", trickle),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", end),
    ],
)
async def test_an_answer_counts_whose_body_does_not_come_to_an_end(
    answer: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> None:
    async with sink(answer, then) as (url, _):
        assert (await request(url, timeout_s=60.0 if then is end else TRICKLED_S)).status == 200


async def test_without_a_whole_head_there_is_no_answer() -> None:
    async with sink(b"HTTP/1.1 200 OK\r\n") as (url, _):
        with pytest.raises(SinkUnreachable, match="disconnected"):
            await request(url)


@pytest.mark.parametrize("said", [True, False], ids=["with Date", "without Date"])
async def test_a_sink_may_ask_for_a_pause_until_a_date(*, said: bool) -> None:
    now = datetime.now(UTC) + timedelta(days=said)  # the clock of a sink that says its time goes before
    until = format_datetime(now + timedelta(minutes=10), usegmt=True).encode()
    date = b"date: %b\r\n" % format_datetime(now, usegmt=True).encode() if said else b""
    answer = b"HTTP/1.1 503 Unavailable\r\n%bretry-after: %b\r\ncontent-length: 0\r\n\r\n" % (date, until)
    async with sink(answer) as (url, _):
        found = (await request(url)).retry_after_ms
    assert found is not None
    assert 590_000 - BUSY_MS <= found <= 600_000


@pytest.mark.parametrize(("said", "found_ms"), [(b"7", 7_000), (b"999999999999", 10**12), (b"-1", None)])
async def test_a_sink_may_ask_for_a_pause_of_seconds(said: bytes, found_ms: int | None) -> None:
    async with sink(b"HTTP/1.1 429 Slow\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n" % said) as (url, _):
        assert (await request(url)).retry_after_ms == found_ms


@pytest.mark.parametrize("year", [b"2030", b"99999999999999999999"])
async def test_a_date_beyond_all_calendars_asks_for_nothing(year: bytes) -> None:
    until = b"Mon, 01 Jan %b 00:00:00 +99999999999999" % year
    async with sink(b"HTTP/1.1 503 Unavailable\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n" % until) as (url, _):
        found = await request(url)
    assert (found.status, found.retry_after_ms) == (503, None)


@pytest.mark.parametrize("allowed", [b"*", b"gateway.example.com", b"Gateway.Example.COM"])
async def test_a_sink_consents_by_a_name_in_any_case(allowed: bytes) -> None:
    trust = SimpleNamespace(http=ssl.create_default_context())
    context = SimpleNamespace(guard=GUARD, trust=trust, config=CONFIG, origin="gateway.example.com")
    answer = b"HTTP/1.1 200 OK\r\nWebHook-Allowed-Origin: %b\r\ncontent-length: 0\r\n\r\n" % allowed
    async with sink(answer) as (url, heads):
        spec = SubscriptionSpec(sink=url, protocol="HTTP")
        sender = HttpSender(SubscriptionRecord(id="s1", spec=spec, identity=Identity(name="u")), context)
        assert (await sender.consent()).refusal == ""
        await sender.close()
    assert b"\r\nuser-agent: headgate/" in heads[0]


@pytest.mark.parametrize(("status", "of_event"), [(400, True), (431, True), (403, False), (500, False)])
async def test_headers_that_are_too_large_are_the_fault_of_their_event(status: int, *, of_event: bool) -> None:
    """Others are taken: the breaker stays closed, and a dead letter address gets this one at once."""
    codec = SimpleNamespace(sink_request=lambda _message, *, structured: SinkRequest([], b"%d" % structured))
    trust = SimpleNamespace(http=ssl.create_default_context())
    context = SimpleNamespace(guard=GUARD, trust=trust, config=CONFIG, origin="gateway.example.com", codec=codec)
    async with sink(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status) as (url, _):
        spec = SubscriptionSpec(sink=url, protocol="HTTP")
        sender = HttpSender(SubscriptionRecord(id="s1", spec=spec, identity=Identity(name="u")), context)
        failure = await sender.send(SimpleNamespace(message=Message("a")))
        await sender.close()
    assert failure is not None
    assert (failure.of_event, failure.final, failure.error) == (of_event, of_event, f"the sink answered {status}")
