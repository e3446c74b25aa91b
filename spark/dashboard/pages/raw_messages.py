"""The messages behind a part of a device's chart: where they are in the log, when they were stored, what they say.

The tables say where to look (`spark.dashboard.queries.places`). Where the job keeps samples, these say all; else the
gateway is asked, in the name of the logged-in user, and each message is read by the job's rules.
"""

import base64
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from dash import dcc, html

from spark.dashboard.clients.gateway import Credentials, GatewayApi, GatewayRefused
from spark.dashboard.layout import formatting, parts
from spark.dashboard.layout.links import PageAddress, Place, Zoom, device_link
from spark.dashboard.pages.sources import Sources, with_tables
from spark.dashboard.queries import places
from spark.dashboard.queries.places import Places
from spark.dashboard.queries.reading import Reading
from spark.decode.samples import Decoder
from spark.decode.values import Rows
from store.api.devices import Devices
from store.api.message import EVENT, Message

PAGE_ROWS = 25
EVENTS_AT_ONCE = 200  # asked of the gateway in one request
REQUESTS_MAX, SECONDS_MAX = 10, 2.0  # for one page; then it is short, with a link that leads on
PREVIEW_CHARS, PREVIEW_VALUES = 120, 4
_WRAPPED = "//headgate/"  # the source that the gateway gives a message that never was an event
_HEAD = ("Time", "Says", "Queue, offset", "Address", "Topic", "Protocol", "Stored")  # a phone shows the first ones


class MessageRow(NamedTuple):
    """One message; times are ms since 1970."""

    place: Place
    time_ms: int
    stored_ms: int | None
    address: str
    topic: str
    protocol: str
    says: str


class MessagePage(NamedTuple):
    """Messages in the order of their queue and offset, and where the next page begins."""

    rows: list[MessageRow]
    following: Place | None


def of_zoom(sources: Sources, where: PageAddress, who: Credentials | None) -> Any:
    """Returns the messages of the part of the chart that the address names; None without one."""
    zoom = where.zoom
    return None if zoom is None else with_tables(sources, lambda reading: _section(sources, reading, where, zoom, who))


def _section(sources: Sources, reading: Reading, where: PageAddress, zoom: Zoom, who: Credentials | None) -> Any:
    metric = where.query.get("metric")
    close = dcc.Link("Close", href=device_link(where.device, metric=metric, range_=where.range))
    title = f"Messages from {formatting.instant(zoom.from_ms)} to {formatting.instant(zoom.until_ms)}"
    begin = Place.parse(where.query.get("page", ""))
    page = of_samples(reading, where.device, zoom, begin)
    if page is None:
        found = places.of_windows(reading, where.device, *zoom)
        if found is None:
            return parts.section(title, parts.note("No number of this device was counted in that time."), right=close)
        if sources.gateway is None:
            return None
        try:
            page = MessageSearch(sources, where.device, zoom, found).page(sources.gateway, who, begin)
        except GatewayRefused as refused:
            return parts.section(title, parts.trouble("They are not shown", str(refused), color="orange"), right=close)
    here = functools.partial(device_link, where.device, metric=metric, range_=where.range, zoom=zoom)
    rows = [_cells(row, where, here) for row in page.rows]
    links = []
    if begin is not None:
        links.append(dcc.Link("First page", href=here()))
    if page.following is not None:
        words = "Next page" if len(rows) == PAGE_ROWS else "Look on"
        links.append(dcc.Link(words, href=here(page=str(page.following))))
    empty = (
        "None was found so far; there is more of the log to look at."
        if page.following
        else "None is in the log any more."
    )
    return parts.section(
        title,
        parts.table(_HEAD, rows, empty=empty),
        html.Div(links, style={"display": "flex", "gap": "16px"}),
        right=close,
    )


def of_samples(reading: Reading, device: str, zoom: Zoom, begin: Place | None) -> MessagePage | None:
    """Returns a page of what the table `samples` has; None where it does not have all of a part."""
    rows = places.sampled(reading, device, *zoom, after=begin or (-1, -1), limit=PAGE_ROWS + 1)
    if rows is None:
        return None
    found = [
        MessageRow(
            Place(row["queue"], row["offset"]),
            row["time_ms"],
            row["stored_ms"],
            row["address"] or "",
            row["topic"] or "",
            row["protocol"] or "",
            _values([(one["metric"], one["value"], one["text"], one["unit"]) for one in row["values"]]),
        )
        for row in rows
    ]
    return MessagePage(found[:PAGE_ROWS], found[PAGE_ROWS].place if len(found) > PAGE_ROWS else None)


class MessageSearch:
    """Looks in the log for a device's messages whose samples have times of a part of its chart."""

    def __init__(self, sources: Sources, device: str, zoom: Zoom, found: Places) -> None:
        self._sources = sources
        self._device, self._zoom, self._found = device, zoom, found
        self._decoder, self._devices = Decoder(sources.rules.decode), Devices(sources.rules.devices)

    def page(self, gateway: GatewayApi, who: Credentials | None, begin: Place | None) -> MessagePage:
        """Returns a page from a place on, as the gateway answers a user. Raises `GatewayRefused`."""
        found = self._found
        rows: list[MessageRow] = []
        until_s, asked = time.monotonic() + SECONDS_MAX, 0
        for queue, first in sorted(found.first.items()):
            at: int | None = first
            if begin is not None and queue <= begin.queue:
                at = begin.offset if queue == begin.queue else None
            while at is not None:
                if asked == REQUESTS_MAX or (asked and time.monotonic() > until_s):
                    return MessagePage(rows, Place(queue, at))
                part = gateway.read_queue(
                    queue,
                    found.addresses,
                    who,
                    offset=at,
                    limit=EVENTS_AT_ONCE,
                    stored_until_ms=found.stored_until_ms,
                )
                asked += 1
                for row in self.rows(queue, part.events):
                    if len(rows) == PAGE_ROWS:
                        return MessagePage(rows, row.place)
                    rows.append(row)
                at = part.after
        return MessagePage(rows, None)

    def rows(self, queue: int, events: Sequence[Mapping[str, Any]]) -> list[MessageRow]:
        """Returns the rows of those events of a queue that are of the device and of the part."""
        messages = [message_of(event, self._found.addresses) for event in events]
        decoded = self._decoder.read(messages)
        devices = self._devices.of(messages) if self._found.shared else [self._device] * len(messages)
        rows = []
        for n, (event, message, device) in enumerate(zip(events, messages, devices, strict=True)):
            time_ms = _time_within(decoded, n, message.time_ms, self._zoom)
            if device != self._device or time_ms is None:
                continue
            place = Place(queue, int(event["headgateoffset"]))
            stored_ms, topic = _ms(event.get("headgatestored")), event.get("headgatetopic", "")
            rows.append(
                MessageRow(
                    *(place, time_ms, stored_ms, message.address, topic, message.protocol),
                    _said(decoded, n) or preview(event),
                )
            )
        return rows


def message_of(event: Mapping[str, Any], addresses: Sequence[str]) -> Message:
    """Returns the message of an event of the gateway, found at one of some addresses, as the rules look at it."""
    named = [event.get("headgateaddress", ""), event.get("subject", ""), f"events/{event.get('type')}"]
    texts = {name: text for name, text in event.items() if isinstance(text, str)}
    return Message(
        address=next((one for one in named if one in addresses), addresses[0]),
        body=body_of(event),
        time_ms=_ms(event.get("time")) or 0,
        protocol=event.get("headgateprotocol", ""),
        device=event.get("headgatedevice", ""),
        principal=event.get("headgateprincipal"),
        content_type=event.get("datacontenttype"),
        content_encoding=event.get("contentencoding"),
        properties=tuple(texts.items()),
        native=None if texts.get("source", "").startswith(_WRAPPED) else {EVENT: texts},
    )


def body_of(event: Mapping[str, Any]) -> bytes:
    """Returns the body of the message of an event, JSON perhaps with other spaces."""
    if "data_base64" in event:
        return base64.b64decode(event["data_base64"])
    data = event.get("data")
    if data is None:
        return b""
    if isinstance(data, str) and "json" not in event.get("datacontenttype", ""):
        return data.encode()
    return msgspec.json.encode(data)


def preview(event: Mapping[str, Any]) -> str:
    """Returns the beginning of a body as text."""
    text = body_of(event)[: 4 * PREVIEW_CHARS].decode("utf-8", "backslashreplace")
    return text[:PREVIEW_CHARS] + ("…" if len(text) > PREVIEW_CHARS else "")


def _time_within(decoded: Rows, n: int, message_ms: int, zoom: Zoom) -> int | None:
    """Returns the first time of a message's samples that lies in a part; of one without samples its own time."""
    times = decoded.times_us[decoded.bounds[n] : decoded.bounds[n + 1]]
    all_ms = [message_ms if one is None else one // 1000 for one in times] or [message_ms]
    return min((ms for ms in all_ms if zoom.from_ms <= ms < zoom.until_ms), default=None)


def _said(decoded: Rows, n: int) -> str:
    start, end = decoded.bounds[n], decoded.bounds[n + 1]
    columns = (decoded.metrics, decoded.values, decoded.texts, decoded.units)
    return _values(list(zip(*(column[start:end] for column in columns), strict=True)))


def _values(samples: Sequence[tuple[str, float | None, str | None, str | None]]) -> str:
    """Returns the first samples of a message in words."""
    shown = [
        " ".join(filter(None, (metric, text if text is not None else formatting.number(value), unit)))
        for metric, value, text, unit in samples[:PREVIEW_VALUES]
    ]
    return ", ".join(shown) + (f" and {len(samples) - PREVIEW_VALUES} more" if len(samples) > PREVIEW_VALUES else "")


def _cells(row: MessageRow, where: PageAddress, here: Callable[..., str]) -> list[Any]:
    link = here(page=where.query.get("page"), message=str(row.place), at=row.address)
    return [
        formatting.instant(row.time_ms),
        html.Span(row.says, className="mono"),
        dcc.Link(f"{row.place.queue}, {row.place.offset}", href=link),
        html.Span(row.address, className="mono"),
        row.topic or "-",
        row.protocol or "-",
        formatting.instant(row.stored_ms),
    ]


def _ms(text: object) -> int | None:
    try:
        return round(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
