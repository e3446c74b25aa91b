"""Addresses of pages: a page's state is in its address, so that it can be kept and sent."""

from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from spark.dashboard.queries.time_ranges import DEFAULT_RANGE, RANGES

DEVICE = "/device/"
_DIGITS = 19  # of 64 bits
_WITHIN = frozenset({"from", "to", "page", "message", "at"})  # parameters that change a part of a page alone


class Zoom(NamedTuple):
    """A part of a chart, by the time of its axis: ms since 1970, the end exclusive."""

    from_ms: int
    until_ms: int

    @property
    def query(self) -> dict[str, str]:
        """The parameters of an address that name it."""
        return {"from": _text(self.from_ms), "to": _text(self.until_ms)}


class Place(NamedTuple):
    """The place of a message: its queue and offset, as text `16-1200`."""

    queue: int
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """Returns the place of a text; None for one that is none."""
        queue, _, offset = text.partition("-")
        right = all(part.isascii() and part.isdigit() and len(part) < _DIGITS for part in (queue, offset))
        return cls(int(queue), int(offset)) if right else None


class PageAddress(NamedTuple):
    """An address, taken apart: `page` is the first word of the path, `device` the part behind `/device/`."""

    page: str
    device: str
    query: dict[str, str]

    @classmethod
    def parse(cls, pathname: str | None, search: str | None) -> "PageAddress":
        """Takes the path and the query of an address apart. Whatever it is, it is a page, known or not."""
        path = pathname or "/"
        query = dict(parse_qsl((search or "").removeprefix("?")))
        if path.startswith(DEVICE):
            return cls("device", unquote(path.removeprefix(DEVICE)), query)
        return cls(path.strip("/") or "overview", "", query)

    @property
    def range(self) -> str:
        """The name of the time range."""
        found = self.query.get("range", "")
        return found if found in RANGES else DEFAULT_RANGE

    @property
    def zoom(self) -> Zoom | None:
        """The part of the chart that is looked at; None: all of it."""
        from_ms, until_ms = _ms(self.query.get("from", "")), _ms(self.query.get("to", ""))
        return None if from_ms is None or until_ms is None or from_ms >= until_ms else Zoom(from_ms, until_ms)

    @property
    def shown(self) -> list[object]:
        """The parts that change the page as a whole, as JSON has them."""
        kept = [[name, text] for name, text in sorted(self.query.items()) if name not in _WITHIN]
        return [self.page, self.device, kept]


def href(path: str, **query: str | None) -> str:
    """Returns the address of a page, without parameters that are None or have the default."""
    kept = {k: v for k, v in query.items() if v is not None and (k, v) != ("range", DEFAULT_RANGE)}
    return f"{path}?{urlencode(kept)}" if kept else path


def device_link(
    device: str,
    *,
    metric: str | None = None,
    range_: str | None = None,
    zoom: Zoom | None = None,
    **query: str | None,
) -> str:
    """Returns the address of a device's page."""
    part = {} if zoom is None else zoom.query
    return href(f"{DEVICE}{quote(device, safe='')}", metric=metric, range=range_, **part, **query)


def _ms(text: str) -> int | None:
    try:
        when = datetime.fromisoformat(text)
        return max(0, round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None


def _text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
