"""Finding records by key, address or id, and listing addresses: in memory first, then in the views."""

from collections.abc import Sequence, Set
from itertools import islice

from store.engine.engine import Engine
from store.format.frame import Position
from store.log.run import FrameRun
from store.views import Views
from store.views.index import IndexQuery, find_in_run

FIND_MAX = 10_000  # positions or addresses in one answer


# Any thread may ask. Entries that the views may lack are given with each question, as they were before it.


def find_positions(engine: Engine, wanted: IndexQuery, recent: Sequence[FrameRun], limit: int) -> list[Position]:
    """Finds positions, newest first."""
    limit = max(min(limit, FIND_MAX), 0)
    found: list[Position] = []
    for run in reversed(recent):
        found += islice(find_in_run(run, wanted), limit - len(found))
        if len(found) >= limit:
            return found
    if recent:  # the views may hold these runs by now
        wanted = wanted.in_front_of(recent[0].start)
    views = engine.views
    with views.reading() as txn:
        found += islice(views.index.find(txn, wanted, engine.log.first), limit - len(found))
    return found


def find_addresses(views: Views, prefix: str, after: str, recent: Set[str], limit: int) -> list[str]:
    """Finds addresses, ascending."""
    limit = max(min(limit, FIND_MAX), 0)
    with views.reading() as txn:
        stored = list(islice(views.addresses.after(txn, prefix, after), limit))
    return sorted({*recent, *stored})[:limit]


def find_unlisted(views: Views, addresses: Sequence[str]) -> list[str]:
    """Finds those of some addresses that the view does not have."""
    with views.reading() as txn:
        return [address for address in addresses if not views.addresses.has(txn, address)]
