"""Web clients on HTTP/1.1 and HTTP/2 that POST plain messages, and one that reads server-sent events (httpx)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import httpx

from deploy.demo.fleet import Fleet
from deploy.demo.plan import TOPIC, Reading, Seen

UNDER_WAY_MAX = 64  # requests without an answer; a fleet that cannot keep up publishes less
CONNECT_S = 15.0


async def run(fleet: Fleet) -> None:
    """Runs half of the devices over HTTP/1.1, half over HTTP/2 with prior knowledge."""
    async with (
        httpx.AsyncClient(base_url=fleet.target.http, trust_env=False, timeout=30) as old,
        httpx.AsyncClient(base_url=fleet.target.http, trust_env=False, timeout=30, http1=False, http2=True) as new,
        following(fleet, new),
    ):
        tasks: set[asyncio.Task[None]] = set()
        async for due in fleet.due():
            for _ in range(min(due, UNDER_WAY_MAX - len(tasks))):
                reading = fleet.readings.take()
                task = asyncio.create_task(_post(fleet, new if reading.device % 2 else old, reading))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        fleet.phase = "stopped"
        await fleet.end.wait()


async def _post(fleet: Fleet, client: httpx.AsyncClient, reading: Reading) -> None:
    headers = {"content-type": "application/json"}
    await send(fleet, client, f"/topics/{reading.address}", reading.body, headers)


async def send(
    fleet: Fleet, client: httpx.AsyncClient, path: str, body: bytes, headers: Mapping[str, str], *, messages: int = 1
) -> None:
    """Sends a POST, and counts its messages by the outcome."""
    try:
        answer = await client.post(path, content=body, headers=dict(headers))
    except httpx.HTTPError:
        fleet.count("unknown", messages)
        return
    fleet.count("acked" if answer.is_success else "refused", messages)


@contextlib.asynccontextmanager
async def following(fleet: Fleet, client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Reads server-sent events beside whatever is done within."""
    subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_follow(client, fleet.reader("HTTP/2 events"), subscribed))
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.wait({task, subscribed}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await task


async def _follow(client: httpx.AsyncClient, seen: Seen, subscribed: asyncio.Future[None]) -> None:
    timeout = httpx.Timeout(CONNECT_S, read=None)
    async with client.stream("GET", "/subscribe", params={"filter": f"{TOPIC}/#"}, timeout=timeout) as answer:
        answer.raise_for_status()
        subscribed.set_result(None)
        async for line in answer.aiter_lines():
            seen.add(line.encode())
