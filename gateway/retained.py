"""Retained messages: the newest retained message of each address, kept in the replicated KV.

The change travels in the same frame as the message itself, so that both are durable together, before any
acknowledgement. An empty body deletes (MQTT 5.0, 3.3.1.3).
"""

from gateway.filters import FilterTrie
from gateway.keys import kv_key, literal_prefix
from gateway.message import Message, decode, encode
from store.client import StoreClient
from store.format import ROW
from store.records import KV_QUEUE, KvDelete, KvPut
from store.records import encode as encode_record

__all__ = ["retained_change", "retained_matching"]

NAMESPACE = "retained"
PAGE = 500


def retained_change(message: Message, pos: int) -> tuple[bytes, bytes]:
    """The row and the record that keep or forget a retained message; the record will stand at `pos`."""
    key = kv_key(NAMESPACE, message.address)
    record = encode_record(KvPut(key, encode(message)) if message.body else KvDelete(key))
    return ROW.pack(KV_QUEUE, pos, len(record), 0, 0, 0, 0, message.time_ms), record


async def retained_matching(store: StoreClient, pattern: str, *, now_ms: int, limit: int) -> list[Message]:
    """The retained messages whose address a filter matches and whose time is not over, by address."""
    trie: FilterTrie[None] = FilterTrie()
    trie.add(pattern, None)
    prefix, after = literal_prefix(NAMESPACE, pattern), ""
    found: list[Message] = []
    while len(found) < limit:
        page = await store.kv_prefix(prefix, after=after, limit=PAGE)
        for entry in page:
            message = decode(entry.value)
            if trie.match(message.address) and not message.expired(now_ms):
                found.append(message)
        if len(page) < PAGE:
            break
        after = page[-1].key
    return found[:limit]
