"""Parts of the listings of the admin port: by page, and by virtual host."""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from itertools import islice
from typing import TypeVar

from gateway.ops.amqp_report import ROWS_COUNT_MAX, ListingRows
from store.base.admin import ActionRefused

T = TypeVar("T")


def rows_of(found: Iterable[T], query: Mapping[str, str]) -> ListingRows[T]:
    """Returns the part of a listing that a query asks for by `offset` and `limit`. Raises `ActionRefused`."""
    try:
        offset, limit = int(query.get("offset", "0")), int(query.get("limit", str(ROWS_COUNT_MAX)))
        if offset < 0 or not 0 < limit <= ROWS_COUNT_MAX:
            raise ValueError
    except ValueError:
        why = f"offset is a number from 0 on, limit one from 1 to {ROWS_COUNT_MAX}"
        raise ActionRefused(HTTPStatus.BAD_REQUEST, why) from None
    some = list(islice(found, offset, offset + limit + 1))
    return ListingRows(rows=some[:limit], more=len(some) > limit)


def wanted_rows(found: Iterable[T], query: Mapping[str, str], vhost: Callable[[T], str]) -> list[T]:
    """Returns those of the virtual host that a query names, all where it names none."""
    return [one for one in found if query.get("vhost") in {None, vhost(one)}]
