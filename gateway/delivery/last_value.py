"""The last values of addresses: the newest message at one, and those at all that a filter matches.

Addresses come from the directory (`gateway.publishing.routing.directory`), in order. One that is too long for it has a
last value of its own and is in no list.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from gateway.domain.address import address_hash
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import FilterTrie, check_filter
from gateway.port.reads import LastValues, LastValuesPage
from store.api.client import StoreClient
from store.api.message import Message, decode
from store.base.errors import CorruptFrame
from store.format.frame import Position, QueueNumber

PAGE = 500  # addresses asked of the store at a time
LOOKED_MAX = 5_000  # addresses looked at for one answer: where few of them match, it may be short or empty
PAGE_BYTES = 4 << 20  # of bodies in one answer, about


# Returns the queues that messages at an address can be in; None where that may be any.
QueuesAt: TypeAlias = Callable[[str], Sequence[int] | None]


def anywhere(_address: str) -> None:
    """Returns None, for any queue."""


async def last_value(
    store: StoreClient, address: str, *, now_ms: int, queues_at: QueuesAt = anywhere
) -> Message | None:
    """Returns the newest message at an address, its id filled in; None when there is none or it has expired."""
    found = await last_stored(store, address, now_ms=now_ms, queues_at=queues_at)
    return None if found is None else found[1]


async def last_stored(
    store: StoreClient, address: str, *, now_ms: int, queues_at: QueuesAt = anywhere
) -> tuple[Position, Message] | None:
    """Returns the newest message at an address as `last_value` does, and its position."""
    queues = queues_at(address)
    among = None if queues is None else [QueueNumber(queue) for queue in queues]
    position = await store.log.last(address_hash(address), among)
    record = None if position is None else await store.log.read(position)
    if position is None or record is None:
        return None
    message = decode(record)
    if message.address != address or message.expired(now_ms):
        return None
    return position, message if message.id else msgspec.structs.replace(message, id=str(position))


async def last_values(
    store: StoreClient,
    request: LastValues,
    *,
    now_ms: int,
    readable: Callable[[str], bool] = lambda _address: True,
    queues_at: QueuesAt = anywhere,
) -> LastValuesPage:
    """Returns the answer to a request. An expired one is left out. Raises `Refusal` (MALFORMED).

    A page ends in front of a last value that is lost to damage; a page that would begin with one is refused (DAMAGED)
    by a text that names the address. Addresses that are not `readable` leave no trace, not even where a page ends.
    """
    pattern = check_filter(request.pattern)
    wanted: FilterTrie[None] = FilterTrie()
    wanted.add(pattern, None)
    prefix = _fixed_part(pattern)
    found: list[Message] = []
    at = after = request.after
    looked = size = 0
    while True:
        page = await store.log.addresses(prefix, after=at, limit=PAGE)
        for address in page:
            at = address
            if not readable(address):
                continue
            before, after, looked = after, address, looked + 1
            if not wanted.match(address):
                message = None
            else:
                try:
                    message = await last_value(store, address, now_ms=now_ms, queues_at=queues_at)
                except CorruptFrame as error:
                    if found:  # they come first, and the next page begins with the error
                        return LastValuesPage(messages=found, after=before)
                    raise _lost(address, error) from error
            if message is not None:
                found.append(message)
                size += len(message.body)
            if len(found) == request.limit or size >= PAGE_BYTES or looked == LOOKED_MAX:
                return LastValuesPage(messages=found, after=after)
        if len(page) < PAGE:
            return LastValuesPage(messages=found, after=None)


def _fixed_part(pattern: str) -> str:
    """Returns the prefix that all addresses share that a filter matches."""
    fixed: list[str] = []
    for level in pattern.split("/"):
        if level == "#":  # stands for no level too
            return "/".join(fixed)
        if level == "+":
            return "/".join([*fixed, ""])
        fixed.append(level)
    return pattern


def _lost(address: str, error: CorruptFrame) -> Refusal:
    """Returns the refusal of a page that begins with a last value that is lost."""
    detail = f"the last value of {address} is lost: {error}; reading can go on with after={quote(address, safe='')}"
    return Refusal(Cause.DAMAGED, detail)
