"""Retained messages: the newest retained message of each address, kept in the replicated KV.

The change travels in the same frame as the message itself, so that both are durable together, before any
acknowledgement. An empty body deletes (MQTT 5.0, 3.3.1.3), and so does the end of its time to live.
"""

from collections.abc import Callable

from gateway.domain.filters import FilterTrie
from gateway.domain.keys import RETAINED_NAMESPACE, literal_prefix, retained_key
from gateway.port.reads import Retained, RetainedPage
from store.api.client import StoreClient
from store.api.message import Message, decode, encode
from store.format.frame import ROW
from store.format.records import KV_QUEUE, KvDelete, KvPut
from store.format.records import encode as encode_record

_MS_MAX = (1 << 63) - 1  # the largest time in the store's KV
PAGE = 16  # entries read at a time: values may be as large as messages


def retained_change(message: Message, pos: int) -> tuple[bytes, bytes]:
    """Returns the row and the record that keep or forget a retained message; the record will stand at `pos`."""
    key, expires_at_ms = retained_key(message.address), message.expires_at_ms
    expires = 0 if expires_at_ms is None else min(max(expires_at_ms, 1), _MS_MAX)
    put = KvPut(key, encode(message), expires_at_ms=expires)
    record = encode_record(put if message.body else KvDelete(key))
    return ROW.pack(KV_QUEUE, pos, len(record), 0, 0, 0, 0, message.time_ms), record


async def retained_page(
    store: StoreClient, request: Retained, *, now_ms: int, readable: Callable[[str], bool] = lambda _address: True
) -> RetainedPage:
    """Returns a page of retained messages whose time is not over, and whose addresses are `readable`."""
    trie: FilterTrie[None] = FilterTrie()
    trie.add(request.pattern, None)
    prefix, after = literal_prefix(RETAINED_NAMESPACE, request.pattern), request.after
    found: list[Message] = []
    size = 0
    while True:
        page = await store.keys.prefix(prefix, after=after, limit=PAGE)
        for entry in page:
            after = entry.key
            message = decode(entry.value)
            if not trie.match(message.address) or message.expired(now_ms) or not readable(message.address):
                continue
            found.append(message)
            size += len(entry.value)
            if len(found) >= request.limit or size >= request.max_bytes:
                return RetainedPage(messages=found, after=after)
        if len(page) < PAGE:
            return RetainedPage(messages=found, after=None)
