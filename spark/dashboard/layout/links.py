"""Addresses of pages: a page's state is in its address, so that it can be kept and sent."""

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from spark.dashboard.queries.time_ranges import DEFAULT_RANGE, RANGES

DEVICE = "/device/"


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


def href(path: str, **query: str | None) -> str:
    """Returns the address of a page, without parameters that are None or have the default."""
    kept = {k: v for k, v in query.items() if v is not None and (k, v) != ("range", DEFAULT_RANGE)}
    return f"{path}?{urlencode(kept)}" if kept else path


def device_link(device: str, *, metric: str | None = None, range_: str | None = None) -> str:
    """Returns the address of a device's page."""
    return href(f"{DEVICE}{quote(device, safe='')}", metric=metric, range=range_)
