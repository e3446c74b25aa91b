"""Messages in a store, for requests for last values."""

from gateway.domain.address import address_hash
from store.api.message import encode
from store.format.frame import ROW, UnplacedFrame
from tests.support.store.store_kit import append


async def publish(store, *messages):
    rows, payload = [], b""
    for message in messages:
        record = encode(message)
        rows.append(ROW.pack(16, len(payload), len(record), 0, 0, address_hash(message.address), 0, 0))
        payload += record
    await store.log.note_addresses([message.address for message in messages])
    return await append(store, UnplacedFrame.build(b"".join(rows), payload))
