"""Publishes findings over HTTP, each under its own id as `Idempotency-Key`: the gateway stores it once.

A finding whose answer was lost is sent again under the same key. A task that is repeated, or a job that was killed
between publishing and noting it, sends all of them again, and the gateway answers as it did. It knows a key for
`adapters.http.idempotency_window_s` (24 h); a job that is away for longer may publish the last batch's findings twice.
"""

import asyncio
import collections
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import httpx
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.errors import SparkError
from spark.findings.events import FindingEvent, events_of_rows
from spark.publishing.attempts import DETAIL_CHARS_MAX, Attempts, detail_of
from spark.publishing.client import trusting
from spark.tables.files import Location
from spark.tables.schemas import FINDINGS, SPECS
from spark.telemetry.windows import INSTANT

FINDINGS_MAX = 10_000  # of one bucket and batch that are published, those with the highest scores; all are in the table
IN_FLIGHT_MAX = 32  # requests of one task
REQUEST_S = 10.0
_REPEATED = 422  # the id was used for this finding with other figures: another job has published it already
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_FORBIDDEN = frozenset({401, 403, 404, 405})
_HEADERS = {"content-type": "application/cloudevents+json"}


class Publishing(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway that findings are sent to."""

    url: str  # of its HTTP port, or of several proxies' with commas; may have a user and password in it
    retry_s: float  # how long an absent gateway is waited for
    since_ms: int  # older findings are in the table alone
    authority: Path | None = None  # PEM; the authorities of a gateway with https


class FileOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the findings of one file."""

    published: int = 0
    old: int = 0  # happened too long ago to be news
    surplus: int = 0  # more than `FINDINGS_MAX`
    refused: int = 0  # the gateway cannot take them from any sender
    why: str = ""  # of the first that was refused


def publish_file(place: Location, path: str, publishing: Publishing) -> FileOutcome:
    """Publishes the rows of one data file of `anomalies`. Raises `SparkError` when the gateway takes none."""
    with place.open(f"{FINDINGS}/{path}") as file:
        rows = pq.read_table(file, schema=SPECS[FINDINGS].columns, partitioning=None)
    recent = rows.filter(pc.greater_equal(rows["time"], pa.scalar(publishing.since_ms * 1000, INSTANT)))
    chosen = recent
    if recent.num_rows > FINDINGS_MAX:
        order = [("score", "descending"), ("device", "ascending"), ("metric", "ascending"), ("time", "ascending")]
        chosen = recent.take(pc.sort_indices(recent, sort_keys=order)[:FINDINGS_MAX])
    chosen = chosen.sort_by([("time", "ascending"), ("device", "ascending")])
    refusals = asyncio.run(_publish(events_of_rows(chosen), publishing))
    return FileOutcome(
        published=chosen.num_rows - len(refusals),
        old=rows.num_rows - recent.num_rows,
        surplus=recent.num_rows - chosen.num_rows,
        refused=len(refusals),
        why=refusals[0] if refusals else "",
    )


async def _publish(events: Iterable[FindingEvent], publishing: Publishing) -> list[str]:
    """Publishes events, those of one device one after another; returns the reasons of those that were refused."""
    by_device: dict[str, list[FindingEvent]] = {}
    for event in events:
        by_device.setdefault(event.device, []).append(event)
    if not by_device:
        return []
    plain = all(url.startswith("http://") for url in urls_of(publishing.url))
    refusals: list[str] = []
    urls = collections.deque(urls_of(publishing.url))
    waiting = iter(by_device.values())
    async with httpx.AsyncClient(
        http1=not plain,
        http2=True,
        timeout=REQUEST_S,
        trust_env=False,
        verify=trusting(publishing.authority),
    ) as client:
        workers = [
            _work(client, waiting, publishing, urls, refusals) for _ in range(min(IN_FLIGHT_MAX, len(by_device)))
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker)
        except* SparkError as errors:
            raise errors.exceptions[0] from None
    return refusals


async def _work(
    client: httpx.AsyncClient,
    waiting: Iterator[Sequence[FindingEvent]],
    publishing: Publishing,
    urls: collections.deque[str],
    refusals: list[str],
) -> None:
    for events in waiting:
        for event in events:  # one after another: the events of a device keep their order
            refusals += await _send(client, event, publishing, urls)


async def _send(
    client: httpx.AsyncClient, event: FindingEvent, publishing: Publishing, urls: collections.deque[str]
) -> list[str]:
    """Sends one event until it is stored; returns why it cannot be, if so. Raises `SparkError`.

    The first of the URLs is asked, and gives way to the next one when it does not answer.
    """
    attempts = Attempts(publishing.retry_s)
    headers = {**_HEADERS, "idempotency-key": event.id}
    while True:
        answer: httpx.Response | None = None
        url = urls[0]
        try:
            answer = await client.post(f"{url}/events", content=event.body, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            why = f"does not answer: {error or type(error).__name__}"
        else:
            if answer.is_success or answer.status_code == _REPEATED:
                return []
            why = f"answers {answer.status_code}: {detail_of(answer)[:DETAIL_CHARS_MAX]}"
            if answer.status_code in _FORBIDDEN:
                raise SparkError(
                    f"findings cannot be published: {_shown(url)} {why}. Give the user of --findings the "
                    "right to publish to analytics/#, or publish none: --findings none. The tables have every finding, "
                    "and the next start publishes those of the last batch"
                )
            if answer.status_code not in _LATER:
                return [why]
        pause_s = attempts.pause_s(answer)
        if pause_s is None:
            raise SparkError(
                f"findings cannot be published: {_shown(url)} {why}, for {publishing.retry_s:g} s. Start "
                "the job again when it answers, name another gateway with --findings, or publish none: --findings none"
            )
        if urls[0] == url:
            urls.rotate(-1)
        await asyncio.sleep(pause_s)


def urls_of(text: str) -> list[str]:
    """Returns the URLs of a text with commas between them, none with a slash at its end."""
    return [url.rstrip("/") for url in text.split(",")]


def _shown(url: str) -> str:
    """Returns a URL without a user and password."""
    return str(httpx.URL(url).copy_with(username=None, password=None))
