"""Messages that are appended to a store and leased again, for tests of leases."""

from store.format.frame import ROW, UnplacedFrame
from tests.support.store.store_kit import append

ME, OTHER = 1, 2  # owners of leases


async def put(store, *texts, queue=16, keys=()):
    """Appends a frame of messages; with `keys` each has an ordering key."""
    rows, payload = b"", b""
    for n, text in enumerate(texts):
        rows += ROW.pack(queue, len(payload), len(text), 0, keys[n] if keys else 0, 5, 6, 7)
        payload += text
    return await append(store, UnplacedFrame.build(rows, payload))


async def take(store, owner=ME, count=10, queue=16, **options):
    """Leases messages, and returns their texts."""
    leases = await store.leases.take(queue, owner, max_count=count, **options)
    return [lease.frame.record(lease.row) for lease in leases]
