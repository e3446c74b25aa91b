"""Frames whose messages searches find."""

from gateway.domain.address import hash64
from store.api.message import encode
from store.format.frame import ROW, ROW_INDEX_ADDRESS, ROW_INDEX_KEY, UnplacedFrame

BOTH = ROW_INDEX_KEY | ROW_INDEX_ADDRESS


def frame(*messages, flags=BOTH, hashes=None):
    """Returns a frame as ingest builds it; `hashes` in place of the real ones make collisions."""
    rows, payload = [], b""
    for message in messages:
        record = encode(message)
        of = hashes or (hash64(message.key or message.device), hash64(message.address), hash64(message.id))
        key, address, id_ = of
        rows.append(
            ROW.pack(16, len(payload), len(record), flags, key, address, id_ if message.id else 0, message.time_ms)
        )
        payload += record
    return UnplacedFrame.build(b"".join(rows), payload)
