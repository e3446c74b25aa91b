"""The entries of a namespace of the key-value store."""

from collections.abc import AsyncIterator

from store.api.client import StoreClient
from store.api.keys import Entry

_PAGE_COUNT = 500


async def stored_entries(store: StoreClient, namespace: str) -> AsyncIterator[Entry]:
    """Yields the entries of a namespace, read a page at a time. Raises `StoreError`."""
    after = ""
    while page := await store.keys.prefix(f"{namespace}/", after=after, limit=_PAGE_COUNT):
        for entry in page:
            yield entry
        after = page[-1].key
