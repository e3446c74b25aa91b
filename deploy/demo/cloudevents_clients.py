"""Web applications that POST CloudEvents: binary, structured and batch mode (cloudevents, httpx)."""

import asyncio
from datetime import UTC, datetime

import httpx
import msgspec
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from deploy.demo.fleet import Fleet
from deploy.demo.http_clients import UNDER_WAY_MAX, send
from deploy.demo.plan import Reading

BATCH = 10  # events in a batch


async def run(fleet: Fleet) -> None:
    """Sends one event in three alone in binary mode, one in structured mode, the rest in batches."""
    async with httpx.AsyncClient(base_url=fleet.target.http, trust_env=False, timeout=30) as client:
        tasks: set[asyncio.Task[None]] = set()
        batch: list[CloudEvent] = []
        async for due in fleet.due():
            for _ in range(min(due, UNDER_WAY_MAX - len(tasks))):
                reading = fleet.readings.take()
                event = _event(reading)
                match reading.device % 3:
                    case 0:
                        message = to_binary_event(event)
                        work = send(fleet, client, "/events", message.body, message.headers)
                    case 1:
                        message = to_structured_event(event)
                        work = send(fleet, client, "/events", message.body, message.headers)
                    case _:
                        batch.append(event)
                        if len(batch) < BATCH:
                            continue
                        work, batch = _send_batch(fleet, client, batch), []
                task = asyncio.create_task(work)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        if batch:
            await _send_batch(fleet, client, batch)
        await asyncio.gather(*tasks)
        fleet.phase = "stopped"
        await fleet.end.wait()


def _event(reading: Reading) -> CloudEvent:
    attributes = {
        "id": reading.mark,
        "source": f"/demo/{reading.mark.split('/')[1]}",
        "type": "demo.telemetry.v1",
        "subject": reading.address,
        "time": datetime.now(UTC),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, msgspec.json.decode(reading.body))


async def _send_batch(fleet: Fleet, client: httpx.AsyncClient, events: list[CloudEvent]) -> None:
    """Sends a batch (CloudEvents HTTP binding, 3.3), which the library does not write itself."""
    body = b"[" + b",".join(to_structured_event(event).body for event in events) + b"]"
    headers = {"content-type": "application/cloudevents-batch+json"}
    await send(fleet, client, "/events", body, headers, messages=len(events))
